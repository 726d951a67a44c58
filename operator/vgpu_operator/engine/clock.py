"""The engine's time, as one value that tests replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Monotonic seconds for waiting, Unix seconds for what is written down, and the waiting.

    Args:
        unix: The time of day, seconds. What is written down is compared by later leaders, so where
            there is an API server it is that one's.
    """

    def __init__(self, unix: Callable[[], float] = time.time) -> None:
        self._unix = unix

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def unix(self) -> float:
        """The time of day, seconds."""
        return self._unix()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


def rfc3339(unix: float) -> str:
    """Unix time as RFC 3339 with microseconds."""
    return (
        datetime.fromtimestamp(unix, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
