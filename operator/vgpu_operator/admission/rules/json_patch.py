"""Builds a JSON patch (RFC 6902) from edits. Only differences become operations.

An edit that changes nothing adds no operation, so mutating an already mutated document yields an
empty patch.
"""

from __future__ import annotations

import copy
from typing import Any

Operation = dict[str, Any]
Step = str | int


class JsonPatch:
    """Edits of one document. Null counts as absent, and missing parents are created as objects."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document: Any = copy.deepcopy(document)
        self.operations: list[Operation] = []

    def get(self, *steps: Step) -> Any:
        """Return the value at a path after the edits so far, or None."""
        value = self._document
        for step in steps:
            if isinstance(step, int):
                value = value[step]
            else:
                value = value.get(step) if isinstance(value, dict) else None
            if value is None:
                return None
        return value

    def set(self, *steps: Step, value: Any) -> None:
        """Set the value at a path."""
        if self.get(*steps) == value:
            return
        for length in range(1, len(steps)):
            if self.get(*steps[:length]) is None:
                self._write(steps[:length], {})
        self._write(steps, value)

    def _write(self, steps: tuple[Step, ...], value: Any) -> None:
        parent = self.get(*steps[:-1])
        inside_list = isinstance(steps[-1], int)
        parent[steps[-1]] = copy.deepcopy(value)
        self.operations.append(
            {
                "op": "replace" if inside_list else "add",
                "path": "".join(f"/{_escaped(step)}" for step in steps),
                "value": value,
            }
        )


def _escaped(step: Step) -> str:
    """Escape one step of a path for a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")


def applied(document: dict[str, Any], operations: list[Operation]) -> dict[str, Any]:
    """Return a copy of the document after applying the operations of a `JsonPatch`."""
    result = copy.deepcopy(document)
    for operation in operations:
        steps = [
            step.replace("~1", "/").replace("~0", "~") for step in operation["path"][1:].split("/")
        ]
        parent: Any = result
        for step in steps[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        last: Step = int(steps[-1]) if isinstance(parent, list) else steps[-1]
        parent[last] = copy.deepcopy(operation["value"])
    return result
