"""A clock that a test sets."""

from __future__ import annotations

import asyncio

from vgpu_client.clock import Clock


class SetClock(Clock):
    """Shows the time that a test sets, monotonic and as Unix seconds; sleeping takes no time.

    Attributes:
        time: The time that it shows.
        spread: The jitter.
        slept: The requested duration of each wait.
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
