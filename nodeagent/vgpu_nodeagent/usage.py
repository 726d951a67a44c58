"""Use of the cards: coarse for their API objects, per claim for the metrics.

An object that changed with every allocation would keep every watcher in the cluster busy, so it
is written seldom, and only when something moved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from vgpu_nodeagent.drivers.base import CardUsage
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.state.slots import SlotState

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """Bytes of one card that a claim may use, and says that it uses."""

    limit: int = 0
    used: int = 0


def use_of_claims(
    state: SlotState, allocations: Allocations
) -> Mapping[tuple[str, str, str], ClaimUse]:
    """Limit and use by (namespace, claim, card UUID), from the pages and regions of its containers.

    A region is its container's word: one that cannot be read is left out and logged.
    """
    found: dict[tuple[str, str, str], ClaimUse] = {}
    for lease in state.leases.values():
        holding = state.holdings.get(lease.claim_uid)
        if holding is None:
            continue
        try:
            limits = {d.uuid: d.memory_bytes for d in allocations.content(lease.name).devices}
            used = {use.uuid: use.used_bytes for use in allocations.usage(lease.name)}
        except PageDamaged as error:
            logger.warning("no usage: %s", error)
            continue
        for uuid, limit in limits.items():
            key = (holding.namespace, holding.claim_name, uuid)
            old = found.get(key, ClaimUse())
            found[key] = ClaimUse(old.limit + limit, old.used + used.get(uuid, 0))
    return found
