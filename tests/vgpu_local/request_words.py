"""Reads verb, resource and name of an API request from its method and URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ON_NAMESPACE = frozenset({"status", "finalize"})
_VERB_OF_OBJECT = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERB_OF_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_TRUE = frozenset({"1", "true", "True"})


@dataclass(frozen=True, slots=True)
class Words:
    """A request in the terms of `Fault`.

    Attributes:
        verb: get, list, watch, create, update, patch, delete or deletecollection.
        resource: Such as `pods`, `pods/binding` or `vgpuclaims.vgpu.dev/status`.
        name: The object's name; "" for a collection.
    """

    verb: str
    resource: str
    name: str


def words_of(method: str, path: str, query: Mapping[str, str]) -> Words | None:
    """Return the terms of a request, or None if it is about no object (discovery, health)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _ON_NAMESPACE:
        rest = rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    resource = f"{plural}.{group}" if group else plural
    if subresource:
        resource = f"{resource}/{subresource}"
    if subresource and method == "POST":
        verb: str | None = "create"
    else:
        verb = (_VERB_OF_OBJECT if name else _VERB_OF_COLLECTION).get(method)
    if method == "GET" and query.get("watch") in _TRUE:
        verb = "watch"
    return Words(verb, resource, name) if verb else None
