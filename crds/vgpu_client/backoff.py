"""The wait before the next attempt: it doubles each time, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Doubles the wait with every failure; after a success, make a new one.

    Attributes:
        first_s: Seconds after the first failure.
        last_s: The longest wait, in seconds.
        failures: The number of failures so far.
    """

    first_s: float
    last_s: float
    failures: int = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait before the next attempt."""
        self.failures += 1
        return min(self.first_s * 2.0 ** min(self.failures - 1, 16), self.last_s)
