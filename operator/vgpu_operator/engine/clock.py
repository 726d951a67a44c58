"""The engine's time, as one value that tests replace."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """Monotonic seconds for waiting, Unix seconds for what is written down, and the waiting."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def unix(self) -> float:
        """The time of day, seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
