"""A clock that a test sets."""

from __future__ import annotations

import asyncio

from vgpu_client.clock import Clock


class SetClock(Clock):
    """Shows what a test sets, as monotonic and as Unix seconds; sleeping takes no time.

    Attributes:
        time: What it shows.
        spread: Its jitter.
        slept: How long it was asked to wait, each time.
    """

    def __init__(self, time: float = 0.0, *, spread: float = 0.5) -> None:
        super().__init__()
        self.time = time
        self.spread = spread
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.time

    def unix(self) -> float:
        return self.time

    def jitter(self) -> float:
        return self.spread

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
