"""The three ways to patch an object: JSON merge patch, JSON patch, strategic merge patch.

Each works on a copy and returns the changed copy.
"""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.kinds import Obj
from vgpu_local.apiserver.structure import Place, key_of

_DIRECTIVE = "$patch"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


def merge_patch(target: Any, patch: Any) -> Any:
    """Merge by RFC 7386: objects merge, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge_patch(target.get(key), value)
    return target


def json_patch(target: Obj, operations: Any) -> Obj:
    """Apply a JSON patch (RFC 6902).

    Raises:
        StatusError: 400 for what is not a list, 422 for an operation that cannot be done.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("error decoding patch: it is not a list of operations")
    if not all(isinstance(each.get("path"), str) for each in operations):
        raise errors.bad_request("error decoding patch: path is not a string")
    try:
        patched: Obj = jsonpatch.JsonPatch(operations).apply(target, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise errors.patch_failed() from error
    return patched


def strategic_merge(target: Any, patch: Any, place: Place) -> Any:
    """Return a merge patch that knows keyed lists and the `$patch` directives."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if not isinstance(target, dict):
        target = {}
    retained = patch.get(_RETAIN)
    if isinstance(retained, list):
        target = {key: value for key, value in target.items() if key in retained}
    orders: dict[str, Any] = {}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN):
            continue
        if key.startswith(_ORDER):
            orders[key.removeprefix(_ORDER)] = value
        elif key.startswith(_DELETE_PRIMITIVE):
            name = key.removeprefix(_DELETE_PRIMITIVE)
            target[name] = [item for item in target.get(name, []) if item not in value]
        elif value is None:
            target.pop(key, None)
        elif isinstance(value, list):
            target[key] = _strategic_list(target.get(key), value, place.child(key))
        else:
            target[key] = strategic_merge(target.get(key), value, place.child(key))
    for key, order in orders.items():
        if isinstance(target.get(key), list) and isinstance(order, list):
            target[key] = _ordered(target[key], order, place.child(key))
    return target


def _strategic_list(old: Any, patch: list[Any], place: Place) -> list[Any]:
    items: list[Any] = list(old) if isinstance(old, list) else []
    keys = place.list_keys()
    if not keys:
        if place.is_set():
            return items + [item for item in patch if item not in items]
        return patch
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [item for item in patch if item.get(_DIRECTIVE) != "replace"]
    for change in patch:
        identity = key_of(change, keys, place)
        at = next(
            (at for at, item in enumerate(items) if key_of(item, keys, place) == identity), None
        )
        if isinstance(change, dict) and change.get(_DIRECTIVE) == "delete":
            if at is not None:
                del items[at]
        elif at is None:
            items.append(strategic_merge({}, change, place.item()))
        else:
            items[at] = strategic_merge(items[at], change, place.item())
    return items


def _ordered(items: list[Any], order: list[Any], place: Place) -> list[Any]:
    """Return `items` in the patch's order; those that it does not name come last."""
    keys = place.list_keys()

    def identity(item: Any) -> Any:
        return key_of(item, keys, place) if keys else item

    wanted = [identity(item) for item in order]

    def rank(item: Any) -> int:
        mine = identity(item)
        return wanted.index(mine) if mine in wanted else len(wanted)

    return sorted(items, key=rank)
