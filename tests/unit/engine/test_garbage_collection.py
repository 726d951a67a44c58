"""The garbage collector checks only new objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from vgpu_operator import garbage_collection


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore the collector's settings afterwards."""
    before, thresholds = list(gc.callbacks), gc.get_threshold()
    yield
    gc.callbacks[:] = before
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def leading(restored: None) -> None:
    """Configure the collector as the operator does when it starts."""
    garbage_collection.keep_passes_short()


def looked_at(thing: object) -> bool:
    """Return True if the collector's next pass examines an object."""
    return any(thing is each for each in gc.get_objects())


@pytest.mark.parametrize("generation", [0, 2])
def test_what_survived_a_pass_is_not_looked_at_again(leading: None, generation: int) -> None:
    survivor = [[]]  # type: ignore[var-annotated]
    assert looked_at(survivor)
    gc.collect(generation)
    assert not looked_at(survivor)


def test_passes_are_over_what_is_new_however_much_came_before(leading: None) -> None:
    """A thousand events a second create 60,000 objects a second, and as many are freed."""
    sizes: list[int] = []

    def measured(phase: str, _: object) -> None:
        if phase == "start":
            sizes.append(sum(len(gc.get_objects(generation=each)) for each in range(3)))

    gc.callbacks.append(measured)
    kept: list[list[int]] = [[] for _ in range(20_000)]
    assert len(sizes) > 40
    assert max(sizes) < 1_000
    assert len(kept) == 20_000


def test_cycles_among_new_objects_are_found(leading: None) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


def test_to_lead_twice_freezes_once_for_each_pass(leading: None) -> None:
    garbage_collection.keep_passes_short()
    assert gc.callbacks.count(garbage_collection._freeze) == 1


def test_an_object_of_a_request_is_looked_at_however_many_passes_it_survives(
    restored: None,
) -> None:
    imported: list[list[int]] = [[]]
    garbage_collection.set_aside()
    request: list[list[int]] = [[]]
    gc.collect()
    assert not looked_at(imported)
    assert looked_at(request)
