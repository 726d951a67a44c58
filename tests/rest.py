"""The API server in as few words as its own tests can use, and kinds to try it on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from vgpu_local.apiserver import ApiServer

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
THINGS = "/apis/example.dev/v1/namespaces/default/things"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """The server answered with a failure; `body` is its Status."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body

    @property
    def message(self) -> str:
        """The sentence of the Status."""
        return str(self.body["message"])


class Rest:
    """The API in as few words as tests can use."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.warnings: list[str] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        **query: str,
    ) -> Json:
        """Send a request; raises `Refused`."""
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        headers = {"Content-Type": media}
        accept = query.pop("accept", "")
        if accept:
            headers["Accept"] = accept
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=query
        ) as answer:
            raw = await answer.read()
            self.warnings = answer.headers.getall("Warning", [])
            if answer.content_type != "application/json":
                raise Refused(answer.status, {"message": raw.decode()})
            decoded: Json = orjson.loads(raw)
            if answer.status >= 400:
                raise Refused(answer.status, decoded)
            return decoded

    async def get(self, path: str, **query: str) -> Json:
        """One object, a list, or a document."""
        return await self.ask("GET", path, **query)

    async def names(self, path: str, **query: str) -> list[str]:
        """The names in a list, in its order."""
        return [item["metadata"]["name"] for item in (await self.get(path, **query))["items"]]

    async def create(self, path: str, body: Json, **query: str) -> Json:
        """POST."""
        return await self.ask("POST", path, body, **query)

    async def update(self, path: str, body: Json, **query: str) -> Json:
        """PUT."""
        return await self.ask("PUT", path, body, **query)

    async def merge(self, path: str, body: Json, **query: str) -> Json:
        """PATCH, RFC 7386."""
        return await self.ask("PATCH", path, body, media=MERGE, **query)

    async def json_patch(self, path: str, body: list[Json], **query: str) -> Json:
        """PATCH, RFC 6902."""
        return await self.ask("PATCH", path, body, media=JSON_PATCH, **query)

    async def strategic(self, path: str, body: Json, **query: str) -> Json:
        """PATCH, strategic merge."""
        return await self.ask("PATCH", path, body, media=STRATEGIC, **query)

    async def apply(self, path: str, body: Json, manager: str, **query: str) -> Json:
        """Server-side apply as `manager`."""
        return await self.ask("PATCH", path, body, media=APPLY, fieldManager=manager, **query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Json:
        """DELETE, with DeleteOptions as the body."""
        return await self.ask("DELETE", path, body, **query)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Watch]:
        """Open a stream."""
        async with self.session.get(
            self.server.url + path, params={"watch": "1", **query}
        ) as answer:
            yield Watch(answer)

    async def gone(self, path: str) -> None:
        """Wait until an object does not exist any more."""
        collection, _, name = path.rpartition("/")
        listed = await self.get(collection)
        if name not in [item["metadata"]["name"] for item in listed["items"]]:
            return
        version = listed["metadata"]["resourceVersion"]
        async with self.watch(collection, resourceVersion=version) as watch:
            while True:
                event = await watch.next()
                if event["type"] == "DELETED" and event["object"]["metadata"]["name"] == name:
                    return


class Watch:
    """An open stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self, *, within: float = 5.0) -> Json:
        """The next event; raises EOFError at the end."""
        async with asyncio.timeout(within):
            line = await self.answer.content.readline()
        if not line:
            raise EOFError
        event: Json = orjson.loads(line)
        return event

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next `count` events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def a_pod(name: str = "p", **spec: Any) -> Json:
    """A pod of one container; `container` adds to that, the rest to the spec."""
    container = {"name": "c", "image": "busybox:1.36", **spec.pop("container", {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def a_thing(name: str = "t", **spec: Any) -> Json:
    """An object of the kind that `thing_definition` defines."""
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


def thing_definition() -> Json:
    """A kind with everything our own kinds use: keyed lists, defaults, status, columns."""
    conditions = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status"],
            "properties": {word: {"type": "string"} for word in ("type", "status", "reason")},
        },
    }
    requests = {
        "type": "array",
        "maxItems": 4,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": "", "maxLength": 8},
                "memory": {"x-kubernetes-int-or-string": True},
            },
        },
    }
    spec = {
        "type": "object",
        "required": ["size"],
        "description": "What is wanted.",
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 64},
            "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
            "uuids": {"type": "array", "items": {"type": "string", "pattern": "^GPU-"}},
            "requests": requests,
        },
    }
    status = {
        "type": "object",
        "properties": {
            "state": {"type": "string"},
            "node": {"type": "string"},
            "conditions": conditions,
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".status.node"}],
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.state"},
            {"name": "Node", "type": "string", "jsonPath": ".status.node", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {
                "plural": "things",
                "kind": "Thing",
                "shortNames": ["th"],
                "categories": ["ex"],
            },
            "versions": [version],
        },
    }
