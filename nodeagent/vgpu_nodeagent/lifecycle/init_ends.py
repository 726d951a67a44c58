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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vgpu_api import init_part
from vgpu_api.core.pod import Pod
from vgpu_api.effective import effective_use
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.lifecycle.effector import GrantEffector
from vgpu_nodeagent.lifecycle.effects import (
    Commit,
    Effect,
    ReportInitEnded,
    ReportInitWanted,
    ShutPage,
)
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    """An open claim allocation with the current versions of its pod and claim.

    Attributes:
        held: The claim allocation.
        pod: The pod.
        claim: The claim.
        allocation: The claim's allocation.
        slot_allocations: The slot allocations of the pod's init containers, by name.
    """

    held: ClaimAllocation
    pod: Pod
    claim: VGPUClaim
    allocation: Allocation
    slot_allocations: Sequence[str]

    @property
    def round(self) -> InitRound:
        return init_part.init_round(self.allocation)

    @property
    def is_over(self) -> bool:
        """True if no page of this round is open any more."""
        has_part = init_part.has_init_part(self.claim.spec, self.allocation)
        return self.held.init_ended == self.round or not has_part

    @property
    def ended_ids(self) -> frozenset[str] | None:
        """Return the ids of the containers of this round once all have ended; None before.

        The pod's status shows the ids of the round before until the new containers start.
        """
        ids = init_part.ended_init_ids(self.pod)
        return None if ids is None or ids & set(self.held.init_ids) else ids

    def end(self, state: SlotState, ids: Iterable[str]) -> Sequence[Effect]:
        """Close the pages of the round, then count the claim by its app containers alone."""
        rest = init_part.without_init_part(self.claim.spec, self.allocation)
        ended = slots.end_init(
            state,
            self.held.claim_uid,
            init_round=self.round,
            init_ids=ids,
            use=dict(effective_use(self.claim.spec, rest.devices)),
        )
        return *map(ShutPage, self.slot_allocations), Commit(ended)

    def report(self) -> Sequence[Effect]:
        """Report the state of the round; `Reports` skips what the claim already shows."""
        if init_part.ended_init_ids(self.pod) is None:
            return [ReportInitWanted(self.claim, self.round)]
        is_recorded = self.held.init_ended == self.round
        return [ReportInitEnded(self.claim, self.round)] if is_recorded else []


def _open(state: SlotState, view: NodeView, claim_uid: str) -> _Open | None:
    """Return the open allocation of a claim with init containers; None if there is none."""
    held, claim = state.claim_allocations.get(claim_uid), view.claim_with_uid(claim_uid)
    if held is None or held.closed or claim is None:
        return None
    pod, allocation = view.pod_with_uid(held.pod_uid), claim.status.allocation
    if pod is None or pod.is_terminal or allocation is None:
        return None
    if allocation.id != held.allocation_id or not init_part.init_requests(claim.spec):
        return None
    init = init_part.init_containers(pod)
    names = [each.name for each in state.of_claim(claim_uid) if each.container in init]
    return _Open(held, pod, claim, allocation, names)


class InitEnds:
    """Finds init containers that have ended, and those that must run again.

    Args:
        node: The node.
        effector: Carries out what follows.
    """

    def __init__(self, node: LocalNode, effector: GrantEffector) -> None:
        self._node = node
        self._effector = effector

    async def sweep(self) -> tuple[bool, bool]:
        """Check every claim once; return whether capacity was freed and whether to sweep again.

        Raises:
            OSError: The record cannot be written; nothing is reported then.
        """
        freed = left = False
        for claim_uid in list(self._node.checkpoint.state.claim_allocations):
            found = self._find(claim_uid)
            if found is None:
                continue
            if found.is_over:
                self._effector.carry_out(found.report())
            elif found.ended_ids is not None:
                closed = await self._close(found)
                freed |= closed
                left |= not closed
        return freed, left

    async def _close(self, before: _Open) -> bool:
        """Close the pages of a round that nothing uses; return False to be tried again."""
        allocations, claim_uid = self._node.allocations, before.held.claim_uid
        for name in before.slot_allocations:
            if await asyncio.to_thread(allocations.users, name, before.held.pod_uid):
                return False
        # From here on: no await, until everything is written.
        found = self._find(claim_uid)
        ids = found.ended_ids if found is not None and found.round == before.round else None
        if found is None or ids is None:
            return False
        self._effector.carry_out(found.end(self._node.checkpoint.state, ids))
        place = f"{found.held.namespace}/{found.held.claim_name}"
        logger.info("init containers of claim %s have ended", place)
        if (ended := self._find(claim_uid)) is not None:
            self._effector.carry_out(ended.report())
        return True

    def _find(self, claim_uid: str) -> _Open | None:
        return _open(self._node.checkpoint.state, self._node.view, claim_uid)
