"""Work that can wait is done in slices, and calls are answered between two of them.

A replica has one loop. What the watches bring and the engine's rounds may keep it at work for as
long as a burst lasts, and kube-scheduler's calls come meanwhile: a Filter takes several turns of
the loop, from its connection to its answer. So whatever can wait gives the loop up after half
a millisecond, for as many turns as a call takes, and only one of all that wait goes on then: a call
waits for one slice, not for one of each. Where calls keep the loop busy a slice lasts longer, so
that what waits has a fifth of the loop: a watch that is not read is ended by its server.
"""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.0005
_TURNS = 5
"""Of the loop, between two slices. A turn in which nothing is to be done takes some 10 µs."""
_PART = 0.25
"""Of what these took, a slice lasts at least."""


class Slices:
    """Whose turn it is among the tasks of one loop whose work can wait."""

    def __init__(self) -> None:
        self._queue = asyncio.Lock()

    def now(self) -> float:
        """Return the seconds by which slices are measured; in virtual time chance has them."""
        return time.perf_counter()

    async def next(self) -> float:
        """Return when calls have been answered, and no other task began a slice after they were.

        Returns:
            How long the slice may last, in seconds.
        """
        async with self._queue:
            began = self.now()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            return max(SLICE_S, _PART * (self.now() - began))


class Slice:
    """What one task does until it gives the loop up; made anew whenever the loop had its turn.

    Args:
        slices: Shared with the others.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._loop = asyncio.get_running_loop()
        self._begin()

    def is_over(self) -> bool:
        """Whether the task has held the loop for as long as it may."""
        if self._had_turn:  # the task has waited for something
            self._begin()
        return self._slices.now() > self._ends

    async def next(self) -> None:
        """Give the loop up to calls; returns when the task may go on."""
        self._begin(await self._slices.next())

    def _begin(self, lasts_s: float = SLICE_S) -> None:
        self._ends = self._slices.now() + lasts_s
        self._had_turn = False
        self._loop.call_soon(self._note_turn)

    def _note_turn(self) -> None:
        self._had_turn = True
