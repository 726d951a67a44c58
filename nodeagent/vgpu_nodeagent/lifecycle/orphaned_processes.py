"""Finds processes of a pod that has vanished, before its devices go to somebody else."""

from __future__ import annotations

import asyncio
import logging

from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.slots import ClaimAllocation

logger = logging.getLogger(__name__)

_PIDS_NAMED = 8


class OrphanedProcesses:
    """Finds processes that still use the devices granted to a pod.

    Args:
        node: The node.
        reports: Reports claims that stay allocated because processes cannot be inspected.
    """

    def __init__(self, node: LocalNode, *, reports: Reports) -> None:
        self._node = node
        self._reports = reports
        self._reported: dict[str, frozenset[int]] = {}  # by claim UID

    async def are_there(self, claim_allocation: ClaimAllocation) -> bool:
        """Return True if processes of the pod use, or may use, the devices granted to it."""
        allocations = self._node.allocations
        # A claim allocation that was rebuilt only from a page has no pod.
        is_known = claim_allocation.pod_uid != claim_allocation.claim_uid
        pod_uid = claim_allocation.pod_uid if is_known else ""
        if is_known:
            running = await asyncio.to_thread(allocations.pod_processes, pod_uid)
            if running:
                return True
        for slot_allocation in self._node.checkpoint.state.of_claim(claim_allocation.claim_uid):
            users = await asyncio.to_thread(allocations.users, slot_allocation.name, pod_uid)
            if users.unknown and not users.certain:
                self._report(claim_allocation, users.unknown)
            if users:
                return True
        self._reported.pop(claim_allocation.claim_uid, None)
        return False

    def _report(self, claim_allocation: ClaimAllocation, pids: frozenset[int]) -> None:
        """Report the processes that keep the devices, and again only when they change."""
        if self._reported.get(claim_allocation.claim_uid) == pids:
            return
        self._reported[claim_allocation.claim_uid] = pids
        listed = ", ".join(map(str, sorted(pids)[:_PIDS_NAMED]))
        message = (
            f"the node agent may not look into {len(pids)} processes of its node (PID {listed}): "
            "it lacks CAP_SYS_PTRACE. They may be using the GPUs, which stay taken until they end"
        )
        logger.warning(
            "claim %s/%s: %s", claim_allocation.namespace, claim_allocation.claim_name, message
        )
        claim = self._node.view.claim_with_uid(claim_allocation.claim_uid)
        allocation = claim.status.allocation if claim is not None else None
        if claim and allocation and allocation.id == claim_allocation.allocation_id:
            self._reports.not_released(claim, "ProcessesUnreadable", message)
