"""Time, as one object that tests replace."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol


class TimeOfDay(Protocol):
    """Knows the time of day; the API server's client does."""

    def unix(self) -> float:
        """Return the time of day, Unix seconds."""


class Clock:
    """Monotonic seconds for waiting, Unix seconds for what is written down, and the waiting.

    Args:
        day: What is written down is compared by later leaders, so where there is an API server the
            time of day is that one's. None: this machine's.
    """

    def __init__(self, day: TimeOfDay | None = None) -> None:
        self._day = day

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def unix(self) -> float:
        """The time of day, seconds."""
        return time.time() if self._day is None else self._day.unix()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """Return a number from 0 to 1, by which many processes spread their waits."""
        return random.random()


def rfc3339(unix: float) -> str:
    """Unix time as RFC 3339 with microseconds."""
    return (
        datetime.fromtimestamp(unix, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
