"""Use of the cards by claims, for the metrics alone.

No API object shows it: one that changed with use would keep etcd and every watcher of the cluster
busy, 40,000 cards more than a thousand times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.state.slots import SlotState

logger = logging.getLogger(__name__)

PERIOD_S = 30.0


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
