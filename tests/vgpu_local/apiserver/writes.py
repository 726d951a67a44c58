"""Writes objects through one pipeline, for every kind and every way of writing.

A write is prepared on a copy, split between spec and status, pruned, defaulted, admitted,
validated, and only then stored; as long as nothing is awaited in between, no other write can come
between. If admission was asked, a copy that has become stale is prepared again; if its caller named
a version, it is refused at that point.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from vgpu_local.apiserver import errors, metadata, shaping
from vgpu_local.apiserver.admission import Admission, Attempt
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Obj, Registry, Resource
from vgpu_local.apiserver.ownership import Manager, Owners, after_update, read, shown
from vgpu_local.apiserver.storage import Store, Stored
from vgpu_local.apiserver.structure import root

_TRIES = 10
_AFTER_WEBHOOKS = Call(field_validation="Ignore")


@dataclass(frozen=True, slots=True)
class Draft:
    """The object that a change wants, and its field owners if the change decided them."""

    obj: Obj
    owners: Owners | None = None


Change = Callable[[Stored], Draft]
"""Gets the current object and returns a copy of its own, changed."""


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
        """Return the time in RFC 3339, in whole seconds, `ahead` seconds from now."""
        moment = dt.datetime.fromtimestamp(self._clock() + ahead, dt.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def current(self, resource: Resource, namespace: str, name: str) -> Stored:
        """Return the stored object.

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
            StatusError: 400, 404 (namespace), 409, 422, or a webhook's answer.
        """
        _identify(resource, namespace, obj)
        self._namespace_accepts(resource, namespace)
        metadata.prepare_new(resource, obj, namespace, self.now())
        if resource.has_status and (resource.custom or resource.plural == "pods"):
            obj.pop("status", None)
        given = obj["metadata"].pop("managedFields", None)
        shaping.shape(resource, obj, call, self.now())
        name = obj["metadata"].get("name", "")
        attempt = Attempt(resource, "", "CREATE", namespace, name, obj, None, call)
        obj = await self._admitted(attempt)
        if self.store.table(resource).get(namespace, name) is not None:
            raise errors.already_exists(resource, name)
        if owners is None:
            owners = self._owned({}, given, attempt, {}, obj)
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
        """Store the result of `change` on the current object.

        `change` is called again if the object has changed while webhooks were asked. With
        `version_required` an update that names no resourceVersion is refused.

        Raises:
            StatusError: 404, 409, 422, or a webhook's answer.
        """
        for _ in range(_TRIES):
            before = self.current(resource, namespace, name)
            draft = change(before)
            after, given = draft.obj, metadata.of(draft.obj).pop("managedFields", None)
            _check_identity(resource, namespace, before, after, version_required)
            _check_uid(resource, before, after, call)
            metadata.keep_server_fields(before.obj, after)
            after = shaping.split(resource, subresource, before.obj, after)
            shaping.shape(resource, after, call, self.now())
            attempt = Attempt(
                resource, subresource, "UPDATE", namespace, name, after, before.obj, call
            )
            after = await self._admitted(attempt)
            if self.store.table(resource).get(namespace, name) is before:
                owners = draft.owners
                if owners is None:
                    owners = self._owned(before.owners, given, attempt, before.obj, after)
                return self._replace(attempt, before, after, owners)
        raise errors.stale(resource, name)

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

    async def _admitted(self, attempt: Attempt) -> Obj:
        """Return the object after the mutating webhooks; it is valid, and no webhook denied it."""
        resource, obj, old = attempt.resource, attempt.obj, attempt.old
        assert obj is not None  # only deletions have no object
        changed = await self.admission.mutate(attempt)
        if changed is not None:
            obj = changed
            metadata.of(obj)
            if old is not None:
                metadata.keep_server_fields(old, obj)
                obj = shaping.split(resource, attempt.subresource, old, obj)
            shaping.shape(resource, obj, _AFTER_WEBHOOKS, self.now())
            attempt = replace(attempt, obj=obj)
        # A Binding may change fields of a pod that users may not change.
        shaping.validate(resource, attempt.subresource, obj, old)
        await self.admission.validate(attempt)
        return obj

    def _owned(
        self, owners: Owners, given: object, attempt: Attempt, before: Obj, after: Obj
    ) -> Owners:
        if isinstance(given, list) and given != before.get("metadata", {}).get("managedFields"):
            owners = read(given)
        resource = attempt.resource
        place = root(resource.schema if resource.custom else None)
        manager = Manager(attempt.call.manager, "Update", attempt.subresource)
        return after_update(owners, manager, before, after, place, self.now())

    def _replace(self, attempt: Attempt, before: Stored, after: Obj, owners: Owners) -> Stored:
        resource, subresource, call = attempt.resource, attempt.subresource, attempt.call
        if shaping.same(before.obj, after) and owners == before.owners:
            return before  # nothing changed: no new version, no event
        counted = resource.generation and subresource != "binding"
        if counted and shaping.spec_changed(resource, before.obj, after):
            after["metadata"]["generation"] = before.obj["metadata"].get("generation", 0) + 1
        if shaping.finished(resource, after) and not call.dry_run:
            return self.store.remove(resource, before, last=after)
        return self._put(resource, after, owners, call)

    def _put(self, resource: Resource, obj: Obj, owners: Owners, call: Call) -> Stored:
        fields = shown(owners, resource.api_version)
        if fields is not None:
            obj["metadata"]["managedFields"] = fields
        if call.dry_run:
            return Stored(obj, orjson.dumps(obj), self.store.revision, owners)
        return self.store.put(resource, obj, owners)


def uid_mismatch(resource: Resource, name: str, wanted: str, actual: str) -> errors.StatusError:
    """Return a 409, because the object of that name has another UID than the caller gave."""
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
    return errors.conflict(resource, name, why)


def _identify(resource: Resource, namespace: str, obj: Obj) -> None:
    """Check that the object has the kind and the namespace in the URL."""
    given = metadata.of(obj)
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if resource.custom:
        _identify_custom(resource, obj)
    elif kind not in (None, "", resource.kind) or version not in (None, "", resource.api_version):
        raise errors.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {resource.kind}'
        )
    else:
        obj["kind"], obj["apiVersion"] = resource.kind, resource.api_version
    if resource.namespaced and given.get("namespace", namespace) not in (namespace, ""):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _identify_custom(resource: Resource, obj: Obj) -> None:
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if not kind or not version:
        word = "apiVersion" if kind else "Kind"
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}):"
            f" Object '{word}' is missing"
        )
    if version != resource.api_version:
        raise errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({resource.api_version})"
        )
    if kind != resource.kind:
        text = f'Invalid value: "{kind}": must be {resource.kind}'
        name = obj["metadata"].get("name", "")
        raise errors.invalid(resource, name, [Cause("kind", "FieldValueInvalid", text)])


def _check_identity(
    resource: Resource, namespace: str, before: Stored, after: Obj, version_required: bool
) -> None:
    """Check that the caller means this object, and this version if it gives one."""
    old = before.obj["metadata"]
    name = old["name"]
    _identify(resource, namespace, after)
    new = after["metadata"]
    if new.get("name", name) != name:
        raise errors.bad_request(
            f"the name of the object ({new['name']}) does not match the name on the URL ({name})"
        )
    version = new.get("resourceVersion") or ""
    if version and version != old["resourceVersion"]:
        raise errors.stale(resource, name)
    if not version and version_required:
        text = "Invalid value: 0x0: must be specified for an update"
        cause = Cause("metadata.resourceVersion", "FieldValueInvalid", text)
        raise errors.invalid(resource, name, [cause])


def _check_uid(resource: Resource, before: Stored, after: Obj, call: Call) -> None:
    """Check that a UID, if sent, is the object's; a patch may not change it either."""
    name, uid = before.obj["metadata"]["name"], before.obj["metadata"]["uid"]
    given = after["metadata"].get("uid") or uid
    if given == uid:
        return
    if call.from_patch:
        text = f'Invalid value: "{given}": field is immutable'
        raise errors.invalid(resource, name, [Cause("metadata.uid", "FieldValueInvalid", text)])
    raise uid_mismatch(resource, name, given, uid)
