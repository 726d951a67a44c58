"""A JSON patch (RFC 6902) grown edit by edit: only what differs becomes an operation.

Because an edit that changes nothing adds nothing, a second run over the patched document yields
an empty patch.
"""

from __future__ import annotations

import copy
from typing import Any

Operation = dict[str, Any]
Step = str | int


class JsonPatch:
    """Edits of one document. A null counts as absent; absent parents are made as objects."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document: Any = copy.deepcopy(document)
        self.operations: list[Operation] = []

    def get(self, *steps: Step) -> Any:
        """The value there now, edits included; `None` when there is none."""
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
        """Make the value there `value`."""
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
    """One step of a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")


def applied(document: dict[str, Any], operations: list[Operation]) -> dict[str, Any]:
    """A copy of the document with operations as `JsonPatch` makes them: add and replace."""
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
