"""A class name belongs to only one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
ROOMS = ("operator", "nodeagent", "crds")


def sources() -> list[Path]:
    """Return the product's Python files, without those that protoc generates."""
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def test_no_two_classes_of_the_product_share_a_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 300
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
