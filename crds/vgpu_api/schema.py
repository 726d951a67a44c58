"""Converts pydantic models to Kubernetes structural schemas.

Pydantic's JSON schema is not structural: references must be inlined, nulls dropped and constants
turned into enums. Models without a structural form (tagged unions, tuples, pattern properties) are
refused. Source: Kubernetes, "Specifying a structural schema"; KEP-2876 for validations.

A default inside a list appears only in the description (docs/design/truth-and-ledger.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from vgpu_api.attribute_docs import field_docs
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
    """The model uses a feature that a structural schema cannot express."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path or 'schema'}: {what} has no structural form")


@dataclass(frozen=True, slots=True)
class _At:
    """A position in a schema: its definitions, the path from the root, the references passed."""

    definitions: Mapping[str, Any]
    path: str = ""
    seen: tuple[str, ...] = ()

    def below(self, step: str) -> _At:
        """Return the position one step down, `.name` or `[]`."""
        return replace(self, path=f"{self.path}{step}".lstrip("."))

    @property
    def is_inside_list(self) -> bool:
        """True if the position is inside the items of a list."""
        return "[]" in self.path


class DescribedSchema(GenerateJsonSchema):
    """Pydantic's JSON schema, with the docstrings of fields as their descriptions."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model."""
        found = super().model_schema(schema)
        model = schema["cls"]
        for name, text in field_docs(model).items():
            found["properties"][model.model_fields[name].alias or name]["description"] = text
        return found


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the structural schema of a model, with the field names used in JSON.

    Raises:
        NotStructural: Part of the model cannot be expressed; the message names its path.
    """
    document = model.model_json_schema(
        by_alias=True, schema_generator=DescribedSchema, mode="validation"
    )
    return _walk(document, _At(document.get("$defs", {})))


def _walk(node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    if "$ref" in node:
        return _referred(node, at)
    if "anyOf" in node:
        return _any_of(node, at)
    for keyword in _REFUSED:
        if keyword in node:
            raise NotStructural(at.path, keyword)
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key not in _DROPPED:
            result |= _KEYWORDS.get(key, _as_it_is)(key, value, node, at)
    if "type" not in result and "enum" in result:
        result["type"] = "string"
    if at.is_inside_list and "default" in result:
        default = result.pop("default")
        described = result.get("description", "")
        result["description"] = f"{described} Default: {_spelled(default)}.".lstrip()
    if "type" not in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        raise NotStructural(at.path, "a value of any type")
    return result


def _spelled(default: Any) -> str:
    """Return a default as a user would write it."""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _referred(node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    name = node["$ref"].rsplit("/", 1)[-1]
    if name in at.seen:
        raise NotStructural(at.path, f"recursion through {name}")
    # Keywords next to a reference (the field's own description) override those of the definition.
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return _walk({**at.definitions[name], **beside}, replace(at, seen=(*at.seen, name)))


def _any_of(node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    """Return X for `X | None` and int-or-string for `int | str`; refuse any other union."""
    choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    if len(choices) == 1:
        return _walk({**choices[0], **beside}, at)
    if {choice.get("type") for choice in choices} == {"integer", "string"}:
        kept = {key: value for key, value in beside.items() if key == "description"}
        return {**kept, "x-kubernetes-int-or-string": True}
    raise NotStructural(at.path, "a union of types")


# Each of these converts a keyword of pydantic's schema to structural keywords.


def _as_it_is(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {key: value}


def _default(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {} if value in (None, "") else {key: value}


def _const(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {"enum": [value]}


def _additional(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    if value is False:
        return {}
    return {key: _walk(value, at.below(".*")) if isinstance(value, Mapping) else value}


def _properties(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {key: {name: _walk(child, at.below(f".{name}")) for name, child in value.items()}}


def _items(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    items = _walk(value, at.below("[]"))
    for list_key in node.get("x-kubernetes-list-map-keys", ()):
        # Kubernetes requires the key of a list-map to be required or to have a default, even an
        # empty one.
        if list_key not in items.get("required", ()):
            items["properties"][list_key].setdefault("default", "")
    return {key: items}


def _exclusive(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {key.replace("exclusiveM", "m"): value, key: True}


def _unique(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    raise NotStructural(at.path, "a set (use x-kubernetes-list-type: set)")


def _format(key: str, value: Any, node: Mapping[str, Any], at: _At) -> dict[str, Any]:
    return {key: value} if value in _FORMATS else {}


_KEYWORDS: Mapping[str, Callable[[str, Any, Mapping[str, Any], _At], dict[str, Any]]] = {
    "default": _default,
    "const": _const,
    "additionalProperties": _additional,
    "properties": _properties,
    "items": _items,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "uniqueItems": _unique,
    "format": _format,
}
