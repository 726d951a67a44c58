"""How long to wait before the next attempt: twice as long each time, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Doubles with every failure; a success makes a new one.

    Attributes:
        first_s: Seconds after the first failure.
        last_s: Seconds at most.
        failures: Failures so far.
    """

    first_s: float
    last_s: float
    failures: int = 0

    def failed(self) -> float:
        """Count a failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        return min(self.first_s * 2.0 ** min(self.failures - 1, 16), self.last_s)
