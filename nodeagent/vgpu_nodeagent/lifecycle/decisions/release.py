"""Decides which allocations on a node have ended, to be closed, forgotten and reported.

A pod has ended when it is terminal or gone. Every decision looks at the current state and relies
on no event that it remembers, so it is the same after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim
from vgpu_nodeagent.events import RoomMade
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.kubelet.pod_resources import PodListing
from vgpu_nodeagent.lifecycle.effects import ClosePage, Commit, Effect, ReportReleased
from vgpu_nodeagent.state import claim_instances, slots
from vgpu_nodeagent.state.claim_instances import ClaimInstance
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotState


@dataclass(frozen=True, slots=True)
class Endings:
    """A node's record, compared with its pods and claims to find what has ended.

    Attributes:
        state: What is allocated on the node.
        view: The newest known pods and claims of the node.
        gone: UIDs of pods that were seen here and are gone.
    """

    state: SlotState
    view: NodeView
    gone: Collection[str]

    def ended(self) -> Sequence[ClaimAllocation]:
        """Return the open claim allocations whose pod has ended."""
        return [
            each
            for each in self.state.claim_allocations.values()
            if not each.closed and self._has_ended(each.pod_uid)
        ]

    def is_held(
        self, held: ClaimAllocation, listing: PodListing, entries: Sequence[KubeletEntry]
    ) -> bool:
        """True if the kubelet still has a container of the pod.

        A new pod may have the same name and slots already: only a slot allocation on the kubelet's
        record is still held.
        """
        place = (held.namespace, held.pod_name)
        known = {entry.slot_allocation for entry in entries}
        return any(
            (container.namespace, container.pod) == place
            for each in self.state.of_claim(held.claim_uid)
            if each.name in known
            for container in listing.holders(frozenset(each.slot_ids))
        )

    def instances_over(self) -> Sequence[ClaimInstance]:
        """Return the MIG instances that are not needed any more."""
        return list(filter(self._is_over, self.state.claim_instances.values()))

    def recorded(self) -> Sequence[ClaimAllocation]:
        """Return the closed claim allocations whose release the API server has recorded."""
        return [
            each
            for each in self.state.claim_allocations.values()
            if each.closed
            and (
                (claim := self.view.claim_with_uid(each.claim_uid)) is None
                or _allocation_id(claim) != each.allocation_id
            )
        ]

    def released(self) -> Sequence[ReportReleased]:
        """Return the reports of claims that are released and do not show it yet."""
        return [
            ReportReleased(claim, allocation_id)
            for claim in self.view.claims.objects.values()
            if (allocation_id := _allocation_id(claim))
            and not _is_released(claim)
            and not claim_instances.of_claim(self.state.claim_instances, claim.metadata.uid)
            and self._nothing_granted(claim)
        ]

    def unseen(self) -> Sequence[tuple[VGPUClaim, ReservedFor]]:
        """Return the claims without a claim allocation whose pod was never seen here."""
        return [
            (claim, reserved)
            for claim, reserved in reserved_claims(self.view)
            if reserved.pod_uid not in self.gone
            and claim.metadata.uid not in self.state.claim_allocations
            and self.view.pod_with_uid(reserved.pod_uid) is None
        ]

    def _has_ended(self, pod_uid: str) -> bool:
        """True if a pod that ran here has ended."""
        pod = self.view.pod_with_uid(pod_uid)
        return pod is None or pod.is_terminal

    def _is_over(self, instance: ClaimInstance) -> bool:
        """True if an instance is not needed any more; its claim allocation, if any, decides."""
        held = self.state.claim_allocations.get(instance.claim_uid)
        if held is not None and held.allocation_id == instance.allocation_id:
            return held.closed
        claim = self.view.claim_with_uid(instance.claim_uid)
        return (
            claim is None
            or _allocation_id(claim) != instance.allocation_id
            or self._nothing_granted(claim)
        )

    def _nothing_granted(self, claim: VGPUClaim) -> bool:
        held = self.state.claim_allocations.get(claim.metadata.uid)
        if held is not None and held.allocation_id == _allocation_id(claim):
            return held.closed
        reserved = claim.status.reserved_for
        if reserved is None or held is not None:
            return False
        if self.state.has_open_account(reserved.pod_uid):
            return False  # it belongs to an earlier claim of the same name
        # A pod that was never seen here may still be on its way: only a read of the API server
        # shows that it is gone (`gone`).
        pod = self.view.pod_with_uid(reserved.pod_uid)
        return pod.is_terminal if pod is not None else reserved.pod_uid in self.gone


def close(state: SlotState, claim_uid: str) -> Sequence[Effect]:
    """Close the pages of a claim, then free its slots and devices."""
    # In this order, because a page that is still open would let a process use devices that already
    # belong to another claim.
    pages = (ClosePage(each.name) for each in state.of_claim(claim_uid))
    return *pages, Commit(slots.close(state, claim_uid)), RoomMade()


def drop(state: SlotState, name: str) -> Sequence[Effect]:
    """Close the page of a slot allocation that was never bound, then free its slots."""
    return ClosePage(name), Commit(slots.drop(state, name)), RoomMade()


def forget(state: SlotState, claim_uid: str) -> Sequence[Effect]:
    """Drop a claim allocation that is closed."""
    return [Commit(slots.forget(state, claim_uid))]


def reserved_claims(view: NodeView) -> Sequence[tuple[VGPUClaim, ReservedFor]]:
    """Return the claims that are reserved for a pod."""
    return [
        (claim, claim.status.reserved_for)
        for claim in view.claims.objects.values()
        if claim.status.reserved_for is not None
    ]


def _allocation_id(claim: VGPUClaim) -> str:
    return claim.status.allocation.id if claim.status.allocation is not None else ""


def _is_released(claim: VGPUClaim) -> bool:
    released = claim.status.released
    return released is not None and released.allocation_id == _allocation_id(claim)
