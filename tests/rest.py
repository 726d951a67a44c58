"""A terse client of the API server for its own tests, and kinds to try it on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

Json = dict[str, Any]
# They are written for the namespace `default`; `Rest` replaces it by the test's own.
PODS = "/api/v1/namespaces/default/pods"
NAMESPACES = "/api/v1/namespaces"
NODES = "/api/v1/nodes"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
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
        """Return the sentence of the Status."""
        return str(self.body["message"])


class Rest:
    """The API with the shortest calls that tests can use.

    Attributes:
        namespace: The namespace that takes the place of `default` in paths.
        user: The name of its user.
        warnings: The warnings of the last answer.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        *,
        namespace: str = "default",
        user: str = "kubernetes-admin",
    ) -> None:
        self.session = session
        self.namespace = namespace
        self.user = user
        self.warnings: list[str] = []
        self._url = url

    def url(self, path: str) -> str:
        """Return the URL of a path, in this test's namespace."""
        head, default, tail = path.partition("/namespaces/default/")
        return self._url + head + (f"/namespaces/{self.namespace}/{tail}" if default else "")

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        **query: str,
    ) -> Json:
        """Send a request, or raise `Refused`."""
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        headers = {"Content-Type": media}
        accept = query.pop("accept", "")
        if accept:
            headers["Accept"] = accept
        async with self.session.request(
            method, self.url(path), data=data, headers=headers, params=query
        ) as answer:
            raw = await answer.read()
            self.warnings = answer.headers.getall("Warning", [])
            if answer.status >= 400 and answer.content_type != "application/json":
                raise Refused(answer.status, {"message": raw.decode()})
            decoded: Json = orjson.loads(raw)
            if answer.status >= 400:
                raise Refused(answer.status, decoded)
            return decoded

    async def get(self, path: str, **query: str) -> Json:
        """Return one object, a list, or a document."""
        return await self.ask("GET", path, **query)

    async def names(self, path: str, **query: str) -> list[str]:
        """Return the names in a list, in its order."""
        return [item["metadata"]["name"] for item in (await self.get(path, **query))["items"]]

    async def create(self, path: str, body: Json, **query: str) -> Json:
        """Send POST."""
        return await self.ask("POST", path, body, **query)

    async def update(self, path: str, body: Json, **query: str) -> Json:
        """Send PUT."""
        return await self.ask("PUT", path, body, **query)

    async def merge(self, path: str, body: Json, **query: str) -> Json:
        """Send PATCH with a merge patch (RFC 7386)."""
        return await self.ask("PATCH", path, body, media=MERGE, **query)

    async def json_patch(self, path: str, body: list[Json], **query: str) -> Json:
        """Send PATCH with a JSON patch (RFC 6902)."""
        return await self.ask("PATCH", path, body, media=JSON_PATCH, **query)

    async def strategic(self, path: str, body: Json, **query: str) -> Json:
        """Send PATCH with a strategic merge patch."""
        return await self.ask("PATCH", path, body, media=STRATEGIC, **query)

    async def apply(self, path: str, body: Json, manager: str, **query: str) -> Json:
        """Apply on the server side as `manager`."""
        return await self.ask("PATCH", path, body, media=APPLY, fieldManager=manager, **query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Json:
        """Send DELETE, with DeleteOptions as the body."""
        return await self.ask("DELETE", path, body, **query)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Watch]:
        """Open a stream."""
        async with self.session.get(self.url(path), params={"watch": "1", **query}) as answer:
            yield Watch(answer)

    async def until_served(self, path: str, *, within: float = 20.0) -> None:
        """Wait until a kind that was just defined is served."""
        async with asyncio.timeout(within):
            while True:
                try:
                    await self.get(path)
                except Refused as refused:
                    if refused.status not in (404, 429):  # 429: the kind is about to be served
                        raise
                else:
                    return

    async def gone(self, path: str) -> None:
        """Wait until an object does not exist any more."""
        collection, _, name = path.rpartition("/")
        listed = await self.get(collection)
        if name not in [item["metadata"]["name"] for item in listed["items"]]:
            return
        version = listed["metadata"]["resourceVersion"]
        async with self.watch(collection, resourceVersion=version) as watch:
            while True:
                event = await watch.next(within=30.0)
                if event["type"] == "DELETED" and event["object"]["metadata"]["name"] == name:
                    return


class Watch:
    """An open stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self, *, within: float = 5.0) -> Json:
        """Return the next event, or raise EOFError at the end."""
        async with asyncio.timeout(within):
            line = await self.answer.content.readline()
        if not line:
            raise EOFError
        event: Json = orjson.loads(line)
        return event

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next `count` events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def a_pod(name: str = "p", **spec: Any) -> Json:
    """Return a pod of one container; `container` adds to that, the rest to the spec."""
    container = {"name": "c", "image": "busybox:1.36", **spec.pop("container", {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def a_thing(name: str = "t", **spec: Any) -> Json:
    """Return an object of the kind that `thing_definition` defines."""
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


def thing_definition(word: str = "thing") -> Json:
    """Return a kind with all features of ours: keyed lists, defaults, status, columns."""
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
            "from": {"type": "string", "format": "date-time"},
            "share": {
                "type": "integer",
                "oneOf": [{"minimum": 5}, {"maximum": 7}],
                "not": {"enum": [3]},
                "anyOf": [{"multipleOf": 2}, {"minimum": 9}],
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
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
            {
                "name": "Noted",
                "type": "string",
                "jsonPath": r".metadata.annotations.a\.b/c",
            },
            {
                "name": "B",
                "type": "string",
                "jsonPath": ".status.conditions[?(@.type=='B')].status",
            },
            {"name": "Types", "type": "string", "jsonPath": ".status.conditions[*].type"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{word}s.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {
                "plural": f"{word}s",
                "kind": word.capitalize(),
                "shortNames": [word[:2]],
                "categories": ["ex"],
            },
            "versions": [version],
        },
    }
