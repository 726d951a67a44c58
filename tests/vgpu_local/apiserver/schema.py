"""Applies structural schemas: prunes unknown fields, fills in defaults, validates the rest.

Violations are worded as by the real server, because people and our tests read them. CEL rules
(`x-kubernetes-validations`) are deliberately not evaluated; code that depends on them is tested on
a real control plane.
"""

from __future__ import annotations

import copy
import re
from datetime import date
from functools import lru_cache
from typing import Any

import orjson

from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Obj

_TOP = frozenset({"apiVersion", "kind", "metadata"})
_EMBEDDED = "x-kubernetes-embedded-resource"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PYTHON: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_DATE_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})",
    re.ASCII,
)


def prune(value: Any, schema: Obj, *, path: str = "", unknown: list[str] | None = None) -> None:
    """Remove unknown fields in place, and add their paths to `unknown`."""
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for at, item in enumerate(value):
                prune(item, items, path=f"{path}[{at}]", unknown=unknown)
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    embedded = path == "" or bool(schema.get(_EMBEDDED))
    for key in list(value):
        below = f"{path}.{key}" if path else key
        if embedded and key in _TOP:
            continue
        if key in properties:
            prune(value[key], properties[key], path=below, unknown=unknown)
        elif isinstance(extra, dict):
            prune(value[key], extra, path=below, unknown=unknown)
        elif not extra and not schema.get(_PRESERVE):
            del value[key]
            if unknown is not None:
                unknown.append(below)


def fill_defaults(value: Any, schema: Obj) -> None:
    """Fill in the defaults of absent fields, in place.

    A null counts as absent where null is not allowed.
    """
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for item in value:
                fill_defaults(item, items)
        return
    if not isinstance(value, dict):
        return
    for key, below in schema.get("properties", {}).items():
        if "default" in below and (
            key not in value or (value[key] is None and not below.get("nullable"))
        ):
            value[key] = copy.deepcopy(below["default"])
        elif key in value and value[key] is None and not below.get("nullable"):
            del value[key]
        if key in value:
            fill_defaults(value[key], below)
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        for key, item in value.items():
            if key not in schema.get("properties", {}):
                fill_defaults(item, extra)


def violations(value: Any, schema: Obj, path: str = "") -> list[Cause]:
    """Return all violations of the schema in `value`."""
    if value is None and schema.get("nullable"):
        return []
    if schema.get(_INT_OR_STRING):
        wrong = not isinstance(value, str | int) or isinstance(value, bool)
        found = [_of_type(value, "integer,string", path)] if wrong else []
    else:
        found = _type_violation(value, schema, path)
    if found:
        return found
    found = _bounds(value, schema, path)
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(_shown(word) for word in schema["enum"])
        text = f"Unsupported value: {_shown(value)}: supported values: {supported}"
        found.append(Cause(path, "FieldValueNotSupported", text))
    if isinstance(value, dict):
        found += _object_violations(value, schema, path)
    elif isinstance(value, list):
        found += _list_violations(value, schema, path)
    return found + _combined(value, schema, path)


def _type_violation(value: Any, schema: Obj, path: str) -> list[Cause]:
    wanted = schema.get("type")
    if wanted is None:
        return []
    fits = isinstance(value, _PYTHON[wanted])
    if wanted in ("integer", "number") and isinstance(value, bool):
        fits = False
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        fits = True
    return [] if fits else [_of_type(value, wanted, path)]


def _of_type(value: Any, wanted: str, path: str) -> Cause:
    actual = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        type(None): "null",
    }[type(value)]
    text = f'Invalid value: "{actual}": {path} in body must be of type {wanted}: "{actual}"'
    return Cause(path, "FieldValueTypeInvalid", text)


