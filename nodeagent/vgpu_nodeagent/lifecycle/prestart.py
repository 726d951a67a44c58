"""Serves Allocate, which turns slots into a slot allocation, and PreStart, which grants it.

The kubelet calls Allocate without naming the pod. PreStart finds the pod and its claim, and has the
slot allocation granted (`granting.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.errors import KubeletUnavailable, Refused, Why
from vgpu_nodeagent.kubelet.identity import Consumer, identify
from vgpu_nodeagent.kubelet.server import KubeletCall
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.alignment import misaligned
from vgpu_nodeagent.lifecycle.decisions.init_starts import Fill, InitStarts
from vgpu_nodeagent.lifecycle.granting import Granting, Sweeping
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.slots import SlotState


class PreStart:
    """Answers Allocate and PreStartContainer.

    Args:
        node: The node.
        reports: Reports grants and refusals.
        waiting: Wakes refused pods when what they lack appears.
        releases: Releases what has ended.
        patience_s: Retry a refusal that may resolve itself for this long within one call.
        clock: The time.
    """

    def __init__(
        self,
        node: LocalNode,
        *,
        reports: Reports,
        waiting: WaitingPods,
        releases: Sweeping,
        patience_s: float = 1.5,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._reports = reports
        self._clock = clock or Clock()
        self._granting = Granting(
            node, reports=reports, waiting=waiting, releases=releases, patience_s=patience_s
        )
        self._init_starts = InitStarts()

    def allocate(self, slot_ids: Iterable[str]) -> tuple[str, tuple[Mount, Mount]]:
        """Allocate slots to a container that is not known yet.

        The slot allocation is on disk when this returns: a restarted agent is not asked again.

        Returns:
            The slot allocation's name, and the mounts of its page and usage folder.

        Raises:
            Refused: The slot allocation cannot be recorded.
        """
        checkpoint = self._node.checkpoint
        state, slot_allocation = slots.allocate(
            checkpoint.state, slot_ids=slot_ids, nonce=secrets.token_hex(6), now=self._clock.unix()
        )
        try:
            mounts = self._node.allocations.create(slot_allocation.name)
            checkpoint.commit(state)
        except OSError as error:
            self._node.allocations.close(slot_allocation.name)
            raise Refused(Why.STORAGE_FAILED, f"cannot record the allocation: {error}") from error
        return slot_allocation.name, mounts

    async def prepare(self, slot_ids: Iterable[str], *, call: KubeletCall) -> None:
        """Grant the devices of its claim to the container that the kubelet is about to start.

        Args:
            slot_ids: The container's slots.
            call: The kubelet's call, which may end before it is answered.

        Raises:
            Refused: The container must not start.
        """
        applicant = _Slots(self._node, tuple(slot_ids), self._init_starts)
        start = await self._granting.grant(applicant, call=call)
        self._compare_cpus(start.consumer, start.claim)

    def _compare_cpus(self, consumer: Consumer, claim: VGPUClaim) -> None:
        """Report exclusive CPUs on another NUMA node than the devices, if the claim forbids it."""
        allocation = claim.status.allocation
        if not consumer.cpus or allocation is None:
            return
        devices, host = self._node.inventory.devices, self._node.host_numa
        if apart := misaligned(consumer, claim, allocation, devices=devices, host=host):
            self._reports.warning(consumer.pod, "MisalignedCPUs", apart)


class _Slots:
    """The slots of a container that is about to start."""

    def __init__(self, node: LocalNode, ids: tuple[str, ...], init_starts: InitStarts) -> None:
        self._node = node
        self._ids = ids
        self._init_starts = init_starts

    def pod(self) -> Pod | None:
        node, ids = self._node, frozenset(self._ids)
        try:
            entries = node.kubelet.entries()
        except KubeletUnavailable as error:
            raise Refused(Why.KUBELET_UNAVAILABLE, str(error)) from error
        uid = next((entry.pod_uid for entry in entries if entry.slot_ids == ids), "")
        return node.view.pod_with_uid(uid)

    async def consumer(self) -> Consumer:
        node = self._node
        try:
            listing, entries = await node.kubelet.read()
        except KubeletUnavailable as error:
            raise Refused(Why.KUBELET_UNAVAILABLE, str(error)) from error
        return identify(self._ids, entries=entries, listing=listing, pods=node.view.pods.objects)

    def accept(self, claim: VGPUClaim, allocation: Allocation) -> None:
        # A container with a slot and a share would have two pages, each with all of the limit.
        if allocation.resource_claim_uid:
            raise Refused(
                Why.REQUEST_MISMATCH,
                f"claim {claim.metadata.namespace}/{claim.metadata.name} is given through a "
                f"ResourceClaim, so its pod must not request {self._node.kubelet.resource}",
            )

    def to_fill(
        self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation, state: SlotState
    ) -> Fill:
        held = state.claim_allocations.get(claim.metadata.uid)
        return self._init_starts.to_fill(consumer, claim, allocation, held)

    def state(self, fill: Fill) -> SlotState:
        return self._node.checkpoint.state
