"""Each measure of `make shape` finds exactly the faults that a test plants."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def loaded() -> ModuleType:
    """Return the script beside this file as a module; its folder has the name of a library."""
    spec = importlib.util.spec_from_file_location("shape", Path(__file__).parent / "shape.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["shape"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shape = loaded()


def source(text: str) -> Any:
    return shape.Source.of(textwrap.dedent(text))


def test_a_function_that_is_handed_in_is_counted_under_every_name_of_its_type() -> None:
    module = source(
        """
        Sink = Callable[[int], None]
        Step: TypeAlias = Callable[[str], None] | None

        def one(told: Callable[[], None], name: str) -> Callable[[], None]: ...
        async def two(*, sink: Sink, step: Step = None) -> None: ...

        @dataclass(frozen=True)
        class Three:
            done: Callable[[], None] | None
            number: int

        class Four:
            done: Callable[[], None]
        """
    )
    found = shape.callables([module])
    assert [place.split()[-1] for place in found] == ["told", "sink", "step", "done"]


def test_a_constructor_of_seven_parameters_is_too_large_and_one_of_six_is_not() -> None:
    module = source(
        """
        class Large:
            def __init__(self, a, b, c, *, d, e, f, g): ...
        class Small:
            def __init__(self, a, b, c, *, d, e, f): ...
            def other(self, a, b, c, d, e, f, g, h): ...
        """
    )
    found = shape.constructors([module])
    assert [place.split(maxsplit=1)[1] for place in found] == ["Large has 7"]


def test_a_constructor_of_forty_one_lines_is_too_long_and_one_of_forty_is_not() -> None:
    def constructor(name: str, lines: int) -> str:
        body = "        self.a = 1\n" * (lines - 1)
        return f"class {name}:\n    def __init__(self):\n{body}"

    module = source(constructor("Long", 41) + constructor("Short", 40))
    assert [place.split(maxsplit=1)[1] for place in shape.inits([module])] == ["Long has 41 lines"]


def test_wiring_is_imports_constructors_and_their_arguments() -> None:
    module = source(
        '''
        import a
        from b import (
            c,
        )

        class One:
            """What it is.

            Args:
                c: A part.

            Attributes:
                d: Another.
            """

            def __init__(self, c):
                self._c = c

            def work(self):
                return self._c
        '''
    )
    lines = len([line for line in module.text.splitlines() if line.strip()])
    assert shape.wiring([module]).value == pytest.approx(100 * 8 / lines)


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("if a: pass\nelif b: pass\nelse: pass", 2),
        ("for x in a: pass\nelse: pass", 2),
        ("while a: pass", 1),
        ("try: a()\nexcept B: pass\nexcept C: pass\nelse: pass\nfinally: pass", 3),
        ("match a:\n    case 1: pass\n    case _: pass", 2),
        ("return a and b and c or d", 3),
        ("return a if b else c", 1),
        ("return [x for x in a if x if x > 1]", 3),
        ("assert a", 1),
        ("with a: b()", 0),
    ],
)
def test_ways_in_statements_and_in_expressions_count(way: str, count: int) -> None:
    function = source("def f():\n" + textwrap.indent(way, "    ")).tree.body[0]
    assert shape.complexity(function) == 1 + count


def test_a_function_with_thirteen_ways_through_it_is_found() -> None:
    module = source(f"def thirteen(a): return {' or '.join('a' * 13)}\ndef one(a): return a\n")
    found = shape.complex_functions([module])
    assert [place.split(maxsplit=1)[1] for place in found] == ["thirteen has 13"]


def test_calls_between_modules_are_followed_and_calls_inside_one_are_not() -> None:
    with shape.traced() as trace:
        from_here()
    assert trace.modules == {"vgpu_api.quantity", "vgpu_api.errors"}
    assert set(trace.hops) == {"vgpu_api.quantity → vgpu_api.errors"}


def from_here() -> None:
    from vgpu_api import quantity

    with pytest.raises(ValueError, match="lots"):
        quantity.parse("lots")


def test_every_module_of_the_product_is_in_one_package() -> None:
    product = [shape.OPERATOR, *(shape.ROOT / room for room in ("crds", "nodeagent"))]
    measured = [path for package in shape.PACKAGES for path in package.files()]
    assert sorted(measured) == shape.files(*product)
