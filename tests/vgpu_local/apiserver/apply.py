"""Server-side apply: merges a manager's fields into the live object, or reports conflicts.

The rules are those of structured merge. A manager owns exactly the fields that it sends. A field
that it sent before and no longer sends is removed, unless another manager owns it too. A different
value for another manager's field is a conflict unless the apply is forced.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import orjson

from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.ownership import (
    Manager,
    Owners,
    Path,
    Share,
    dotted,
    keyed,
    leaves,
)
from vgpu_local.apiserver.structure import Place, key_of, root

_UNKNOWN_WRITER = Manager("before-first-apply", "Update")
"""The owner of an object whose owners are unknown when it is applied."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The merged object and its owners."""

    obj: Obj
    owners: Owners


def apply(
    resource: Resource,
    live: Obj,
    owners: Owners,
    wanted: Obj,
    *,
    manager: Manager,
    force: bool,
    time: str,
) -> Applied:
    """Merge `wanted` into a copy of `live`.

    Raises:
        StatusError: 409 naming every field that another manager owns with another value.
    """
    place = root(resource.schema if resource.custom else None)
    asked = leaves(wanted, place)
    current = leaves(live, place)
    if current and not owners:
        owners = {_UNKNOWN_WRITER: Share(frozenset(current), time)}
    clashes: list[tuple[Manager, Path]] = []
    differing = {
        path for path, value in asked.items() if path in current and current[path] != value
    }
    for owner, share in owners.items():
        if owner != manager:
            clashes += [(owner, path) for path in sorted(differing & share.paths)]
    if clashes and not force:
        raise _conflict(resource, clashes)

    merged = orjson.loads(orjson.dumps(live))
    _merge(merged, wanted, place)
    before = owners[manager].paths if manager in owners else frozenset()
    others: dict[Manager, Share] = {}
    for owner, share in owners.items():
        if owner != manager:
            left = share.paths - differing
            if left:
                others[owner] = Share(left, share.time)
    given_up = before - asked.keys()
    if given_up:
        kept = _kept(frozenset(asked).union(*(share.paths for share in others.values())))
        for path in sorted(given_up, key=len):  # remove an item before its fields
            if path not in kept and not _names_item(path):
                _remove(merged, path, place, kept)
        present = leaves(merged, place).keys()
        others = {
            owner: Share(share.paths & present, share.time)
            for owner, share in others.items()
            if share.paths & present
        }
    mine = Share(frozenset(asked), time)
    if manager in owners and owners[manager].paths == mine.paths and merged == live:
        mine = owners[manager]  # nothing moved, so the time stamp does not either
    return Applied(merged, {**others, manager: mine})


def _kept(owned: Set[Path]) -> set[Path]:
    """Return every path that is owned or leads to one.

    A field of a keyed item counts only if the item itself has an owner: a manager that merely
    changed a field of another's item loses it with the item.
    """
    kept: set[Path] = set()
    for path in owned:
        prefixes = [path[:length] for length in range(1, len(path) + 1)]
        if all(prefix in owned for prefix in prefixes if prefix[-1].startswith("k:")):
            kept.update(prefixes)
    return kept


def _merge(target: Obj, wanted: Obj, place: Place) -> None:
    for key, value in wanted.items():
        target[key] = _merged(target.get(key), value, place.child(key))


def _merged(old: Any, new: Any, place: Place) -> Any:
    if isinstance(new, dict) and isinstance(old, dict) and not place.is_atomic_map():
        _merge(old, new, place)
        return old
    if isinstance(new, list) and isinstance(old, list):
        keys = place.list_keys()
        if keys:
            return _merged_items(old, new, keys, place)
        if place.is_set():
            return old + [item for item in new if item not in old]
    return new


def _merged_items(old: list[Any], new: list[Any], keys: tuple[str, ...], place: Place) -> list[Any]:
    item_place = place.item()
    index = {key_of(item, keys, place): at for at, item in enumerate(old)}
    for item in new:
        at = index.get(key_of(item, keys, place))
        if at is None or not isinstance(old[at], dict) or not isinstance(item, dict):
            old.append(item)
        else:
            _merge(old[at], item, item_place)
    return old


def _remove(obj: Obj, path: Path, place: Place, kept: Set[Path]) -> None:
    """Remove the value at `path` from `obj`, and parents that become empty and unowned."""
    trail: list[tuple[Any, Any]] = []
    node: Any = obj
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            if not isinstance(node, dict) or rest not in node:
                return
            trail.append((node, rest))
            place = place.child(rest)
            node = node[rest]
            continue
        if not isinstance(node, list):
            return
        at = _position(node, element, place)
        if at is None:
            return
        trail.append((node, at))
        node = node[at]
        place = place.item()
    holder, at = trail.pop()
    del holder[at]
    while trail and not holder and path[: len(trail)] not in kept:
        holder, at = trail.pop()
        if isinstance(holder, list):
            return
        del holder[at]


def _names_item(path: Path) -> bool:
    """Return True if the path is a key of a keyed item, which is removed only with its item."""
    if len(path) < 2 or not path[-2].startswith("k:"):
        return False
    return path[-1].removeprefix("f:") in orjson.loads(path[-2][2:])


def _position(items: list[Any], element: str, place: Place) -> int | None:
    if element.startswith("v:"):
        value = orjson.loads(element[2:])
        return items.index(value) if value in items else None
    keys = place.list_keys()
    for at, item in enumerate(items):
        identity = key_of(item, keys, place)
        if identity is not None and keyed(keys, identity) == element:
            return at
    return None


def _conflict(resource: Resource, clashes: list[tuple[Manager, Path]]) -> StatusError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{owner.name}"'
            + (f' with subresource "{owner.subresource}"' if owner.subresource else "")
            + (f" using {resource.api_version}" if owner.operation == "Update" else ""),
            "field": dotted(path),
        }
        for owner, path in clashes
    ]
    plural = "conflict" if len(causes) == 1 else "conflicts"
    text = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return StatusError(
        409,
        "Conflict",
        f"Apply failed with {len(causes)} {plural}: {text}",
        details={"causes": causes},
    )
