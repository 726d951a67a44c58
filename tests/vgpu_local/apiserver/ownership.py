"""Ownership of fields, by which server-side apply merges, removes and refuses.

Every write is attributed to its field manager: an apply owns what it sent, any other write owns
the leaves that it changed. `metadata.managedFields` is shown once the object is applied;
before that it has no reader and would double every object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from vgpu_local.apiserver.kinds import Obj
from vgpu_local.apiserver.structure import Place, key_of

Path = tuple[str, ...]
"""Elements as fieldsV1 writes them: `f:spec`, `k:{"type":"Ready"}`, `v:"name"`."""

_UNOWNED = frozenset({"apiVersion", "kind"})
_UNOWNED_METADATA = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "generateName",
        "selfLink",
    }
)


@dataclass(frozen=True, slots=True)
class Manager:
    """A writer: `operation` is `Apply` or `Update`."""

    name: str
    operation: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The fields of one manager, and the time of its last write (RFC 3339)."""

    paths: frozenset[Path]
    time: str


Owners = Mapping[Manager, Share]


def leaves(obj: Obj, place: Place) -> dict[Path, Any]:
    """Return each leaf of an object with its value, and each keyed item, if it has an owner."""
    found: dict[Path, Any] = {}
    for key, value in obj.items():
        if key in _UNOWNED:
            continue
        below = place.child(key)
        if key == "metadata" and isinstance(value, dict):
            for name, part in value.items():
                if name not in _UNOWNED_METADATA:
                    _collect(part, below.child(name), ("f:metadata", f"f:{name}"), found)
            continue
        _collect(value, below, (f"f:{key}",), found)
    return found


def _collect(value: Any, place: Place, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and not place.is_atomic_map():
        for key, part in value.items():
            _collect(part, place.child(key), (*path, f"f:{key}"), found)
    elif isinstance(value, list) and (keys := place.list_keys()):
        item_place = place.item()
        for item in value:
            identity = key_of(item, keys, place)
            if identity is None:
                found[path] = value
                return
            here = (*path, keyed(keys, identity))
            found[here] = ...
            for key, part in item.items():
                _collect(part, item_place.child(key), (*here, f"f:{key}"), found)
    elif isinstance(value, list) and place.is_set():
        for item in value:
            found[*path, f"v:{orjson.dumps(item).decode()}"] = ...
    else:
        found[path] = value


def keyed(keys: tuple[str, ...], identity: tuple[str, ...]) -> str:
    """Return the path element of a keyed list's item: `k:{"type":"Ready"}`."""
    pairs = sorted(zip(keys, identity, strict=True))
    return "k:{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"


def after_update(
    owners: Owners, manager: Manager, before: Obj, after: Obj, place: Place, time: str
) -> Owners:
    """Return the owners after `manager` changed `before` into `after` without an apply."""
    old_part, new_part = _differing(before, after)
    old, new = leaves(old_part, place), leaves(new_part, place)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    gone = old.keys() - new.keys()
    if not changed and not gone:
        return owners
    taken = changed | gone
    result: dict[Manager, Share] = {}
    for owner, share in owners.items():
        kept = share.paths - taken
        if owner == manager:
            changed |= kept
        elif kept:
            result[owner] = Share(kept, share.time) if len(kept) < len(share.paths) else share
    if changed:
        result[manager] = Share(frozenset(changed), time)
    return result


def _differing(before: Obj, after: Obj) -> tuple[Obj, Obj]:
    """Return both objects without the top-level parts in which they are equal."""
    names = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return (
        {key: before[key] for key in names if key in before},
        {key: after[key] for key in names if key in after},
    )


def shown(owners: Owners, api_version: str) -> list[Obj] | None:
    """Return `metadata.managedFields`, or None before the first apply."""
    if not any(owner.operation == "Apply" for owner in owners):
        return None
    entries = []
    for owner, share in owners.items():
        entry: Obj = {
            "manager": owner.name,
            "operation": owner.operation,
            "apiVersion": api_version,
            "time": share.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(share.paths),
        }
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append(entry)
    return entries


def read(managed_fields: Iterable[Any]) -> Owners:
    """Return the owners that a client wrote into `metadata.managedFields`; `[{}]` means none."""
    owners: dict[Manager, Share] = {}
    for entry in managed_fields:
        if isinstance(entry, dict) and entry.get("manager"):
            paths: set[Path] = set()
            _flatten(entry.get("fieldsV1") or {}, (), paths)
            manager = Manager(
                entry["manager"], entry.get("operation", "Update"), entry.get("subresource", "")
            )
            owners[manager] = Share(frozenset(paths), entry.get("time", ""))
    return owners


def _tree(paths: Iterable[Path]) -> Obj:
    tree: Obj = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return tree


def _flatten(tree: Obj, path: Path, paths: set[Path]) -> None:
    if path and (not tree or path[-1].startswith("k:")):
        paths.add(path)
    for element, below in tree.items():
        if element != ".":
            _flatten(below, (*path, element), paths)


def dotted(path: Path) -> str:
    """Return a path as conflicts name it: `.status.conditions[type="Ready"].reason`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            pairs = orjson.loads(rest).items()
            text += f"[{','.join(f'{k}={orjson.dumps(v).decode()}' for k, v in pairs)}]"
        else:
            text += f"[={rest}]"
    return text
