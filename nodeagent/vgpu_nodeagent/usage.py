"""Coarse use of the cards for their API objects: seldom, and only when it moved.

Exact numbers are for the metrics; an object that changed with every allocation would keep every
watcher in the cluster busy.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpu_nodeagent.drivers.base import CardUsage

STEP_PERCENT = 5
PERIOD_S = 30.0


class CoarseUsage:
    """What was last shown of each card, and when something new is worth showing."""

    def __init__(self) -> None:
        self._shown: dict[str, CardUsage] = {}

    def take(self, usage: Mapping[str, CardUsage], *, memory_mib: Mapping[str, int]) -> bool:
        """Take a new reading in; whether any card moved by 5 % or more of what it has.

        Args:
            usage: The reading, by UUID.
            memory_mib: Each card's memory.
        """
        moved = False
        for uuid, new in usage.items():
            old = self._shown.get(uuid)
            step = max(1, memory_mib.get(uuid, 0) * STEP_PERCENT // 100)
            if (
                old is None
                or abs(new.memory_mib - old.memory_mib) >= step
                or abs(new.cores - old.cores) >= STEP_PERCENT
            ):
                self._shown[uuid] = new
                moved = True
        return moved

    def shown(self, uuid: str) -> CardUsage | None:
        """What to show of a card."""
        return self._shown.get(uuid)
