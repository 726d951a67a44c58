"""The times at which the leader checks its certificates, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from vgpu_client.errors import Unreachable
from vgpu_operator.controllers.certificates import AGAIN_S, PAUSE_S, rotate
from virtual_time import VirtualLoop

START_S = 1000.0


class Keeper:
    """Records its calls; gives the scripted answers, and then answers that nothing is due."""

    def __init__(self, *answers: bool | Unreachable) -> None:
        self.asked: list[float] = []
        self._answers = list(answers)

    async def step(self) -> bool:
        self.asked.append(asyncio.get_running_loop().time() - START_S)
        answer = self._answers.pop(0) if self._answers else False
        if isinstance(answer, Unreachable):
            raise answer
        return answer


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


async def rounds(keeper: Keeper, *, until_s: float, changes_s: tuple[float, ...] = ()) -> None:
    """Run for so long, with changes of a webhook configuration at these times."""
    changed = asyncio.Event()
    running = asyncio.get_running_loop()
    for change_s in changes_s:
        running.call_at(START_S + change_s, changed.set)
    task = asyncio.create_task(rotate(keeper, changed))
    await asyncio.sleep(until_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_is_due_is_done_at_once_and_looked_for_again_later(loop: VirtualLoop) -> None:
    keeper = Keeper(True, True)
    loop.run_until_complete(rounds(keeper, until_s=2.5 * AGAIN_S))
    assert keeper.asked == [0, 0, 0, AGAIN_S, 2 * AGAIN_S]


def test_a_changed_webhook_configuration_is_looked_at_soon(loop: VirtualLoop) -> None:
    keeper = Keeper()
    loop.run_until_complete(rounds(keeper, until_s=AGAIN_S, changes_s=(2, 6)))
    assert keeper.asked == [0, 2 + PAUSE_S, 6 + PAUSE_S]


def test_changes_without_end_are_answered_once_a_second(loop: VirtualLoop) -> None:
    """Another controller may undo each repair."""
    keeper = Keeper()
    changes = tuple(number / 16 for number in range(1, 80))
    loop.run_until_complete(rounds(keeper, until_s=5, changes_s=changes))
    gaps = [later - earlier for earlier, later in itertools.pairwise(keeper.asked)]
    assert len(gaps) >= 4
    assert min(gaps) >= PAUSE_S


def test_a_failed_round_is_tried_again_soon(loop: VirtualLoop) -> None:
    keeper = Keeper(True, Unreachable("no API server"))
    loop.run_until_complete(rounds(keeper, until_s=PAUSE_S + AGAIN_S / 2))
    assert keeper.asked == [0, 0, PAUSE_S]
