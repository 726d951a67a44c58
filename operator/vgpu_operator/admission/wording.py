"""Pydantic's errors in the words that users get: field, value, what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vgpu_api.errors import BadInput

_MAX_VALUE = 160
_MAX_ERRORS = 5
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_TEXT_OR_NUMBER = {"string_type": "str", "int_type": "int"}
"""Complaints about a value that may be either, and the name of the choice that each ends its path
with."""

_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "string_pattern_mismatch": lambda context: (
        "a Kubernetes quantity such as 8Gi or 8192Mi, without a space or other unit"
    ),
    "string_type": lambda context: "text",
    "text_or_number": lambda context: "text or a whole number",
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
    "extra_forbidden": lambda context: "expected: there is no such field",
    "string_unicode": lambda context: "text",
}


def describe(error: ValidationError, *, within: tuple[int | str, ...] = ()) -> str:
    """All that is wrong, first things first, each as `field: value is not …`.

    Args:
        error: What was found.
        within: The path of what was read, if it is a part of something.
    """
    details = _joined(error.errors(include_url=False))
    lines = [_describe_one(detail, within) for detail in details[:_MAX_ERRORS]]
    if len(details) > _MAX_ERRORS:
        lines.append(f"and {len(details) - _MAX_ERRORS} more")
    return "; ".join(dict.fromkeys(lines))


def path(location: tuple[int | str, ...]) -> str:
    """`('spec', 'requests', 0, 'memory')` → `spec.requests[0].memory`; odd keys in brackets."""
    text = ""
    for part in location:
        if isinstance(part, int) or not _WORD.fullmatch(part):
            text += f"[{part if isinstance(part, int) else part[:_MAX_VALUE]}]"
        else:
            text += f".{part}" if text else part
    return text or "object"


def shown(value: Any) -> str:
    """A value as JSON, cut where it would drown the message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _joined(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """What may be text or a number and is neither is one thing that is wrong, not two."""
    joined: list[ErrorDetails] = []
    for detail in details:
        location = detail["loc"]
        if location and _TEXT_OR_NUMBER.get(detail["type"]) == location[-1]:
            detail = {**detail, "type": "text_or_number", "loc": location[:-1]}
            if joined and joined[-1]["loc"] == detail["loc"]:
                continue
        joined.append(detail)
    return joined


def _describe_one(detail: ErrorDetails, within: tuple[int | str, ...]) -> str:
    field = path((*within, *detail["loc"]))
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
