"""From a request to its answer: faults first, then the verb, then the HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from vgpu_local.apiserver import discovery, errors, openapi
from vgpu_local.apiserver.cluster import Cluster
from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.faults import Fault, Faults
from vgpu_local.apiserver.kinds import Obj
from vgpu_local.apiserver.requests import Asked, target
from vgpu_local.apiserver.reviews import is_review, issued, reviewed
from vgpu_local.apiserver.watches import Dropped

_JSON = "application/json"
_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class Routes:
    """The handler of all requests to one cluster."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._documents: dict[tuple[int, str], bytes] = {}
        self._verbs: dict[str, Callable[[Asked], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; every refusal becomes a Status."""
        try:
            if request.method == "POST" and is_review(request.path):
                body = reviewed(request.path, await request.json(), self._listed)
                return _json(orjson.dumps(body), 201)
            if request.method == "POST" and (token := issued(request.path, self._listed)):
                return _json(orjson.dumps(token), 201)
            found = target(self._cluster.registry, request.path)
            if found is None:
                return self._about(request)
            asked = Asked.of(request, found)
            return await self._faulty(asked)
        except StatusError as error:
            return _refusal(error)
        except errors.UnknownPathError:
            return web.Response(status=404, text="404 page not found\n")

    def _listed(self, resource: str) -> list[Obj]:
        table = self._cluster.store.table(self._cluster.registry.get(resource))
        return [stored.obj for stored in table.listed(None)]

    async def _faulty(self, asked: Asked) -> web.StreamResponse:
        target, user = asked.target, asked.call().user
        faults = self._faults.take(asked.verb, target.fault_key, target.name, user)
        for fault in faults:
            if fault.action == "delay":
                await asyncio.sleep(fault.seconds)
            elif fault.action == "status":
                raise fault.error()
            elif fault.action == "refuse":
                return _cut(asked.request)
            elif fault.action == "gone" and asked.verb != "watch":
                raise errors.expired(0, self._cluster.store.revision)
        if asked.verb == "watch":
            return await self._watch(asked, faults)
        answer = await self._verbs[asked.verb](asked)
        if any(fault.action == "lost" for fault in faults):
            return _cut(asked.request)
        if answered := next((fault for fault in faults if fault.action == "answered"), None):
            raise answered.error()
        return answer

    async def _get(self, asked: Asked) -> web.StreamResponse:
        return _json(self._cluster.reader.get(asked))

    async def _list(self, asked: Asked) -> web.StreamResponse:
        return _json(self._cluster.reader.listed(asked))

    async def _create(self, asked: Asked) -> web.StreamResponse:
        call = asked.call()
        body = await asked.object()
        if asked.target.subresource:
            await self._cluster.act(asked.target, body, call)
            return _json(orjson.dumps({**_success(), "code": 201}), 201, call.warnings)
        stored = await self._cluster.create(asked.target, body, call)
        return _json(self._cluster.reader.shown(asked, stored), 201, call.warnings)

    async def _update(self, asked: Asked) -> web.StreamResponse:
        call = asked.call()
        stored, created = await self._cluster.update(asked.target, await asked.object(), call)
        shown = self._cluster.reader.shown(asked, stored)
        return _json(shown, 201 if created else 200, call.warnings)

    async def _patch(self, asked: Asked) -> web.StreamResponse:
        call = asked.call()
        stored, created = await self._cluster.patch(
            asked.target,
            asked.media_type,
            await asked.body(),
            call,
            manager_given="fieldManager" in asked.query,
        )
        shown = self._cluster.reader.shown(asked, stored)
        return _json(shown, 201 if created else 200, call.warnings)

    async def _delete(self, asked: Asked) -> web.StreamResponse:
        call = asked.call()
        body = await asked.body()
        deletion = await self._cluster.delete(asked.target, body, asked.query, call)
        meta = deletion.stored.obj["metadata"]
        if not deletion.gone or asked.target.resource.qualified == "pods":
            return _json(deletion.stored.raw, 200, call.warnings)
        resource = asked.target.resource
        details: dict[str, Any] = {
            "name": meta["name"],
            "kind": resource.plural,
            "uid": meta["uid"],
        }
        if resource.group:
            details["group"] = resource.group
        return _json(orjson.dumps({**_success(), "details": details}), 200, call.warnings)

    async def _delete_collection(self, asked: Asked) -> web.StreamResponse:
        call = asked.call()
        body = await asked.body()
        match = self._cluster.reader.match(asked)
        await self._cluster.delete_collection(asked.target, match, body, asked.query, call)
        return _json(orjson.dumps(_success()), 200, call.warnings)

    async def _watch(self, asked: Asked, faults: list[Fault]) -> web.StreamResponse:
        wanted = self._cluster.reader.watch(asked)
        response = web.StreamResponse(headers={"Content-Type": _JSON, "Cache-Control": "no-cache"})
        response.enable_chunked_encoding()
        await response.prepare(asked.request)
        try:
            async for line in self._cluster.watches.lines(wanted, faults):
                await response.write(line)
        except Dropped:
            return _cut(asked.request)
        except ConnectionResetError:
            return response  # the client has gone away
        return response

    def _about(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer discovery, OpenAPI, version and health requests."""
        path = request.path.rstrip("/")
        if path in ("/readyz", "/livez", "/healthz"):
            return web.Response(text="ok")
        accept = request.headers.get("Accept", "")
        if path == "/openapi/v2" and "protobuf" in accept:
            return web.Response(body=b"", content_type=_PROTOBUF)
        registry = self._cluster.registry
        grouped = path in ("/api", "/apis") and "as=APIGroupDiscoveryList" in accept
        key = (registry.version, f"{path} {grouped}")
        raw = self._documents.get(key)
        if raw is None:
            body = (
                discovery.aggregated(registry, core=path == "/api")
                if grouped
                else self._document(path)
            )
            if body is None:
                raise errors.UnknownPathError
            raw = self._documents[key] = orjson.dumps(body)
        media = discovery.AGGREGATED if grouped else _JSON
        return web.Response(body=raw, headers={"Content-Type": media})

    def _document(self, path: str) -> Any:
        registry = self._cluster.registry
        fixed: dict[str, Callable[[], Any]] = {
            "": lambda: {"paths": ["/api", "/apis", "/healthz", "/openapi/v3", "/version"]},
            "/version": lambda: discovery.VERSION,
            "/api": discovery.core_versions,
            "/apis": lambda: discovery.groups(registry),
            "/openapi/v2": openapi.swagger,
            "/openapi/v3": lambda: openapi.index(registry),
        }
        if path in fixed:
            return fixed[path]()
        if path.startswith("/openapi/v3/"):
            return openapi.document(registry, path.removeprefix("/openapi/v3/"))
        parts = path.strip("/").split("/")
        if parts == ["api", "v1"]:
            return discovery.resources(registry, "", "v1")
        if parts[0] == "apis" and any(resource.group == parts[1] for resource in registry):
            if len(parts) == 2:
                return discovery.group(registry, parts[1])
            return discovery.resources(registry, parts[1], parts[2])
        return None


def _json(raw: bytes, status: int = 200, warnings: list[str] | None = None) -> web.StreamResponse:
    response = web.Response(body=raw, status=status, content_type=_JSON)
    for text in warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def _refusal(error: StatusError) -> web.StreamResponse:
    response = web.Response(
        body=orjson.dumps(error.status()), status=error.code, content_type=_JSON
    )
    wait = (error.details or {}).get("retryAfterSeconds")
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response


def _success() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
