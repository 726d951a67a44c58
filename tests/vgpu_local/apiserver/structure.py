"""Tells how lists and maps of an object merge: by key, as a set, or as a whole.

CRDs have it in their schema (`x-kubernetes-list-type`); for built-in kinds and for every object's
metadata it is a table by field name, which is enough for the kinds served here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from vgpu_local.apiserver.kinds import Obj

_BUILTIN_KEYS: dict[str, tuple[str, ...]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "versions": ("name",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
    "webhooks": ("name",),
}
_BUILTIN_SETS = frozenset({"finalizers"})
_KEY_DEFAULTS: dict[str, Any] = {"protocol": "TCP"}
_TOP = frozenset({"apiVersion", "kind", "metadata"})


@dataclass(frozen=True, slots=True)
class Place:
    """A position in an object: its schema, where there is one, and the field's name."""

    schema: Obj | None
    field: str = ""
    builtin: bool = False
    """The table of built-in names applies (metadata, and every field of a built-in kind)."""

    def child(self, key: str) -> Place:
        """Return the place of a field of this object."""
        if self.builtin:
            return Place(None, key, builtin=True)
        if self.field == "" and key in _TOP:
            return Place(None, key, builtin=True)
        schema = self.schema or {}
        below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        return Place(below if isinstance(below, dict) else None, key)

    def item(self) -> Place:
        """Return the place of this list's items."""
        if self.builtin:
            return Place(None, f"{self.field}[]", builtin=True)
        below = (self.schema or {}).get("items")
        return Place(below if isinstance(below, dict) else None, f"{self.field}[]")

    def list_keys(self) -> tuple[str, ...]:
        """Return the keys of a list of maps that merges by key; empty for other lists."""
        if self.builtin:
            if self.field == "ports":
                return ("containerPort", "protocol")
            return _BUILTIN_KEYS.get(self.field, ())
        schema = self.schema or {}
        if schema.get("x-kubernetes-list-type") == "map":
            return tuple(schema.get("x-kubernetes-list-map-keys", ()))
        return ()

    def is_set(self) -> bool:
        """Return True if this list is a set of scalars."""
        if self.builtin:
            return self.field in _BUILTIN_SETS
        return (self.schema or {}).get("x-kubernetes-list-type") == "set"

    def is_atomic_map(self) -> bool:
        """Return True if this object is replaced as a whole."""
        return (self.schema or {}).get("x-kubernetes-map-type") == "atomic"


def root(schema: Obj | None) -> Place:
    """Return the place of a whole object: a custom kind's schema, or None for a built-in kind."""
    return Place(schema, builtin=schema is None)


def key_of(item: Any, keys: tuple[str, ...], place: Place) -> tuple[str, ...] | None:
    """Return a keyed list item's identity, its keys as JSON; None if a key is absent.

    Absent keys take the field's default, as `protocol` of a port does.
    """
    if not isinstance(item, dict):
        return None
    properties = (place.schema or {}).get("items", {}).get("properties", {})
    identity = []
    for key in keys:
        value = item.get(key, properties.get(key, {}).get("default", _KEY_DEFAULTS.get(key)))
        if value is None:
            # Ports of a Service are keyed by `port`; the table knows the container's.
            value = item.get("port") if key == "containerPort" else None
        if value is None:
            return None
        identity.append(orjson.dumps(value).decode())
    return tuple(identity)
