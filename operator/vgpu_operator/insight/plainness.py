"""Refuses documents with values that JSON cannot express, or with too much nesting.

YAML allows more than JSON: NaN, dates, keys that are not strings, lists that contain themselves.
Even JSON text may contain lone surrogates and numbers of any size. Code that uses a document later
may rely on this check.
"""

from __future__ import annotations

import math
from typing import Any

from vgpu_api.errors import BadInput, Fault
from vgpu_api.field_errors import path

MOST_LEVELS = 64
MOST_VALUES = 50_000_000
"""More than any cluster needs; stops a YAML text that expands its aliases recursively."""
_MOST_BITS = 1024

_Place = tuple[Any, int | str] | None
"""(the place of the container, the key within it)."""


def refuse_what_is_not_plain(document: Any, *, most_values: int = MOST_VALUES) -> None:
    """Refuse a document with a value that JSON cannot express, or with too much nesting.

    Args:
        document: The parsed document.
        most_values: The largest accepted number of values.

    Raises:
        BadInput: Names the path of the first such value.
    """
    waiting: list[tuple[Any, int, _Place]] = [(document, 0, None)]
    seen = 0
    while waiting:
        value, level, place = waiting.pop()
        seen += 1
        if seen > most_values:
            raise BadInput(
                field="document", fault=Fault.TOO_LONG,
                detail=f"may not have more than {most_values} values",
            )  # fmt: skip
        if isinstance(value, dict) and level < MOST_LEVELS:
            for key, item in value.items():
                if not isinstance(key, str) or not _is_text(key):
                    raise _bad(place, str(key), "a key that is text")
                waiting.append((item, level + 1, (place, key)))
        elif isinstance(value, list) and level < MOST_LEVELS:
            waiting.extend((item, level + 1, (place, at)) for at, item in enumerate(value))
        else:
            expected = _expected_instead_of(value)
            if expected is not None:
                raise _bad(place, "…" if isinstance(value, dict | list) else value, expected)


def _expected_instead_of(value: Any) -> str | None:
    """Describe the valid values if this one is invalid, else return None."""
    if isinstance(value, dict | list):
        return f"at most {MOST_LEVELS} levels deep"
    if isinstance(value, str):
        return None if _is_text(value) else "text without lone surrogates"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a finite number"
    if value is None or (isinstance(value, int) and value.bit_length() <= _MOST_BITS):
        return None
    if isinstance(value, int):
        return f"a number of at most {_MOST_BITS} bits"
    return "text, a number, true or false"


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _bad(place: _Place, value: object, expected: str) -> BadInput:
    location: list[int | str] = []
    while place is not None:
        place, key = place
        location.append(key)
    shown = "a number of many digits" if isinstance(value, int) else value
    return BadInput(field=path(tuple(reversed(location))), value=shown, expected=expected)
