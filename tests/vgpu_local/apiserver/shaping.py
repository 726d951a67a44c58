"""The steps of a write, which shape an object before it is stored, or refuse it.

The writer calls them in its own order, with the parts of call and objects that each of them needs.
"""

from __future__ import annotations

import orjson

from vgpu_local.apiserver import builtin, crd, errors, metadata, schema
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import CRDS, Obj, Resource

_NOT_SPEC = frozenset({"metadata"})
_NOT_SPEC_NOR_STATUS = frozenset({"metadata", "status"})
_BY_SERVER = frozenset({"managedFields", "resourceVersion"})


def shape(resource: Resource, obj: Obj, call: Call, now: str) -> None:
    """Prune, default and normalise in place.

    Raises:
        StatusError: 400 or 422 for unknown fields under strict validation, for malformed
            quantities, for a CRD that cannot be served.
    """
    if resource.schema is not None:
        unknown: list[str] = []
        schema.prune(obj, resource.schema, unknown=unknown)
        if unknown and call.field_validation != "Ignore":
            _unknown_fields(resource, obj, unknown, call)
        schema.fill_defaults(obj, resource.schema)
    elif resource.qualified == CRDS:
        crd.check(resource, obj)
        crd.established(obj, now)
    else:
        builtin.normalise(resource, obj)


def validate(resource: Resource, subresource: str, obj: Obj, before: Obj | None) -> None:
    """Refuse what breaks the rules of metadata, of the schema or of the kind.

    Writes of a subresource follow its own rules: a Binding may change a pod's spec.

    Raises:
        StatusError: 422 with a cause for each fault.
    """
    found = metadata.causes(resource, obj)
    if before is not None:
        found += metadata.new_finalizers(before, obj)
    if resource.schema is not None:
        found += schema.violations(obj, resource.schema)
    found += builtin.causes(resource, obj, None if subresource else before)
    if found:
        raise errors.invalid(resource, obj["metadata"].get("name") or "", found)


def split(resource: Resource, subresource: str, before: Obj, after: Obj) -> Obj:
    """Restore the parts that a write may not change: status on a plain one, the rest on /status.

    A Binding is the server's own change, of spec, status and annotations together.
    """
    if subresource == "status":
        kept: Obj = orjson.loads(orjson.dumps(before))
        _copy(after, kept, "status")
        if not resource.custom:  # the kubelet writes labels and annotations through status
            for key in ("labels", "annotations"):
                _copy(after["metadata"], kept["metadata"], key)
        after = kept
    elif resource.has_status and resource.qualified != CRDS and subresource != "binding":
        _copy(before, after, "status")
    after["metadata"].pop("managedFields", None)
    return after


def _copy(source: Obj, target: Obj, key: str) -> None:
    if key in source:
        target[key] = orjson.loads(orjson.dumps(source[key]))
    else:
        target.pop(key, None)


def same(before: Obj, after: Obj) -> bool:
    """Return True if nothing has changed except the fields that the server itself writes."""
    if _without(before, _NOT_SPEC) != _without(after, _NOT_SPEC):
        return False
    return _without(before["metadata"], _BY_SERVER) == _without(after["metadata"], _BY_SERVER)


def spec_changed(resource: Resource, before: Obj, after: Obj) -> bool:
    """Return True if the generation must grow.

    It grows with every change outside metadata, and outside status if that is a subresource.
    """
    ignored = _NOT_SPEC_NOR_STATUS if resource.has_status else _NOT_SPEC
    return _without(before, ignored) != _without(after, ignored)


def finished(resource: Resource, obj: Obj) -> bool:
    """Return True if an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if resource.qualified == "namespaces":
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _without(obj: Obj, keys: frozenset[str]) -> Obj:
    return {key: part for key, part in obj.items() if key not in keys}


def _unknown_fields(resource: Resource, obj: Obj, unknown: list[str], call: Call) -> None:
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
