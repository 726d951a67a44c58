"""The end of init containers: their pages deny permanently before the app containers' sum counts.

Only once every ordinary init container has exited 0 and no process maps their usage regions are
their pages closed and their specs taken away; then the claim counts here by its app containers,
and the end is reported to the API server, so that the operator may give the rest to others. When
the kubelet has to run them again that is reported too, and until they have been fitted again they
do not start.
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
from vgpu_nodeagent.kubelet.local_node import LocalNode
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
        """Whether this round has no open page any more."""
        has_part = init_part.has_init_part(self.claim.spec, self.allocation)
        return self.claim_allocation.init_ended == self.round or not has_part

    @property
    def ended_ids(self) -> frozenset[str] | None:
        """The containers that ran in this round, once all have ended; None before.

        Those of the round before are shown until the kubelet has started the new ones.
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
        """Look at every claim once: whether room was made, and whether some is still to be made.

        Raises:
            OSError: It cannot be recorded; nothing is reported then.
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
        """Report the current state; what is there already is not written again."""
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
        """What is open on a claim whose spec has init containers; None where there is nothing."""
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
