"""Divides work that can wait into slices, so that calls can be answered in between.

A replica has one event loop. During a burst, watch events and the engine's rounds keep it busy
while kube-scheduler's calls come in, and a Filter takes several turns of the loop from its
connection to its answer. So each task whose work can wait yields after half a millisecond, for as
many turns as a call takes. Then only one of these tasks continues, so a call waits for one slice
and not for one of each task. If calls keep the loop busy, slices become longer, so that the tasks
get a fifth of the loop in total; otherwise the API server would end watches that are not read.
"""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.0005
_TURNS = 5
"""Turns of the loop between two slices. A turn without work takes some 10 µs."""
_PART = 0.25
"""A slice lasts at least this share of the time that these turns took."""


class Slices:
    """A lock by which tasks whose work can wait take turns in one loop."""

    def __init__(self) -> None:
        self._queue = asyncio.Lock()

    def now(self) -> float:
        """Return the time by which slices are measured; tests with virtual time randomize it."""
        return time.perf_counter()

    async def next(self) -> float:
        """Wait until calls have been answered and it is this task's turn.

        Returns:
            The length of the slice in seconds.
        """
        async with self._queue:
            began = self.now()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            return max(SLICE_S, _PART * (self.now() - began))


class Slice:
    """The current slice of one task; a new slice begins whenever the loop has had a turn.

    Args:
        slices: The turns, shared by all such tasks.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._loop = asyncio.get_running_loop()
        self._begin()

    def is_over(self) -> bool:
        """Return True if the task has used up its slice."""
        # the task has awaited something, so other calls could be answered
        if self._had_turn:
            self._begin()
        return self._slices.now() > self._ends

    async def next(self) -> None:
        """Let calls be answered, and wait until the task may continue."""
        self._begin(await self._slices.next())

    def _begin(self, lasts_s: float = SLICE_S) -> None:
        self._ends = self._slices.now() + lasts_s
        self._had_turn = False
        self._loop.call_soon(self._note_turn)

    def _note_turn(self) -> None:
        self._had_turn = True
