"""Every fixture has a type where it is made and where it is used, for readers and for mypy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

TESTS = Path(__file__).parents[1]
BUILT_IN = frozenset({"capsys", "caplog", "monkeypatch", "request", "tmp_path"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_fixture(function: Function) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def untyped(tree: ast.Module, fixtures: frozenset[str]) -> Iterator[str]:
    """Yield `function: name` of each use of a fixture that has no type or the type `Any`."""
    for function in functions(tree):
        asked = function.name.startswith("test_") or is_fixture(function)
        if is_fixture(function) and _is_open(function.returns):
            yield f"{function.name}: what it gives"
        for argument in function.args.args if asked else ():
            parametrized = any(
                argument.arg in ast.unparse(decorator) for decorator in function.decorator_list
            )
            if argument.arg in fixtures and not parametrized and _is_open(argument.annotation):
                yield f"{function.name}: {argument.arg}"


def _is_open(annotation: ast.expr | None) -> bool:
    return annotation is None or ast.unparse(annotation) == "Any"


def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}


def test_each_fixture_has_a_type_where_it_is_made_and_where_it_is_asked_for() -> None:
    found = trees()
    made = (each.name for tree in found.values() for each in functions(tree) if is_fixture(each))
    fixtures = frozenset(made) | BUILT_IN
    assert fixtures >= {"replica", "cluster", "control_plane"}
    assert [
        f"{path.relative_to(TESTS)}: {fault}"
        for path, tree in found.items()
        for fault in untyped(tree, fixtures)
    ] == []


def test_a_fixture_without_a_type_is_found() -> None:
    source = """
@pytest.fixture
def made() -> Any: ...

@pytest.fixture
def typed(made) -> int: ...

def test_it(made: Any, typed: int) -> None: ...

@pytest.mark.parametrize("typed", [1])
def test_parametrized(typed: Any) -> None: ...
"""
    faults = list(untyped(ast.parse(source), frozenset({"made", "typed"})))
    assert faults == ["made: what it gives", "typed: made", "test_it: made"]
