"""Frees what only init containers needed, once they have ended.

When every ordinary init container has exited with 0 and no process maps their usage regions, their
pages are closed for good and their CDI specs removed. Only then does the claim count by its app
containers alone, and the end is reported to the API server, so that the operator may allocate the
rest to others. If the kubelet must run the init containers again, that is reported as well, and
they do not start until the operator has found capacity for them again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from vgpu_api import init_part
from vgpu_api.core.pod import Pod
from vgpu_api.effective import effective_use
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.slots import ClaimAllocation

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    """An open claim allocation with its pod and claim as they are now."""

    claim_allocation: ClaimAllocation
    pod: Pod
    claim: VGPUClaim
    allocation: Allocation

    @property
    def round(self) -> InitRound:
        return init_part.init_round(self.allocation)

    @property
    def is_over(self) -> bool:
        """True if no page of this round is open any more."""
        has_part = init_part.has_init_part(self.claim.spec, self.allocation)
        return self.claim_allocation.init_ended == self.round or not has_part

    @property
    def ended_ids(self) -> frozenset[str] | None:
        """Return the ids of the containers of this round once all have ended; None before.

        The pod's status shows the ids of the round before until the new containers start.
        """
        ids = init_part.ended_init_ids(self.pod)
        return None if ids is None or ids & set(self.claim_allocation.init_ids) else ids


class InitEnds:
    """Finds init containers that have ended, and those that must run again.

    Args:
        node: The node.
        reports: Writes to the API server.
    """

    def __init__(self, node: LocalNode, *, reports: Reports) -> None:
        self._node = node
        self._reports = reports

    async def sweep(self) -> tuple[bool, bool]:
        """Look at every claim once; return whether capacity was freed, and whether more is to come.

        Raises:
            OSError: The record cannot be written; nothing is reported then.
        """
        freed = left = False
        for claim_uid in list(self._node.checkpoint.state.claim_allocations):
            found = self._open(claim_uid)
            if found is None:
                continue
            if found.is_over:
                self._report(found)
            elif found.ended_ids is not None:
                closed = await self._close(claim_uid)
                freed |= closed
                left |= not closed
        return freed, left

    def _report(self, found: _Open) -> None:
        """Report the state of the round; `Reports` skips what the claim already shows."""
        if init_part.ended_init_ids(found.pod) is None:
            self._reports.init_wanted(found.claim, found.round)
        elif found.claim_allocation.init_ended == found.round:
            self._reports.init_ended(found.claim, found.round)

    async def _close(self, claim_uid: str) -> bool:
        node = self._node
        before = self._open(claim_uid)
        for slot_allocation in self._slot_allocations(before):
            pod_uid = before.claim_allocation.pod_uid if before is not None else ""
            if await asyncio.to_thread(node.allocations.users, slot_allocation, pod_uid):
                return False
        # From here on: no await, until everything is written.
        found = self._open(claim_uid)
        if before is None or found is None or found.round != before.round:
            return False
        ids = found.ended_ids
        if ids is None:
            return False
        for slot_allocation in self._slot_allocations(found):
            try:
                node.allocations.shut(slot_allocation)
            except PageDamaged as error:
                logger.warning("%s; it grants nothing", error)
        rest = init_part.without_init_part(found.claim.spec, found.allocation)
        node.checkpoint.commit(
            slots.end_init(
                node.checkpoint.state,
                claim_uid,
                init_round=found.round,
                init_ids=ids,
                use=dict(effective_use(found.claim.spec, rest.devices)),
            )
        )
        place = f"{found.claim_allocation.namespace}/{found.claim_allocation.claim_name}"
        logger.info("init containers of claim %s have ended", place)
        found = self._open(claim_uid)
        if found is not None:
            self._report(found)
        return True

    def _slot_allocations(self, found: _Open | None) -> list[str]:
        if found is None:
            return []
        init = init_part.init_containers(found.pod)
        slot_allocations = self._node.checkpoint.state.of_claim(found.claim_allocation.claim_uid)
        return [
            slot_allocation.name
            for slot_allocation in slot_allocations
            if slot_allocation.container in init
        ]

    def _open(self, claim_uid: str) -> _Open | None:
        """Return the open allocation of a claim with init containers; None if there is none."""
        view = self._node.view
        claim_allocation = self._node.checkpoint.state.claim_allocations.get(claim_uid)
        claim = view.claim_with_uid(claim_uid)
        pod = view.pod_with_uid(claim_allocation.pod_uid) if claim_allocation is not None else None
        if (
            claim_allocation is None
            or claim_allocation.closed
            or claim is None
            or pod is None
            or pod.is_terminal
        ):
            return None
        allocation = claim.status.allocation
        if allocation is None or allocation.id != claim_allocation.allocation_id:
            return None
        if not init_part.init_requests(claim.spec):
            return None
        return _Open(claim_allocation, pod, claim, allocation)
