"""All parts of one cluster put together: the store, the rules around it, and the verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from vgpu_local.apiserver import crd, errors, metadata, patch, pods, schema
from vgpu_local.apiserver.admission import Admission
from vgpu_local.apiserver.apply import apply
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.deletes import DeleteOptions, Deleter, Deletion
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.expiry import Expiry
from vgpu_local.apiserver.garbage import Collector
from vgpu_local.apiserver.kinds import CRDS, Obj, Registry, Resource
from vgpu_local.apiserver.ownership import Manager
from vgpu_local.apiserver.reads import Reader
from vgpu_local.apiserver.requests import Target
from vgpu_local.apiserver.selectors import Match
from vgpu_local.apiserver.storage import Change as StoreChange
from vgpu_local.apiserver.storage import Store, Stored
from vgpu_local.apiserver.structure import root
from vgpu_local.apiserver.watches import Watches
from vgpu_local.apiserver.writes import Draft, Writer

FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Cluster:
    """One cluster's state and verbs.

    Args:
        services: The addresses behind webhooks' service references; see `Admission`.
        clock: Returns the seconds since the epoch.
        remembered: How many changes per kind are kept for watches; starting before them gets a 410.
        history_kept: How many of the latest writes are kept for checkers; None for all.
        event_ttl_s: How long an event is kept after its last write.
        bookmark_every: The seconds between bookmarks.
    """

    def __init__(
        self,
        *,
        services: Mapping[str, str],
        clock: Callable[[], float],
        remembered: int,
        history_kept: int | None,
        event_ttl_s: float,
        bookmark_every: float,
    ) -> None:
        self.store = Store(remembered=remembered, history_kept=history_kept)
        self.registry = Registry()
        self.admission = Admission(self.store, self.registry, services)
        self.writer = Writer(self.store, self.registry, self.admission, clock=clock)
        self.deleter = Deleter(self.writer)
        self.collector = Collector(self.writer, self.deleter, self.registry)
        self.expiry = Expiry(self.store, ttl_s=event_ttl_s, clock=clock)
        self.reader = Reader(self.store, clock=clock)
        self.watches = Watches(self.store, bookmark_every=bookmark_every)
        self.store.observers += [
            self._serve_kind,
            self.collector.observe,
            self.expiry.observe,
        ]

    async def begin(self) -> None:
        """Create the namespaces that every cluster has."""
        namespaces = self.registry.get("namespaces")
        for name in FIRST_NAMESPACES:
            await self.writer.create(namespaces, "", {"metadata": {"name": name}}, Call())

    async def create(self, target: Target, obj: Obj, call: Call) -> Stored:
        """Handle POST to a collection."""
        return await self.writer.create(target.resource, target.space, obj, call)

    async def act(self, target: Target, body: Obj, call: Call) -> None:
        """Handle POST to a subresource: binding or eviction.

        Raises:
            StatusError: the action's, or 405.
        """
        if target.subresource == "binding":
            await pods.bind(self.writer, target.resource, target.space, target.name, body, call)
        elif target.subresource == "eviction":
            await pods.evict(self.deleter, target.resource, target.space, target.name, body, call)
        else:
            raise errors.StatusError(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )

    async def update(self, target: Target, obj: Obj, call: Call) -> tuple[Stored, bool]:
        """Handle PUT; return the object and True if it was created."""
        resource = target.resource
        absent = self.store.table(resource).get(target.space, target.name) is None
        if absent and resource.created_by_update and not target.subresource:
            return await self.writer.create(resource, target.space, obj, call), True
        stored = await self.writer.change(
            target.resource,
            target.space,
            target.name,
            target.subresource,
            lambda _: Draft(orjson.loads(orjson.dumps(obj))),
            call,
            version_required=target.resource.needs_version,
        )
        return stored, False

    async def patch(
        self, target: Target, media_type: str, body: Any, call: Call, *, manager_given: bool
    ) -> tuple[Stored, bool]:
        """Handle PATCH of any kind; return the object and True if it was created.

        Raises:
            StatusError: 415 for a patch type that the kind does not take.
        """
        resource = target.resource
        if media_type == APPLY:
            if not manager_given:
                text = "Required value: is required for apply patch"
                cause = Cause("fieldManager", "FieldValueRequired", text)
                raise errors.invalid(_PATCH_OPTIONS, "", [cause])
            return await self._apply(target, body, call)
        if media_type == MERGE:
            change = _changing(lambda obj: patch.merge_patch(obj, body))
        elif media_type == JSON_PATCH:
            change = _changing(lambda obj: patch.json_patch(obj, body))
        elif media_type == STRATEGIC and not resource.custom:
            place = root(None)
            change = _changing(lambda obj: patch.strategic_merge(obj, body, place))
        else:
            accepted = [JSON_PATCH, MERGE, APPLY] + ([] if resource.custom else [STRATEGIC])
            raise errors.StatusError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include:"
                f" {', '.join(accepted)}",
            )
        if not isinstance(body, dict | list):
            raise errors.bad_request("the patch is neither an object nor a list")
        stored = await self.writer.change(
            resource, target.space, target.name, target.subresource, change, call
        )
        return stored, False

    async def delete(
        self, target: Target, body: Any, query: dict[str, str], call: Call
    ) -> Deletion:
        """Handle DELETE of one object."""
        options = DeleteOptions.of(body, query)
        return await self.deleter.delete(target.resource, target.space, target.name, options, call)

    async def delete_collection(
        self, target: Target, match: Match, body: Any, query: dict[str, str], call: Call
    ) -> list[Stored]:
        """Handle DELETE of a collection."""
        options = DeleteOptions.of(body, query)
        return await self.deleter.delete_collection(
            target.resource, target.namespace, match, options, call
        )

    async def _apply(self, target: Target, wanted: Any, call: Call) -> tuple[Stored, bool]:
        resource = target.resource
        if not isinstance(wanted, dict):
            raise errors.bad_request("the apply patch is not an object")
        metadata.of(wanted)
        wanted["metadata"].pop("managedFields", None)
        manager = Manager(call.manager, "Apply", target.subresource)
        table = self.store.table(resource)
        if target.subresource == "status":
            wanted = {key: part for key, part in wanted.items() if key != "spec"}
        elif resource.has_status and resource.qualified != CRDS:
            wanted = {key: part for key, part in wanted.items() if key != "status"}
        if resource.schema is not None:
            _refuse_undeclared(resource, wanted)
        if table.get(target.space, target.name) is None and not target.subresource:
            if not resource.custom and not wanted["metadata"].get("name"):
                raise errors.bad_request(
                    f"the name of the object ({target.name} based on URL) was undeterminable:"
                    " name must be provided"
                )
            wanted["metadata"]["name"] = target.name
            applied = apply(
                resource, {}, {}, wanted, manager=manager, force=True, time=self.writer.now()
            )
            made = await self.writer.create(
                resource, target.space, applied.obj, call, owners=applied.owners
            )
            return made, True

        def change(stored: Stored) -> Draft:
            applied = apply(
                resource,
                stored.obj,
                stored.owners,
                wanted,
                manager=manager,
                force=call.force,
                time=self.writer.now(),
            )
            return Draft(applied.obj, applied.owners)

        stored = await self.writer.change(
            resource,
            target.space,
            target.name,
            target.subresource,
            change,
            call,
        )
        return stored, False

    def _serve_kind(self, resource: Resource, change: StoreChange) -> None:
        """Serve or stop serving a kind, after its CRD was written."""
        if resource.qualified != CRDS:
            return
        defined = crd.resource_of(change.after.obj)
        if change.type == "DELETED":
            self.registry.remove(defined.group, defined.plural)
        else:
            self.registry.add(defined)


_PATCH_OPTIONS = Resource("meta.k8s.io", "v1", "patchoptions", "PatchOptions", False)


def _refuse_undeclared(resource: Resource, wanted: Obj) -> None:
    """Refuse an apply with fields that its kind's schema does not know.

    Raises:
        StatusError: 500, as the real server has it.
    """
    unknown: list[str] = []
    schema.prune(wanted, resource.schema or {}, unknown=unknown)
    if unknown:
        meta = wanted["metadata"]
        raise errors.StatusError(
            500,
            "",
            f"failed to create typed patch object ({meta.get('namespace', '')}/"
            f"{meta.get('name', '')}; {resource.api_version}, Kind={resource.kind}):"
            f" .{unknown[0]}: field not declared in schema",
        )


def _changing(edit: Callable[[Obj], Any]) -> Callable[[Stored], Draft]:
    """Return a change that edits a copy of the current object; the edit must leave an object."""

    def change(stored: Stored) -> Draft:
        edited = edit(orjson.loads(stored.raw))
        if not isinstance(edited, dict):
            raise errors.bad_request("the patched document is not an object")
        return Draft(edited)

    return change
