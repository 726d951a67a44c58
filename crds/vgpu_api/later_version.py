"""Objects that a later version wrote: values of an enumeration that this version does not know.

Fields that this version does not know are ignored when an object is read and left alone when it is
written. A value that is not known in a field that is cannot be ignored, since it may change what
all the rest means. Refusing the whole object would lose what is known of it: which devices a claim
holds, and that a container runs with them. So such a value is read as if the field were absent, and
reported; the reader keeps what the object holds and decides nothing about it.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import ValidationError

_SUBSTITUTE = {"status": "Unknown"}
"""Of a condition, where the field is required."""


def without_unknown_values(
    raw: dict[str, Any], error: ValidationError
) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the object without the values that are not known, and these as `path: "value"`.

    Args:
        raw: The object as the API server sent it.
        error: Why it could not be read.

    Returns:
        None if there is anything else wrong with it.
    """
    faults = error.errors(include_url=False)
    # A value of an enumeration is a string in every version: anything else is a fault.
    if any(f["type"] != "literal_error" or not isinstance(f["input"], str) for f in faults):
        return None
    known = copy.deepcopy(raw)
    # From the end: an item that is removed from a list must not move those named before it.
    for fault in sorted(faults, key=lambda each: _order(each["loc"]), reverse=True):
        *path, last = fault["loc"]
        parent: Any = known
        for step in path:
            parent = parent[step]
        if last in _SUBSTITUTE:
            parent[last] = _SUBSTITUTE[last]
        else:
            del parent[last]
    found = tuple(f'{_text(fault["loc"])}: "{fault["input"]}"' for fault in faults)
    return known, found


def _order(path: tuple[int | str, ...]) -> list[tuple[bool, int, str]]:
    return [
        (isinstance(step, int), step, "") if isinstance(step, int) else (False, 0, step)
        for step in path
    ]


def _text(path: tuple[int | str, ...]) -> str:
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")
