"""`make shape` counts what it claims to: each measure finds what is planted, and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def loaded() -> ModuleType:
    """The script beside this file; its folder has the name of a library."""
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
    measure = shape.callables([module])
    assert [place.split()[-1] for place in measure.found] == ["told", "sink", "step", "done"]


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
    measure = shape.constructors([module])
    assert [place.split(maxsplit=1)[1] for place in measure.found] == ["Large has 7"]


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


def test_a_function_with_thirteen_ways_through_it_is_found(tmp_path: Path) -> None:
    ifs = "".join(f"    if a == {n}:\n        return {n}\n" for n in range(12))
    (tmp_path / "one.py").write_text(f"def thirteen(a):\n{ifs}\ndef one(a):\n    return a\n")
    (found,) = shape.complexity(tmp_path).found
    assert "`thirteen` is too complex (13 > 12)" in found


def test_calls_between_modules_are_followed_and_calls_inside_one_are_not() -> None:
    with shape.traced() as trace:
        from_here()
    assert trace.modules == {"vgpu_api.quantity", "vgpu_api.errors"}
    assert set(trace.hops) == {"vgpu_api.quantity → vgpu_api.errors"}


def from_here() -> None:
    from vgpu_api import quantity

    with pytest.raises(ValueError, match="lots"):
        quantity.parse("lots")


def test_the_round_that_sees_a_pod_stays_within_its_bounds() -> None:
    trace = asyncio.run(shape.one_pod())["the round that sees a pod"]
    assert len(trace.modules) <= 30
    assert len(trace.hops) <= 80


def test_wiring_callables_and_constructors_stay_within_their_bounds() -> None:
    engine = shape.sources(shape.ENGINE)
    measures = [shape.callables(engine), shape.wiring(engine)]
    measures.append(shape.constructors(shape.sources(shape.OPERATOR)))
    assert [str(measure) for measure in measures if not measure.passes] == []


def test_no_function_of_ours_is_beyond_the_bound_of_complexity() -> None:
    assert shape.complexity(*shape.ROOMS).found == []
