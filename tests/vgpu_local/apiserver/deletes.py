"""Delete objects at once, after their finalizers, or through a pod's kubelet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.admission import Attempt
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.selectors import Match
from vgpu_local.apiserver.shaping import finished
from vgpu_local.apiserver.storage import Stored
from vgpu_local.apiserver.writes import Writer

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_TERMINAL = frozenset({"Succeeded", "Failed"})
_DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a deletion: grace (s), preconditions, and the fate of dependents."""

    grace: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = "Background"

    @classmethod
    def of(cls, body: Any, query: dict[str, str]) -> DeleteOptions:
        """Read `DeleteOptions` from a request's body, else from its parameters."""
        body = body if isinstance(body, dict) else {}
        preconditions = body.get("preconditions") or {}
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        orphan = body.get("orphanDependents", query.get("orphanDependents") == "true")
        propagation = body.get("propagationPolicy") or query.get("propagationPolicy")
        return cls(
            grace=None if grace is None else int(grace),
            uid=preconditions.get("uid") or "",
            resource_version=preconditions.get("resourceVersion") or "",
            propagation=propagation or ("Orphan" if orphan else "Background"),
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """The object after a deletion, or its last version if it is `gone`."""

    stored: Stored
    gone: bool


class Deleter:
    """Deletes objects."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions, call: Call
    ) -> Deletion:
        """Delete one object.

        Raises:
            StatusError: 404, 409 for a failed precondition, or a webhook's answer.
        """
        before = self._writer.current(resource, namespace, name)
        self._check(resource, before.obj, options)
        attempt = Attempt(resource, "", "DELETE", namespace, name, None, before.obj, call)
        await self._writer.admission.validate(attempt)
        now = self._writer.current(resource, namespace, name)
        if now is not before:  # it changed while webhooks were asked
            self._check(resource, now.obj, options)
            before = now
        after = self._terminating(resource, before.obj, options)
        if call.dry_run:
            return Deletion(before, gone=True)
        if finished(resource, after):
            return Deletion(self._writer.store.remove(resource, before), gone=True)
        if after == before.obj:
            return Deletion(before, gone=False)
        stored = self._writer.store.put(resource, after, before.owners)
        return Deletion(stored, gone=False)

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None,
        match: Match,
        options: DeleteOptions,
        call: Call,
    ) -> list[Stored]:
        """Delete what the selector matches; return the objects as they were."""
        chosen = [
            stored
            for stored in self._writer.store.table(resource).listed(namespace)
            if match(stored.obj)
        ]
        for stored in chosen:
            meta = stored.obj["metadata"]
            try:
                await self.delete(resource, meta.get("namespace", ""), meta["name"], options, call)
            except errors.StatusError as error:
                if error.code != 404:  # it is gone already, as wanted
                    raise
        return chosen

    def _check(self, resource: Resource, obj: Obj, options: DeleteOptions) -> None:
        meta = obj["metadata"]
        for what, wanted, actual, perhaps in (
            ("UID", options.uid, meta["uid"], "deleted and then recreated"),
            ("ResourceVersion", options.resource_version, meta["resourceVersion"], "modified"),
        ):
            if wanted and wanted != actual:
                raise errors.conflict(
                    replace(resource, plural=resource.kind),  # these also name the kind
                    meta["name"],
                    f"the {what} in the precondition ({wanted}) does not match the {what} in"
                    f" record ({actual}). The object might have been {perhaps}",
                )

    def _terminating(self, resource: Resource, obj: Obj, options: DeleteOptions) -> Obj:
        """Return a copy of the object, marked as being deleted."""
        after: Obj = orjson.loads(orjson.dumps(obj))
        meta = after["metadata"]
        finalizers = list(meta.get("finalizers", ()))
        for policy, word in (("Foreground", FOREGROUND), ("Orphan", ORPHAN)):
            if options.propagation == policy and word not in finalizers:
                finalizers.append(word)
                meta["finalizers"] = finalizers
        grace = _grace(resource, obj, options)
        if "deletionTimestamp" not in meta:
            if meta.get("generation"):
                meta["generation"] += 1
        elif grace >= (meta.get("deletionGracePeriodSeconds") or 0):
            return after
        meta["deletionTimestamp"] = self._writer.now(ahead=grace)
        meta["deletionGracePeriodSeconds"] = grace
        if resource.qualified == "namespaces":
            after["status"]["phase"] = "Terminating"
        return after


def _grace(resource: Resource, obj: Obj, options: DeleteOptions) -> int:
    """Return the grace period; only a pod that a kubelet may be running gets one."""
    if resource.qualified != "pods":
        return 0
    spec, phase = obj["spec"], obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in _TERMINAL:
        return 0
    if options.grace is not None:
        return options.grace if options.grace >= 0 else 1
    return int(spec.get("terminationGracePeriodSeconds") or _DEFAULT_GRACE_S)
