"""Time as an object that tests can replace."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol


class TimeOfDay(Protocol):
    """Provides the time of day; the API server's client does."""

    def unix(self) -> float:
        """Return the time of day in Unix seconds."""


class Clock:
    """Monotonic seconds for waiting, Unix seconds for records, and sleeping.

    Args:
        day: The source of the time of day. Later leaders compare the times that we record, so use
            the API server's time where there is one. None: this machine's time.
    """

    def __init__(self, day: TimeOfDay | None = None) -> None:
        self._day = day

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def unix(self) -> float:
        """Return the time of day in seconds."""
        return time.time() if self._day is None else self._day.unix()

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds."""
        await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """Return a number from 0 to 1, by which many processes spread their waits."""
        return random.random()


def rfc3339(unix: float) -> str:
    """Return Unix time in RFC 3339 with microseconds."""
    return (
        datetime.fromtimestamp(unix, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
