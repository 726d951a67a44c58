"""Pydantic models as Kubernetes structural schemas.

Pydantic's JSON schema is not structural: references must be inlined, nulls dropped, constants made
enums, and what has no structural form (tagged unions, tuples, pattern properties) refused rather
than guessed. Source: Kubernetes, "Specifying a structural schema"; KEP-2876 for validations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from vgpu_api.errors import VgpuError

_DROPPED = frozenset({"title", "$defs", "discriminator", "examples"})
_REFUSED = (
    "oneOf",
    "allOf",
    "not",
    "prefixItems",
    "patternProperties",
    "propertyNames",
    "if",
)
_FORMATS = frozenset({"int32", "int64", "date-time", "byte"})


class NotStructural(VgpuError):
    """The model uses something that a structural schema cannot say."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path or 'schema'}: {what} has no structural form")


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema of a model, field names as on the wire.

    Raises:
        NotStructural: names the path of what cannot be expressed.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _walk(document, definitions=document.get("$defs", {}), path="", seen=())


def _walk(
    node: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str, seen: tuple[str, ...]
) -> dict[str, Any]:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in seen:
            raise NotStructural(path, f"recursion through {name}")
        # What stands beside a reference (a field's own description) wins over the definition's.
        beside = {key: value for key, value in node.items() if key != "$ref"}
        merged = {**definitions[name], **beside}
        return _walk(merged, definitions=definitions, path=path, seen=(*seen, name))
    if "anyOf" in node:
        return _any_of(node, definitions=definitions, path=path, seen=seen)
    for keyword in _REFUSED:
        if keyword in node:
            raise NotStructural(path, keyword)

    result: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value in (None, "")):
            continue
        if key == "const":
            result["enum"] = [value]
        elif key == "additionalProperties" and value is False:
            continue
        elif key == "additionalProperties" and isinstance(value, Mapping):
            result[key] = _walk(value, definitions=definitions, path=f"{path}.*", seen=seen)
        elif key == "properties":
            result[key] = {
                name: _walk(
                    child, definitions=definitions, path=f"{path}.{name}".lstrip("."), seen=seen
                )
                for name, child in value.items()
            }
        elif key == "items":
            result[key] = _walk(value, definitions=definitions, path=f"{path}[]", seen=seen)
            for list_key in node.get("x-kubernetes-list-map-keys", ()):
                # The keys of a list-map must be required or have a default, even an empty one.
                if list_key not in result[key].get("required", ()):
                    result[key]["properties"][list_key].setdefault("default", "")
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            result[key.replace("exclusiveM", "m")] = value
            result[key] = True
        elif key == "uniqueItems":
            raise NotStructural(path, "a set (use x-kubernetes-list-type: set)")
        elif key == "format" and value not in _FORMATS:
            continue
        else:
            result[key] = value
    if "type" not in result and "enum" in result:
        result["type"] = "string"
    if "type" not in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        raise NotStructural(path, "a value of any type")
    return result


def _any_of(
    node: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str, seen: tuple[str, ...]
) -> dict[str, Any]:
    """`X | None` is X; `int | str` is int-or-string; anything else has no structural form."""
    choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    if len(choices) == 1:
        return _walk({**choices[0], **beside}, definitions=definitions, path=path, seen=seen)
    if {choice.get("type") for choice in choices} == {"integer", "string"}:
        kept = {key: value for key, value in beside.items() if key == "description"}
        return {**kept, "x-kubernetes-int-or-string": True}
    raise NotStructural(path, "a union of types")
