"""There are no include cycles among libvgpu's headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

LIBVGPU = Path(__file__).parents[2] / "libvgpu"


def included(folder: Path) -> dict[str, set[str]]:
    """Return the headers of the same folder that each header of a folder includes."""
    headers = {path.name: path.read_text() for path in folder.glob("*.h")}
    return {
        name: set(re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)) & headers.keys()
        for name, text in headers.items()
    }


def circle(graph: Mapping[str, Set[str]]) -> list[str]:
    """Return the headers of one cycle, the first repeated at the end, or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("folder", ["src", "include", "fake", "tools", "bench", "tests"])
def test_headers_include_each_other_without_a_circle(folder: str) -> None:
    graph = included(LIBVGPU / folder)
    assert graph
    assert circle(graph) == []


def test_a_circle_is_found_with_its_headers(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include <stdint.h>\n#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text('#include "a.h"\n#include "elsewhere.h"\n')
    assert set(circle(included(tmp_path))) == {"a.h", "b.h", "c.h"}


def test_two_ways_to_a_header_are_no_circle() -> None:
    assert circle({"a.h": {"b.h", "c.h"}, "b.h": {"c.h"}, "c.h": set()}) == []
