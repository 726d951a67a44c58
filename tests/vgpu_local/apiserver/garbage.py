"""Deletes as the controller manager does: owned objects, namespaces, removed kinds.

It runs after the write that caused it, as the real one does: a reader may see the owner gone and
its dependents still there for a moment.
"""

from __future__ import annotations

import asyncio

import orjson

from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.deletes import FOREGROUND, ORPHAN, DeleteOptions, Deleter
from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.kinds import CRDS, Obj, Registry, Resource
from vgpu_local.apiserver.storage import Change, Stored
from vgpu_local.apiserver.writes import Draft, Writer

Key = tuple[str, str, str]
"""Qualified resource, namespace, name."""


class Collector:
    """Deletes objects without owners, empties ending namespaces, and forgets ended kinds."""

    def __init__(self, writer: Writer, deleter: Deleter, registry: Registry) -> None:
        self._writer = writer
        self._deleter = deleter
        self._registry = registry
        self._dependents: dict[str, set[Key]] = {}
        self._due: asyncio.Queue[tuple[Resource, Change]] = asyncio.Queue()
        self._call = Call(manager="kube-controller-manager", user="system:kube-controller-manager")

    def observe(self, resource: Resource, change: Change) -> None:
        """Note a write; `run` acts on its consequences later."""
        meta = change.after.obj["metadata"]
        key = (resource.qualified, meta.get("namespace", ""), meta["name"])
        references = meta.get("ownerReferences", ())
        before = change.before.obj["metadata"].get("ownerReferences", ()) if change.before else ()
        for reference in before:
            left = self._dependents.get(reference["uid"], set())
            left.discard(key)
            if not left:
                self._dependents.pop(reference["uid"], None)
        if change.type != "DELETED":
            for reference in references:
                self._dependents.setdefault(reference["uid"], set()).add(key)
        news = references and references != before
        if change.type == "DELETED" or "deletionTimestamp" in meta or news:
            self._due.put_nowait((resource, change))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            resource, change = await self._due.get()
            try:
                await self._follow(resource, change)
            except StatusError:
                # Another writer changed or kept the object (a conflict, a webhook): its next write
                # brings it here again.
                continue

    async def _follow(self, resource: Resource, change: Change) -> None:
        obj = change.after.obj
        meta = obj["metadata"]
        if change.type == "DELETED":
            if resource.qualified == CRDS:
                self._forget_kind(obj)
            for key in self._dependents_of(meta["uid"]):
                await self._released(key, meta["uid"])
            for reference in meta.get("ownerReferences", ()):
                await self._unblock(reference, meta)
            if meta.get("namespace"):
                await self._empty(meta["namespace"])
            return
        if "deletionTimestamp" in meta:
            if resource.qualified == "namespaces":
                await self._empty(meta["name"])
            finalizers = meta.get("finalizers", ())
            if ORPHAN in finalizers:
                for key in self._dependents_of(meta["uid"]):
                    await self._drop_reference(key, meta["uid"])
                await self._drop_finalizer(resource, change.after, ORPHAN)
            elif FOREGROUND in finalizers:
                await self._foreground(resource, change.after)
            return
        if not any(self._exists(reference, meta) for reference in meta["ownerReferences"]):
            await self._delete((resource.qualified, meta.get("namespace", ""), meta["name"]))

    def _dependents_of(self, uid: str) -> list[Key]:
        return sorted(self._dependents.get(uid, ()))

    def _find(self, key: Key) -> tuple[Resource, Stored] | None:
        try:
            resource = self._registry.get(key[0])
        except KeyError:
            return None
        stored = self._writer.store.table(resource).get(key[1], key[2])
        return None if stored is None else (resource, stored)

    def _exists(self, reference: Obj, dependent: Obj) -> bool:
        resource = self._registry.by_kind(reference["apiVersion"], reference["kind"])
        if resource is None:
            return True  # an unknown kind blocks collection, as in the real collector
        namespace = dependent.get("namespace", "") if resource.namespaced else ""
        stored = self._writer.store.table(resource).get(namespace, reference["name"])
        return stored is not None and stored.obj["metadata"]["uid"] == reference["uid"]

    async def _released(self, key: Key, uid: str) -> None:
        """Delete a dependent whose owner is gone, unless another owner is left."""
        found = self._find(key)
        if found is None:
            return
        meta = found[1].obj["metadata"]
        others = [item for item in meta.get("ownerReferences", ()) if item["uid"] != uid]
        if any(self._exists(reference, meta) for reference in others):
            await self._drop_reference(key, uid)
        else:
            await self._delete(key)

    async def _delete(self, key: Key) -> None:
        found = self._find(key)
        if found is not None:
            uid = found[1].obj["metadata"]["uid"]
            await self._deleter.delete(found[0], key[1], key[2], DeleteOptions(uid=uid), self._call)

    async def _drop_reference(self, key: Key, uid: str) -> None:
        found = self._find(key)
        if found is None:
            return

        def change(stored: Stored) -> Draft:
            obj: Obj = orjson.loads(stored.raw)
            references = obj["metadata"].get("ownerReferences", [])
            obj["metadata"]["ownerReferences"] = [r for r in references if r["uid"] != uid]
            return Draft(obj)

        await self._writer.change(found[0], key[1], key[2], "", change, self._call)

    async def _drop_finalizer(self, resource: Resource, stored: Stored, word: str) -> None:
        def change(current: Stored) -> Draft:
            obj: Obj = orjson.loads(current.raw)
            finalizers = obj["metadata"].get("finalizers", [])
            obj["metadata"]["finalizers"] = [item for item in finalizers if item != word]
            return Draft(obj)

        meta = stored.obj["metadata"]
        await self._writer.change(
            resource, meta.get("namespace", ""), meta["name"], "", change, self._call
        )

    async def _foreground(self, resource: Resource, owner: Stored) -> None:
        """Delete the dependents; the owner's finalizer is removed after the last blocking one."""
        uid = owner.obj["metadata"]["uid"]
        for key in self._dependents_of(uid):
            found = self._find(key)
            if found and "deletionTimestamp" not in found[1].obj["metadata"]:
                await self._delete(key)
        if not any(self._blocks(key, uid) for key in self._dependents_of(uid)):
            await self._drop_finalizer(resource, owner, FOREGROUND)

    def _blocks(self, key: Key, uid: str) -> bool:
        found = self._find(key)
        references = found[1].obj["metadata"].get("ownerReferences", ()) if found else ()
        return any(r["uid"] == uid and r.get("blockOwnerDeletion") for r in references)

    async def _unblock(self, reference: Obj, dependent: Obj) -> None:
        """Unblock an owner that may be waiting for just the dependent that is gone."""
        resource = self._registry.by_kind(reference["apiVersion"], reference["kind"])
        if resource is None or not self._exists(reference, dependent):
            return
        namespace = dependent.get("namespace", "") if resource.namespaced else ""
        owner = self._writer.current(resource, namespace, reference["name"])
        if FOREGROUND in owner.obj["metadata"].get("finalizers", ()):
            await self._foreground(resource, owner)

    async def _empty(self, namespace: str) -> None:
        """Delete the objects in an ending namespace, and the namespace once it is empty."""
        spaces = self._registry.get("namespaces")
        space = self._writer.store.table(spaces).get("", namespace)
        if space is None or "deletionTimestamp" not in space.obj["metadata"]:
            return
        left = 0
        for resource in list(self._registry):
            for stored in self._writer.store.table(resource).listed(namespace):
                if not resource.namespaced:
                    continue
                if "deletionTimestamp" not in stored.obj["metadata"]:
                    name = stored.obj["metadata"]["name"]
                    await self._delete((resource.qualified, namespace, name))
                left += (
                    self._writer.store.table(resource).get(
                        namespace, stored.obj["metadata"]["name"]
                    )
                    is not None
                )
        if not left:

            def change(current: Stored) -> Draft:
                obj: Obj = orjson.loads(current.raw)
                obj["spec"]["finalizers"] = []
                return Draft(obj)

            await self._writer.change(spaces, "", namespace, "finalize", change, self._call)

    def _forget_kind(self, definition: Obj) -> None:
        """Forget the objects of a kind that is no longer served."""
        spec = definition["spec"]
        plural = spec["names"]["plural"]
        for version in spec["versions"]:
            resource = Resource(spec["group"], version["name"], plural, "", True)
            for stored in self._writer.store.table(resource).listed(None):
                self._writer.store.remove(resource, stored)