def _bounds(value: Any, schema: Obj, path: str) -> list[Cause]:
    found: list[Cause] = []

    def wrong(text: str) -> None:
        shown = f"Invalid value: {_shown(value)}: {path} in body {text}"
        found.append(Cause(path, "FieldValueInvalid", shown))

    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high, step = (schema.get(key) for key in ("minimum", "maximum", "multipleOf"))
        if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
            wrong(f"should be greater than or equal to {low}")
        if high is not None and (
            value > high or (schema.get("exclusiveMaximum") and value == high)
        ):
            wrong(f"should be less than or equal to {high}")
        if step is not None and value % step:
            wrong(f"should be a multiple of {step}")
    elif isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            text = f"Too long: may not be more than {schema['maxLength']} bytes"
            found.append(Cause(path, "FieldValueTooLong", text))
        if len(value) < schema.get("minLength", 0):
            wrong(f"should be at least {schema['minLength']} chars long")
        if "pattern" in schema and not _regex(schema["pattern"]).search(value):
            wrong(f"should match '{schema['pattern']}'")
        if schema.get("format") == "date-time" and not _is_date_time(value):
            shown = _shown(value)
            text = f"Invalid value: {shown}: {path} in body must be of type date-time: {shown}"
            found.append(Cause(path, "FieldValueTypeInvalid", text))
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            text = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
            found.append(Cause(path, "FieldValueTooMany", text))
        if len(value) < schema.get("minItems", 0):
            wrong(f"should have at least {schema['minItems']} items")
    elif isinstance(value, dict):
        if len(value) > schema.get("maxProperties", len(value)):
            text = f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
            found.append(Cause(path, "FieldValueTooMany", text))
        if len(value) < schema.get("minProperties", 0):
            wrong(f"should have at least {schema['minProperties']} properties")
    return found


def _object_violations(value: Obj, schema: Obj, path: str) -> list[Cause]:
    found = [
        Cause(_join(path, key), "FieldValueRequired", "Required value")
        for key in schema.get("required", ())
        if key not in value
    ]
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    for key, item in sorted(value.items()):
        if path == "" and key in _TOP:
            continue
        below = properties.get(key, extra)
        if isinstance(below, dict):
            found += violations(item, below, _join(path, key))
    return found


def _list_violations(value: list[Any], schema: Obj, path: str) -> list[Cause]:
    found: list[Cause] = []
    items = schema.get("items")
    if isinstance(items, dict):
        for at, item in enumerate(value):
            found += violations(item, items, f"{path}[{at}]")
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if kind in ("map", "set") or schema.get("uniqueItems"):
        seen: set[bytes] = set()
        for at, item in enumerate(value):
            identity = item
            if kind == "map" and isinstance(item, dict):
                identity = {key: item[key] for key in keys if key in item}
            text = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)
            if text in seen:
                sentence = f"Duplicate value: {text.decode()}"
                found.append(Cause(f"{path}[{at}]", "FieldValueDuplicate", sentence))
            seen.add(text)
    return found


def _combined(value: Any, schema: Obj, path: str) -> list[Cause]:
    found: list[Cause] = []

    def wrong(word: str, text: str) -> None:
        sentence = f'Invalid value: "": "{path}" must {text} ({word})'
        found.append(Cause(path, "FieldValueInvalid", sentence))

    for part in schema.get("allOf", ()):
        found += violations(value, part, path)
    if "anyOf" in schema and all(violations(value, part, path) for part in schema["anyOf"]):
        wrong("anyOf", "validate at least one schema")
    fitting = sum(not violations(value, part, path) for part in schema.get("oneOf", ()))
    if "oneOf" in schema and fitting != 1:
        wrong("oneOf", "validate one and only one schema")
    if "not" in schema and not violations(value, schema["not"], path):
        wrong("not", "not validate the schema")
    return found


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    # Go's RE2 and Python agree on the patterns of CRDs, except for the end of text.
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def _is_date_time(text: str) -> bool:
    """True for RFC 3339 as the API server reads it: a calendar date, and no leap second."""
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return False
    try:
        date.fromisoformat(found[1])
    except ValueError:
        return False
    hour, minute, second = found[2], found[3], found[4]
    return hour <= "23" and minute <= "59" and second <= "59"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode()
