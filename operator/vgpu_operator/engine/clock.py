"""The engine's time, as one value that tests replace."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


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


def rfc3339(unix: float) -> str:
    """Unix time as RFC 3339 with microseconds."""
    return (
        datetime.fromtimestamp(unix, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
