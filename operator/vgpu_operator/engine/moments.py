"""Moments that name something, so that no two are the same, whatever the clock does.

With a clock that stands still the agent's word about the last allocation would else be taken for
one about the next.
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu_operator.engine.status import rfc3339


class Moments:
    """Hands out moments.

    Args:
        unix: Unix time.
    """

    def __init__(self, unix: Callable[[], float]) -> None:
        self._unix = unix
        self._last_us = 0

    def next(self) -> str:
        """Now in RFC 3339, but never the same moment twice."""
        self._last_us = max(round(self._unix() * 1e6), self._last_us + 1)
        return rfc3339(self._last_us / 1e6)
