"""An API server small enough to read, for unit tests of its clients.

It keeps claims and pods in memory, gives each write a resourceVersion, refuses stale patches, and
can be made to hold writes, to lose an answer, or to fail. Everything else is left to the stand-in
cluster. Every write is noted in `log`, in order.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonpatch

from vgpu_api.resources import PODS, VGPU_CLAIMS, Resource
from vgpu_client.errors import AlreadyExists, Conflict, NotFound
from vgpu_local.apiserver.patch import merge_patch

Fault = Callable[[str, str], BaseException | None]
"""Given verb and name, the error to raise, or None to let the call through."""


class MemoryApi:
    """Stands in for `vgpu_client.Api` where claims are written and pods bound."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.log: list[tuple[str, str]] = []
        self.before: Fault = lambda verb, name: None
        self.after: Fault = lambda verb, name: None
        self.gate: asyncio.Event = asyncio.Event()
        self.gate.set()
        self.applied: list[dict[str, Any]] = []
        self._version = 100
        self._gone: set[str] = set()  # UIDs, which no later object gets
        self._ids = itertools.count(1)

    @staticmethod
    def copied(obj: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of an object."""
        return copy.deepcopy(obj)

    def new_id(self) -> str:
        """Return a UUID that no other caller on this API server gets, and the same in every run."""
        return str(uuid.UUID(int=next(self._ids)))

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object as it is, with a new resourceVersion."""
        stored = self.copied(dict(obj))
        self._version += 1
        metadata = stored["metadata"]
        metadata["resourceVersion"] = str(self._version)
        uid = f"uid-of-{metadata['name']}"
        metadata.setdefault("uid", uid if uid not in self._gone else f"{uid}-{self._version}")
        self.objects[(resource.plural, metadata.get("namespace", ""), metadata["name"])] = stored
        return self.copied(stored)

    def vanish(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        """Remove an object, even if it has finalizers."""
        gone = self.objects.pop((resource.plural, namespace, name))
        self._gone.add(gone["metadata"]["uid"])

    def claim(self, name: str, *, namespace: str = "default") -> dict[str, Any]:
        """Return the current version of a claim."""
        return self.objects[(VGPU_CLAIMS.plural, namespace, name)]

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Read an object."""
        self._fail(self.before, "get", name)
        return self.copied(self._find(resource, name, namespace))

    async def current_version(self, resource: Resource) -> int:
        """Return the version of the newest object."""
        self._fail(self.before, "list", resource.plural)
        return max(
            (int(o["metadata"]["resourceVersion"]) for o in self.objects.values()), default=0
        )

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        subresource: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Create an object, without its status as the real server does; or evict a pod."""
        metadata = obj["metadata"]
        if subresource == "eviction":
            return await self._evict(metadata["name"], obj["deleteOptions"]["preconditions"])
        async with self._write(f"create {resource.plural}", metadata.get("name", "")):
            place = (resource.plural, metadata.get("namespace", ""), metadata.get("name", ""))
            if place in self.objects:
                raise AlreadyExists("exists", status=409, reason="AlreadyExists")
            made = {key: value for key, value in obj.items() if key != "status"}
            return self.put(resource, made)

    async def _evict(self, name: str, preconditions: Mapping[str, Any]) -> dict[str, Any]:
        async with self._write("evict", name):
            pod = self._find(PODS, name, "default")
            if pod["metadata"]["uid"] != preconditions["uid"]:
                raise Conflict("another pod", status=409, reason="Conflict")
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self.put(PODS, pod)

    async def replace(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Replace an object; a stale version is a conflict."""
        metadata = obj["metadata"]
        async with self._write(f"replace {resource.plural}", metadata["name"]):
            found = self._find(resource, metadata["name"], metadata.get("namespace"))
            if found["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                raise Conflict("stale", status=409, reason="Conflict")
            return self.put(resource, obj)

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Patch an object; a failed test is a conflict."""
        async with self._write(f"patch {subresource or 'object'}", name):
            found = self._find(resource, name, namespace)
            try:
                patched = jsonpatch.apply_patch(found, list(operations))
            except jsonpatch.JsonPatchTestFailed as error:
                raise Conflict(str(error), status=409, reason="Conflict") from error
            metadata = patched["metadata"]
            is_over = metadata.get("deletionTimestamp") and metadata.get("finalizers") == []
            if is_over and resource != VGPU_CLAIMS:  # tests look at the last version of a claim
                self.vanish(resource, name, namespace=namespace or "")
                return self.copied(patched)
            return self.put(resource, patched)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Delete an object if it is the one meant; finalizers keep it, marked as going."""
        async with self._write("delete", name):
            found = self._find(resource, name, namespace)
            metadata = found["metadata"]
            if (uid or metadata["uid"], resource_version or metadata["resourceVersion"]) != (
                metadata["uid"],
                metadata["resourceVersion"],
            ):
                raise Conflict("it has changed", status=409, reason="Conflict")
            if metadata.get("finalizers"):
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                return self.put(resource, found)
            self.vanish(resource, name, namespace=namespace or "")
            return self.copied(found)

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Merge changes into an object (RFC 7386); another UID is a conflict."""
        async with self._write(f"merge {subresource}" if subresource else "merge", name):
            found = self.copied(self._find(resource, name, namespace))
            uid = found["metadata"]["uid"]
            if changes.get("metadata", {}).get("uid", uid) != uid:
                raise Conflict("another object", status=409, reason="Conflict")
            return self.put(resource, merge_patch(found, changes))

    async def apply(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Record an apply, with the version that results from it."""
        await self.gate.wait()
        self._fail(self.before, "apply", obj["metadata"]["name"])
        self._version += 1
        noted = self.copied(dict(obj))
        noted["metadata"]["resourceVersion"] = str(self._version)
        self.applied.append(noted)
        return noted

    async def bind_pod(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        **_: Any,
    ) -> None:
        """Bind a pod."""
        async with self._write("bind", name):
            pod = self._find(PODS, name, namespace)
            if pod["metadata"]["uid"] != uid:
                raise NotFound("another pod", status=404)
            pod["spec"]["nodeName"] = node
            pod["metadata"].setdefault("annotations", {}).update(annotations)

    def _find(self, resource: Resource, name: str, namespace: str | None) -> dict[str, Any]:
        try:
            return self.objects[(resource.plural, namespace or "", name)]
        except KeyError:
            raise NotFound(f"{resource.plural} {name}", status=404, reason="NotFound") from None

    def _write(self, verb: str, name: str) -> _Write:
        return _Write(self, verb, name)

    @staticmethod
    def _fail(fault: Fault, verb: str, name: str) -> None:
        error = fault(verb, name)
        if error is not None:
            raise error


class _Write:
    """A write passes the gate, is noted, and may fail before or after it was done."""

    def __init__(self, api: MemoryApi, verb: str, name: str) -> None:
        self._api = api
        self._verb = verb
        self._name = name

    async def __aenter__(self) -> None:
        await self._api.gate.wait()
        self._api._fail(self._api.before, self._verb, self._name)
        self._api.log.append((self._verb, self._name))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._api._fail(self._api.after, self._verb, self._name)
