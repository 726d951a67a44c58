"""Label and field selectors, parsed once per request and evaluated for every object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.kinds import Obj, Resource

Match = Callable[[Obj], bool]

_SET_BASED = re.compile(r"^\s*(?P<key>[^\s,()!=]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_EQUALITY = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<no>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


def everything(_: Obj) -> bool:
    """Return the selector that selects everything."""
    return True


def of_request(resource: Resource, labels: str, fields: str) -> Match:
    """Return the selector of a list, watch or deletecollection.

    Raises:
        StatusError: 400 for a selector that cannot be parsed or a field that is not selectable.
    """
    by_label = _labels(labels) if labels else None
    by_field = _fields(resource, fields) if fields else None
    if by_label and by_field:
        first, second = by_label, by_field
        return lambda obj: first(obj) and second(obj)
    return by_label or by_field or everything


def label_selector(selector: Mapping[str, Any] | None) -> Callable[[Mapping[str, str]], bool]:
    """Return a `metav1.LabelSelector` as a predicate on labels; None and {} select all."""
    if not selector:
        return lambda labels: True
    wanted = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or []

    def matches(labels: Mapping[str, str]) -> bool:
        if any(labels.get(key) != value for key, value in wanted.items()):
            return False
        return all(
            _holds(labels, item["key"], item["operator"].lower(), item.get("values") or [])
            for item in expressions
        )

    return matches


def _holds(labels: Mapping[str, str], key: str, operator: str, values: list[str]) -> bool:
    if operator == "exists":
        return key in labels
    if operator == "doesnotexist":
        return key not in labels
    if operator == "in":
        return labels.get(key) in values
    return labels.get(key) not in values  # NotIn also matches if the label is absent


def _labels(text: str) -> Match:
    requirements: list[tuple[str, str, list[str]]] = []
    for part in _split(text):
        if match := _SET_BASED.match(part):
            values = [value.strip() for value in match["values"].split(",")]
            requirements.append((match["key"], match["op"], values))
        elif match := _EQUALITY.match(part):
            operator = "notin" if match["op"] == "!=" else "in"
            requirements.append((match["key"], operator, [match["value"]]))
        elif match := _EXISTS.match(part):
            requirements.append((match["key"], "doesnotexist" if match["no"] else "exists", []))
        else:
            raise errors.bad_request(f"unable to parse requirement: {part!r}")

    def matches(obj: Obj) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(_holds(labels, *requirement) for requirement in requirements)

    return matches


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part for part in [*parts, current] if part.strip()]


def _fields(resource: Resource, text: str) -> Match:
    allowed = {"metadata.name", "metadata.namespace", *resource.selectable}
    requirements: list[tuple[list[str], bool, str]] = []
    for part in text.split(","):
        match = _EQUALITY.match(part)
        if match is None:
            raise errors.bad_request(f"invalid field selector: {part!r}")
        if match["key"] not in allowed:
            raise errors.bad_request(f"field label not supported: {match['key']}")
        requirements.append((match["key"].split("."), match["op"] != "!=", match["value"]))

    def matches(obj: Obj) -> bool:
        return all((_text(obj, path) == value) is same for path, same, value in requirements)

    return matches


def _text(obj: Obj, path: list[str]) -> str:
    """Return a field as selectors compare it: an absent one is empty, booleans are words."""
    value: Any = obj
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict):  # an event's source is selected by its component
        value = value.get("component")
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
