"""The docstring of a package with many modules lists all its modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("room", ["operator/vgpu_operator/engine", "tests/vgpu_local"])
def test_every_module_stands_in_the_map_of_its_room_and_no_other_does(room: str) -> None:
    folder = ROOT / room
    map_ = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert map_ is not None
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert set(re.findall(r"`(\w+)`", map_)) == modules
