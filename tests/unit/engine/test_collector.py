"""The garbage collector looks at new objects only."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from vgpu_operator import collector


@pytest.fixture
def restored() -> Iterator[None]:
    """The collector is as it was afterwards."""
    before, thresholds = list(gc.callbacks), gc.get_threshold()
    yield
    gc.callbacks[:] = before
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def leading(restored: None) -> None:
    """As after the start of the operator."""
    collector.keep_passes_short()


def looked_at(thing: object) -> bool:
    """Whether the next full pass looks at an object."""
    return any(thing is each for each in gc.get_objects())


def test_what_survived_a_full_pass_is_not_looked_at_again(leading: None) -> None:
    survivor = [[]]  # type: ignore[var-annotated]
    assert looked_at(survivor)
    gc.collect()
    assert not looked_at(survivor)


def test_full_passes_go_on_however_much_there_was_at_the_start(leading: None) -> None:
    listed: list[list[int]] = [[] for _ in range(200_000)]
    gc.unfreeze()
    gc.collect()  # a full pass that leaves all of this
    collector.keep_passes_short()
    passes: list[int] = []
    gc.callbacks.append(lambda phase, info: passes.append(info["generation"]))
    new: list[list[int]] = [[] for _ in range(20_000)]
    assert 2 in passes
    assert len(listed) > len(new)


def test_cycles_among_new_objects_are_found(leading: None) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


def test_to_lead_twice_freezes_once_for_each_pass(leading: None) -> None:
    collector.keep_passes_short()
    assert gc.callbacks.count(collector._freeze) == 1


def test_an_object_of_a_request_is_looked_at_however_many_passes_it_survives(
    restored: None,
) -> None:
    imported: list[list[int]] = [[]]
    collector.set_aside()
    request: list[list[int]] = [[]]
    gc.collect()
    assert not looked_at(imported)
    assert looked_at(request)
