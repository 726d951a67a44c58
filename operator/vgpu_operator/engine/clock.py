"""The two clocks of the engine, as one value that tests replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds for waiting, Unix seconds for what is written down."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]
