"""Which cards can be relied on: fatal events take one out, a quiet time brings it back.

Pure bookkeeping; the driver's events and the clock are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vgpu_nodeagent.drivers.base import CardEvent, Severity

PROBATION_S = 300.0
"""How long a card must be quiet after a fatal event before it is trusted again."""


@dataclass(frozen=True, slots=True)
class Ailment:
    """Why a card is not healthy, and since when (seconds, monotonic)."""

    reason: str
    message: str
    last_seen: float


class Health:
    """The cards that are not healthy."""

    def __init__(self, *, probation_s: float = PROBATION_S) -> None:
        self._probation_s = probation_s
        self._ailing: dict[str, Ailment] = {}

    def note(self, event: CardEvent, *, cards: Iterable[str], now: float) -> bool:
        """Take an event in; whether any card's health changed.

        Args:
            event: What the driver reported. Without a card it is taken to mean all of them.
            cards: The UUIDs of all cards.
            now: Seconds, monotonic.
        """
        if event.severity is not Severity.FATAL:
            return False
        changed = False
        for uuid in (event.uuid,) if event.uuid else cards:
            changed |= uuid not in self._ailing
            self._ailing[uuid] = Ailment(event.reason, event.message, now)
        return changed

    def recover(self, *, now: float) -> bool:
        """Trust the cards again that were quiet long enough; whether there were any."""
        over = [u for u, a in self._ailing.items() if now - a.last_seen >= self._probation_s]
        for uuid in over:
            del self._ailing[uuid]
        return bool(over)

    def ailment(self, uuid: str) -> Ailment | None:
        """Why a card is not healthy; None for one that is."""
        return self._ailing.get(uuid)
