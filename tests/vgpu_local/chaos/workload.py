"""The workload of a campaign: its scenarios and their times, which depend on the seed alone.

The interleaving of scenarios also depends on the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vgpu_local.chaos.fuzz import fuzzed
from vgpu_local.chaos.scenarios import (
    STAYING,
    Scenario,
    claim_and_pod,
    claim_in_turns,
    comes_and_goes,
    ends_by_itself,
    fits_nowhere,
    gang,
    gang_stays,
    namespace_goes,
    nobody_schedules,
    outranks,
    outranks_for_cpu,
    replica_of_a_set,
    runs_and_goes,
    stays,
    template,
    turned_away,
)
from vgpu_local.chaos.stage import Refused, Stage

Teller = Callable[[random.Random, str], Scenario]

# The rate, and the part of the campaign in which it may begin; long ones begin early.
_TOLD: tuple[tuple[int, float, Teller], ...] = (
    (16, 1.0, comes_and_goes),
    (36, 0.9, runs_and_goes),
    (12, 0.9, ends_by_itself),
    (10, 0.5, replica_of_a_set),
    (14, 0.9, claim_and_pod),
    (5, 0.7, claim_in_turns),
    (5, 0.8, template),
    (6, 0.3, fuzzed),
    (4, 0.7, namespace_goes),
    (3, 1.0, fits_nowhere),
    (3, 1.0, nobody_schedules),
    (STAYING, 1.0, stays),
)
_GANGS_STAYING = 2
"""Gangs of two pods that stay, instead of as many pods alone."""
_RANKED: tuple[tuple[int, float, Teller], ...] = (
    *_TOLD[:-1],
    (STAYING - 2 * _GANGS_STAYING, 1.0, stays),
    (_GANGS_STAYING, 1.0, gang_stays),
    (8, 0.8, gang),
    (3, 0.8, outranks),
    (3, 0.7, outranks_for_cpu),
)
"""With priorities and groups."""
_CLAIMED: tuple[tuple[int, float, Teller], ...] = ((8, 0.1, turned_away),)
"""More in Claims mode."""
_ENCORES = (comes_and_goes, runs_and_goes, replica_of_a_set, claim_and_pod)
_ENCORE_EVERY_S = 0.4


@dataclass(frozen=True, slots=True)
class Entry:
    """A scenario and its start in seconds."""

    at: float
    scenario: Scenario


def script(
    chance: random.Random, *, lasts: float, has_ranks: bool = False, in_claims: bool = False
) -> list[Entry]:
    """Return the scenarios of a campaign in order of their starts.

    With `has_ranks` pods preempt others, and start in groups. With `in_claims` they get devices
    through ResourceClaims.
    """
    told = (*(_RANKED if has_ranks else _TOLD), *(_CLAIMED if in_claims else ()))
    entries = [
        Entry(chance.uniform(0, part * lasts), _told_as(make, chance, number))
        for times, part, make in told
        for number in range(times)
    ]
    return sorted(entries, key=lambda entry: entry.at)


def encores(chance: random.Random) -> Iterator[Scenario]:
    """Yield more scenarios, to be played while faults are still injected."""
    number = 1000
    while True:
        yield _told_as(chance.choice(_ENCORES), chance, number)
        number += 1


def _told_as(make: Teller, chance: random.Random, number: int) -> Scenario:
    return make(chance, f"{make.__name__.replace('_', '-')}-{number}")


async def play(entries: list[Entry], stage: Stage, *, more: Iterator[Scenario]) -> None:
    """Play all scenarios to their ends, and more until the stage has seen enough faults."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as scenarios:
        began = loop.time()
        for entry in entries:
            await asyncio.sleep(max(0.0, began + entry.at - loop.time()))
            scenarios.create_task(_played(entry.scenario, stage))
        while not stage.enough.is_set():
            scenarios.create_task(_played(next(more), stage))
            await asyncio.sleep(_ENCORE_EVERY_S * stage.pace)


async def _played(scenario: Scenario, stage: Stage) -> None:
    try:
        await scenario(stage)
    except Refused as refusal:
        stage.findings.append(f"refused: {refusal}")
