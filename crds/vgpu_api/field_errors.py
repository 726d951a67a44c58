"""Converts pydantic's errors to field errors in Kubernetes' format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vgpu_api.errors import BadInput
from vgpu_api.quantity import SIZE_PATTERN

_MAX_PART = 160
_MAX_ERRORS = 5
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_QUOTED = re.compile(r"'([^']*)'")
_TEXT_OR_NUMBER = {"string_type": "str", "int_type": "int"}
"""The two errors that pydantic reports for a value that may be text or a number, and the name that
each of them appends to the path.
"""

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
    "list_type": lambda context: "a list",
    "dict_type": lambda context: "an object",
    "model_type": lambda context: "an object",
    "model_attributes_type": lambda context: "an object",
    "bool_type": lambda context: "true or false",
    "string_unicode": lambda context: "text",
}


def field_errors(error: ValidationError, *, within: tuple[int | str, ...] = ()) -> list[BadInput]:
    """Return every error that pydantic found, in order, as a field error.

    Args:
        error: The failed validation.
        within: The path of the validated document, if it is part of another.
    """
    details = _joined(error.errors(include_url=False))
    return [_field_error(detail, within) for detail in details]


def describe(error: ValidationError, *, within: tuple[int | str, ...] = ()) -> str:
    """Return the first five field errors in one line; `within` as for `field_errors`."""
    found = field_errors(error, within=within)
    lines = [str(each) for each in found[:_MAX_ERRORS]]
    if len(found) > _MAX_ERRORS:
        lines.append(f"and {len(found) - _MAX_ERRORS} more")
    return "; ".join(dict.fromkeys(lines))


def path(location: tuple[int | str, ...]) -> str:
    """Join the parts of a path, as in `spec.requests[0].memory`; unusual keys get brackets."""
    text = ""
    for part in location:
        if isinstance(part, int) or not _WORD.fullmatch(part):
            text += f"[{part if isinstance(part, int) else part[:_MAX_PART]}]"
        else:
            text += f".{part}" if text else part
    return text or "object"


def _joined(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Merge the two errors about a value that is neither text nor a number into one."""
    joined: list[ErrorDetails] = []
    for detail in details:
        location = detail["loc"]
        if location and _TEXT_OR_NUMBER.get(detail["type"]) == location[-1]:
            detail = {**detail, "type": "text_or_number", "loc": location[:-1]}
            if joined and joined[-1]["loc"] == detail["loc"]:
                continue
        joined.append(detail)
    return joined


def _field_error(detail: ErrorDetails, within: tuple[int | str, ...]) -> BadInput:
    field, value, kind = path((*within, *detail["loc"])), detail["input"], detail["type"]
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, BadInput):
        return BadInput(field=field, value=value, fault=cause.fault, detail=cause.detail)
    if cause is not None:
        return BadInput(field=field, value=value, detail=str(cause))
    if kind == "missing":
        return BadInput.required(field)
    if kind == "extra_forbidden":
        return BadInput.forbidden(field, "unknown field")
    if kind == "literal_error":
        return BadInput.unsupported(field, value, _QUOTED.findall(context["expected"]))
    if kind == "too_long":
        return BadInput.too_many(field, context["actual_length"], context["max_length"])
    if kind == "too_short":
        return BadInput.required(field, f"must have at least {context['min_length']} items")
    if kind == "string_pattern_mismatch" and context["pattern"] != SIZE_PATTERN:
        return BadInput(field=field, value=value, detail=f"must match {context['pattern']}")
    wording = _EXPECTED.get(kind)
    if wording is None:
        return BadInput(field=field, value=value, detail=detail["msg"])
    return BadInput(field=field, value=value, expected=wording(context))
