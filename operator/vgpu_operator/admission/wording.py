"""Pydantic's errors in the words that users get: field, value, what would be right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vgpu_api.errors import BadInput

_MAX_VALUE = 160
_MAX_ERRORS = 5

_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "string_pattern_mismatch": lambda context: (
        "a Kubernetes quantity such as 8Gi or 8192Mi, without a space or other unit"
    ),
    "string_type": lambda context: "text",
    "string_too_long": lambda context: f"text of at most {context['max_length']} characters",
    "string_too_short": lambda context: f"text of at least {context['min_length']} characters",
    "int_type": lambda context: "a whole number",
    "int_parsing": lambda context: "a whole number",
    "int_from_float": lambda context: "a whole number",
    "greater_than_equal": lambda context: f"{context['ge']} or more",
    "less_than_equal": lambda context: f"{context['le']} or less",
    "literal_error": lambda context: f"one of {context['expected']}",
    "too_long": lambda context: f"a list of at most {context['max_length']} items",
    "too_short": lambda context: f"a list of at least {context['min_length']} items",
    "list_type": lambda context: "a list",
    "dict_type": lambda context: "an object",
    "model_type": lambda context: "an object",
    "model_attributes_type": lambda context: "an object",
    "bool_type": lambda context: "true or false",
}


def describe(error: ValidationError) -> str:
    """All that is wrong, first things first, each as `field: value is not …`."""
    details = error.errors(include_url=False)
    lines = [_describe_one(detail) for detail in details[:_MAX_ERRORS]]
    if len(details) > _MAX_ERRORS:
        lines.append(f"and {len(details) - _MAX_ERRORS} more")
    return "; ".join(dict.fromkeys(lines))


def path(location: tuple[int | str, ...]) -> str:
    """`('spec', 'requests', 0, 'memory')` → `spec.requests[0].memory`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "object"


def shown(value: Any) -> str:
    """A value as JSON, cut where it would drown the message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _describe_one(detail: ErrorDetails) -> str:
    field = path(detail["loc"])
    context = detail.get("ctx", {})
    if detail["type"] == "missing":
        return f"{field}: must be given"
    cause = context.get("error")
    if isinstance(cause, BadInput):
        return f"{field}: {shown(detail['input'])} is not {cause.expected}"
    if cause is not None:
        return f"{field}: {shown(detail['input'])} is not right: {cause}"
    wording = _EXPECTED.get(detail["type"])
    expected = wording(context) if wording is not None else f"right: {detail['msg']}"
    return f"{field}: {shown(detail['input'])} is not {expected}"
