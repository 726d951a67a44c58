"""What tentative places and earmarks keep from one claim while it is planned."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from vgpu_operator.engine.scheduling.earmarks import Earmarks
from vgpu_operator.engine.scheduling.queue import Kind
from vgpu_operator.engine.scheduling.reservation import Reservation, Reservations
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, Share

CROWDED = 4
"""So many kinds of pods are requeued for one node before no more are."""


class Yielding(Enum):
    """Which tentative places a claim respects."""

    ALL = "all"
    """Every other's: a Filter looks for room beside them first."""
    MORE_IMPORTANT = "more important"
    """Only those of pods of a higher priority: everybody else's yields to a Filter."""
    OF_ITS_KIND = "of its kind"
    """For a requeue: as many pods of a kind are requeued as there is room for, but pods of another
    kind are not kept waiting for one that may never come."""
    AS_IMPORTANT = "as important"
    """For an Immediate claim: those of pods of its priority or a higher one."""


@dataclass(frozen=True, slots=True)
class KeptFrom:
    """What is kept from a claim; see `placement.Kept`.

    Attributes:
        key: The claim.
        kind: Its kind, if it waits.
        priority: Its pod's, or its own.
        yielding: Which tentative places count.
        columns: The state of all devices.
        reservations: Where the tentative places are.
        earmarks: Count always, but for the claim's own.
    """

    key: ClaimKey
    kind: Kind | None
    priority: int
    yielding: Yielding
    columns: Final[Columns]
    reservations: Final[Reservations]
    earmarks: Final[Earmarks]

    @property
    def nodes(self) -> Collection[int]:
        """See `placement.Kept`."""
        maps: tuple[Any, Any] = self.reservations.tentative, self.earmarks.by_node
        return ChainMap(*maps)

    def on(self, node: int) -> Sequence[Share]:
        """See `placement.Kept`."""
        shares = self.earmarks.shares_on(self.columns, node, self.key)
        there = self.reservations.tentative.get(node, {}).values()
        crowded = self.yielding is Yielding.OF_ITS_KIND and self._is_crowded(there)
        for place in there:
            if place.key != self.key and (crowded or self._counts(place)):
                shares += place.shares
        return shares

    def _counts(self, place: Reservation) -> bool:
        match self.yielding:
            case Yielding.ALL:
                return True
            case Yielding.MORE_IMPORTANT:
                return place.is_awaited and place.priority > self.priority
            case Yielding.AS_IMPORTANT:
                return place.is_awaited and place.priority >= self.priority
        return place.is_awaited and (place.kind == self.kind or place.priority > self.priority)

    def _is_crowded(self, there: Collection[Reservation]) -> bool:
        return len({place.kind for place in there if place.is_awaited} - {self.kind}) >= CROWDED
