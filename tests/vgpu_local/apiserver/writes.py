"""How objects come, change and go: one pipeline for every kind and every way of writing.

A write is prepared on a copy, split between spec and status, pruned, defaulted, admitted,
validated, and only then stored; where nothing awaited in between, nothing can have moved. Where
admission was asked, a copy that went stale is prepared again, unless the caller named a version.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from vgpu_local.apiserver import builtin, crd, errors, metadata, schema
from vgpu_local.apiserver.admission import Admission, Attempt
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Obj, Registry, Resource
from vgpu_local.apiserver.ownership import Manager, Owners, after_update, read, shown
from vgpu_local.apiserver.storage import Store, Stored
from vgpu_local.apiserver.structure import root

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
_TRIES = 10


@dataclass(slots=True)
class Call:
    """Who writes and how, from the request's parameters; `warnings` become headers."""

    manager: str = "unknown"
    user: str = "kubernetes-admin"
    dry_run: bool = False
    field_validation: str = "Warn"
    force: bool = False
    operation: str = "Update"
    from_patch: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change wants the object to become, and its owners where the change decided them."""

    obj: Obj
    owners: Owners | None = None


Change = Callable[[Stored], Draft]


class Writer:
    """Creates and changes objects."""

    def __init__(
        self, store: Store, registry: Registry, admission: Admission, *, clock: Callable[[], float]
    ) -> None:
        self.store = store
        self.registry = registry
        self.admission = admission
        self._clock = clock

    def now(self, *, ahead: int = 0) -> str:
        """The time in RFC 3339, in whole seconds, `ahead` seconds from now."""
        moment = dt.datetime.fromtimestamp(self._clock() + ahead, dt.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def current(self, resource: Resource, namespace: str, name: str) -> Stored:
        """The stored object.

        Raises:
            StatusError: 404.
        """
        stored = self.store.table(resource).get(namespace, name)
        if stored is None:
            raise errors.not_found(resource, name)
        return stored

    async def create(
        self,
        resource: Resource,
        namespace: str,
        obj: Obj,
        call: Call,
        *,
        owners: Owners | None = None,
    ) -> Stored:
        """Store a new object; `obj` is taken over.

        Raises:
            StatusError: 400, 404 (namespace), 409, 422, or what a webhook says.
        """
        self._identify(resource, namespace, obj)
        self._namespace_accepts(resource, namespace)
        metadata.prepare_new(resource, obj, namespace, self.now())
        if resource.has_status and (resource.custom or resource.plural == "pods"):
            obj.pop("status", None)
        given = obj["metadata"].pop("managedFields", None)
        self._shape(resource, obj, call)
        name = obj["metadata"].get("name", "")
        obj = await self._mutated(resource, "", "CREATE", namespace, name, obj, None, call)
        self._validate(resource, obj, None)
        await self._admit(resource, "", "CREATE", namespace, name, obj, None, call)
        if self.store.table(resource).get(namespace, name) is not None:
            raise errors.already_exists(resource, name)
        if owners is None:
            owners = self._owned({}, given, resource, "", {}, obj, call)
        return self._put(resource, obj, owners, call)

    async def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        change: Change,
        call: Call,
        *,
        version_required: bool = False,
    ) -> Stored:
        """Turn the current object into what `change` makes of it.

        `change` gets the current object and returns a copy of its own, changed; it is called again
        when the object moved while webhooks were asked. With `version_required` an update that
        names no resourceVersion is refused.

        Raises:
            StatusError: 404, 409, 422, or what a webhook says.
        """
        for _ in range(_TRIES):
            before = self.current(resource, namespace, name)
            draft = change(before)
            after, given = draft.obj, metadata.of(draft.obj).pop("managedFields", None)
            versioned = self._check_identity(resource, namespace, before, after, version_required)
            metadata.keep_server_fields(before.obj, after)
            after = _split(resource, subresource, before.obj, after)
            self._shape(resource, after, call)
            after = await self._mutated(
                resource, subresource, "UPDATE", namespace, name, after, before.obj, call
            )
            self._validate(resource, after, before.obj)
            await self._admit(
                resource, subresource, "UPDATE", namespace, name, after, before.obj, call
            )
            if self.store.table(resource).get(namespace, name) is before:
                owners = draft.owners
                if owners is None:
                    owners = self._owned(
                        before.owners, given, resource, subresource, before.obj, after, call
                    )
                return self._replace(resource, before, after, owners, call)
            if versioned:
                raise errors.stale(resource, name)
        raise errors.stale(resource, name)

    def _identify(self, resource: Resource, namespace: str, obj: Obj) -> None:
        given = metadata.of(obj)
        for key, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if key not in obj and resource.custom:
                raise errors.bad_request(f"Object '{key.title()}' is missing in the body")
            if obj.setdefault(key, wanted) != wanted:
                raise errors.bad_request(
                    f"the API version in the data ({obj.get('apiVersion')}, {obj.get('kind')}) does"
                    f" not match the expected API version ({resource.api_version}, {resource.kind})"
                )
        if resource.namespaced and given.get("namespace", namespace) not in (namespace, ""):
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )

    def _namespace_accepts(self, resource: Resource, namespace: str) -> None:
        if not resource.namespaced:
            return
        space = self.current(self.registry.get("namespaces"), "", namespace).obj
        if "deletionTimestamp" in space["metadata"]:
            raise errors.forbidden(
                resource,
                "",
                f"unable to create new content in namespace {namespace} because it is being"
                " terminated",
            )

    def _check_identity(
        self, resource: Resource, namespace: str, before: Stored, after: Obj, version_required: bool
    ) -> bool:
        """Whether the caller named the version it changes."""
        old = before.obj["metadata"]
        name = old["name"]
        self._identify(resource, namespace, after)
        new = after["metadata"]
        if new.get("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({new['name']}) does not match the name on the URL"
                f" ({name})"
            )
        if new.get("uid", old["uid"]) != old["uid"]:
            raise uid_mismatch(resource, name, new["uid"], old["uid"])
        version = new.get("resourceVersion") or ""
        if version and version != old["resourceVersion"]:
            raise errors.stale(resource, name)
        if not version and version_required:
            text = "Invalid value: 0x0: must be specified for an update"
            cause = Cause("metadata.resourceVersion", "FieldValueInvalid", text)
            raise errors.invalid(resource, name, [cause])
        return bool(version)

    def _shape(self, resource: Resource, obj: Obj, call: Call) -> None:
        """Prune, default and normalise in place."""
        if resource.schema is not None:
            unknown: list[str] | None = None if call.field_validation == "Ignore" else []
            schema.prune(obj, resource.schema, unknown=unknown)
            if unknown:
                self._unknown_fields(resource, obj, unknown, call)
            schema.fill_defaults(obj, resource.schema)
        elif resource.qualified == CRDS:
            crd.check(resource, obj)
            crd.established(obj, self.now())
        else:
            builtin.normalise(resource, obj)

    def _unknown_fields(self, resource: Resource, obj: Obj, unknown: list[str], call: Call) -> None:
        sentences = [f'unknown field "{path}"' for path in unknown]
        if call.field_validation == "Warn":
            call.warnings += [text for text in sentences if text not in call.warnings]
            return
        text = f"strict decoding error: {', '.join(sentences)}"
        if call.from_patch:
            cause = Cause("patch", "FieldValueInvalid", f'Invalid value: "": {text}')
            raise errors.invalid(resource, obj["metadata"].get("name", ""), [cause])
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a'
            f" {resource.kind}: {text}"
        )

    async def _mutated(
        self,
        resource: Resource,
        subresource: str,
        operation: str,
        namespace: str,
        name: str,
        obj: Obj,
        old: Obj | None,
        call: Call,
    ) -> Obj:
        attempt = Attempt(
            resource, subresource, operation, namespace, name, obj, old, call.user, call.dry_run
        )
        changed = await self.admission.mutate(attempt, call.warnings)
        if changed is None:
            return obj
        if old is not None:
            metadata.keep_server_fields(old, changed)
            changed = _split(resource, subresource, old, changed)
        metadata.of(changed)
        self._shape(resource, changed, Call(field_validation="Ignore"))
        return changed

    async def _admit(
        self,
        resource: Resource,
        subresource: str,
        operation: str,
        namespace: str,
        name: str,
        obj: Obj | None,
        old: Obj | None,
        call: Call,
    ) -> None:
        attempt = Attempt(
            resource, subresource, operation, namespace, name, obj, old, call.user, call.dry_run
        )
        await self.admission.validate(attempt, call.warnings)

    def _validate(self, resource: Resource, obj: Obj, before: Obj | None) -> None:
        found = metadata.causes(resource, obj)
        if before is not None:
            found += metadata.new_finalizers(before, obj)
        if resource.schema is not None:
            found += schema.violations(obj, resource.schema)
        found += builtin.causes(resource, obj, before)
        if found:
            name = obj["metadata"].get("name") or ""
            raise errors.invalid(resource, name, found)

    def _owned(
        self,
        owners: Owners,
        given: object,
        resource: Resource,
        subresource: str,
        before: Obj,
        after: Obj,
        call: Call,
    ) -> Owners:
        if isinstance(given, list) and given != before.get("metadata", {}).get("managedFields"):
            owners = read(given)
        place = root(resource.schema if resource.custom else None)
        manager = Manager(call.manager, "Update", subresource)
        return after_update(owners, manager, before, after, place, self.now())

    def _replace(
        self, resource: Resource, before: Stored, after: Obj, owners: Owners, call: Call
    ) -> Stored:
        if _same(before.obj, after) and owners == before.owners:
            return before  # nothing changed: no new version, no event
        if resource.generation and _spec_changed(resource, before.obj, after):
            after["metadata"]["generation"] = before.obj["metadata"].get("generation", 0) + 1
        if finished(resource, after) and not call.dry_run:
            return self.store.remove(resource, before, last=after)
        return self._put(resource, after, owners, call)

    def _put(self, resource: Resource, obj: Obj, owners: Owners, call: Call) -> Stored:
        fields = shown(owners, resource.api_version)
        if fields is not None:
            obj["metadata"]["managedFields"] = fields
        if call.dry_run:
            return Stored(obj, orjson.dumps(obj), self.store.revision, owners)
        return self.store.put(resource, obj, owners)


def uid_mismatch(
    resource: Resource, name: str, wanted: str, actual: str, *, subresource: str = ""
) -> errors.StatusError:
    """409: the object of that name is another one than the caller means."""
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
    return errors.conflict(resource, name, why, subresource=subresource)


def finished(resource: Resource, obj: Obj) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if resource.qualified == "namespaces":
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _split(resource: Resource, subresource: str, before: Obj, after: Obj) -> Obj:
    """Keep what this way of writing may not touch: status on a plain write, the rest on /status."""
    if subresource == "status":
        kept = orjson.loads(orjson.dumps(before))
        if "status" in after:
            kept["status"] = after["status"]
        else:
            kept.pop("status", None)
        if not resource.custom:  # the kubelet labels and annotates through status
            for key in ("labels", "annotations"):
                if key in after["metadata"]:
                    kept["metadata"][key] = after["metadata"][key]
                else:
                    kept["metadata"].pop(key, None)
        after = kept
    elif resource.has_status and resource.qualified != CRDS:
        if "status" in before:
            after["status"] = orjson.loads(orjson.dumps(before["status"]))
        else:
            after.pop("status", None)
    after["metadata"].pop("managedFields", None)
    return after


def _same(before: Obj, after: Obj) -> bool:
    if {key: part for key, part in before.items() if key != "metadata"} != {
        key: part for key, part in after.items() if key != "metadata"
    }:
        return False
    ignored = ("managedFields", "resourceVersion")
    old, new = (
        {key: part for key, part in obj["metadata"].items() if key not in ignored}
        for obj in (before, after)
    )
    return old == new


def _spec_changed(resource: Resource, before: Obj, after: Obj) -> bool:
    ignored = {"metadata", "status"} if resource.has_status else {"metadata"}
    return {key: part for key, part in before.items() if key not in ignored} != {
        key: part for key, part in after.items() if key not in ignored
    }
