"""Reads objects of a later version, with enum values that this version does not know.

Unknown fields are ignored on reading and kept on writing. An unknown value in a known field cannot
be ignored, because it may change the meaning of everything else. But refusing the whole object
would lose what it holds: the devices of a claim, and a container that runs with them. So such a
value is read as if the field were absent, and reported. The reader keeps what the object holds and
decides nothing about it.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import ValidationError

_SUBSTITUTE = {"status": "Unknown"}
"""The value used for a required field: a condition's status."""


def without_unknown_values(
    raw: dict[str, Any], error: ValidationError
) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the object without its unknown values, and these values as `path: "value"`.

    Args:
        raw: The object as the API server sent it.
        error: The validation error.

    Returns:
        None if anything else is wrong with the object.
    """
    faults = error.errors(include_url=False)
    # An enum value is a string in every version, so any other type is a real error.
    if any(f["type"] != "literal_error" or not isinstance(f["input"], str) for f in faults):
        return None
    known = copy.deepcopy(raw)
    # Go backwards, so that removing a list item does not shift earlier ones.
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
