"""No modules of libvgpu include each other's headers in a cycle, so each can be read alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LIBVGPU = Path(__file__).parents[2] / "libvgpu"
#: Circles that stay: a module in several files with a header for only these files.
KNOWN: dict[str, set[frozenset[str]]] = {
    "src": set(),
    "fake": {frozenset({"state", "state_inside"})},
}


def includes(room: Path) -> dict[str, set[str]]:
    """Return the modules whose headers a module (a header and its sources) includes, by module."""
    found: dict[str, set[str]] = {}
    for file in [*room.glob("*.c"), *room.glob("*.h")]:
        names = re.findall(r'^#include "(\w+)\.h"', file.read_text(), re.MULTILINE)
        own = {name for name in names if (room / f"{name}.h").exists()} - {file.stem}
        found.setdefault(file.stem, set()).update(own)
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that include each other, directly or indirectly."""
    reached = {name: set(graph[name]) for name in graph}
    for _ in graph:
        for name in graph:
            reached[name] |= {far for near in reached[name] for far in reached.get(near, ())}
    found = {
        frozenset({one, *(other for other in reached[one] if one in reached.get(other, ()))})
        for one in graph
    }
    return {circle for circle in found if len(circle) > 1}


def test_a_circle_is_found_through_modules_between() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(graph) == {frozenset({"a", "b", "c"})}


@pytest.mark.parametrize("room", ["src", "fake"])
def test_no_modules_include_each_other_but_those_that_are_known(room: str) -> None:
    assert circles(includes(LIBVGPU / room)) == KNOWN[room]
