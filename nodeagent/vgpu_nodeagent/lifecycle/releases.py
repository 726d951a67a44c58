"""Releases allocations once nothing of them can be in use any more.

A pod has ended when it is terminal or gone. Its containers are gone when PodResources no longer
lists them, the kubelet has cleaned up after a pod that vanished, and no process maps the usage
region. Then the page is closed, spec and folder are removed, the slots are free, and the claim's
status names the allocation as released. A sweep looks at the current state and relies on no event
that it remembers, so it works the same after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from vgpu_api import conditions
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import ended_init_ids, init_containers
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_nodeagent.config import UNUSED_ALLOCATION_S
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.events import ClaimChanged, Event, PodChanged, RoomMade
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.kubelet.pod_resources import PodListing
from vgpu_nodeagent.lifecycle.init_ends import InitEnds
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.lifecycle.orphaned_processes import OrphanedProcesses
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import claim_instances, slots
from vgpu_nodeagent.state.claim_instances import ClaimInstance
from vgpu_nodeagent.state.slots import ClaimAllocation

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_ROUND_S = 10.0
LOST_AFTER_S = 120.0
"""A claim's pod that was never seen here is gone if it is still not bound after this long.

The agent cannot read unbound pods, so a pod that waits for its Binding looks the same. Waiting
takes at most 60 s (a Binding without a response); then the operator withdraws the allocation.
"""


class BoundPods(Protocol):
    """Asks the API server which pods are bound to the node."""

    async def is_bound(self, namespace: str, name: str, uid: str) -> bool:
        """Return False if the pod is certainly not bound to this node (a quorum read)."""


class Releases:
    """Finds allocations that have ended and frees them.

    Args:
        node: The node.
        reports: Writes to the API server.
        bound: Asked about claims whose pod was never seen here.
        unused_allocation_s: Keep a slot allocation that is not on the kubelet's record for this
            long.
        clock: The time. A slot allocation's age counts in monotonic seconds from when this process
            first saw it: the time of day may go back, and keep one for an hour.
    """

    def __init__(
        self,
        node: LocalNode,
        *,
        reports: Reports,
        bound: BoundPods,
        unused_allocation_s: float = UNUSED_ALLOCATION_S,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._reports = reports
        self._init_ends = InitEnds(node, reports=reports)
        self._orphans = OrphanedProcesses(node, reports=reports)
        self._bound = bound
        self._unused_allocation_s = unused_allocation_s
        self._clock = clock or Clock()
        self._first_seen: dict[str, float] = {}  # of slot allocations that are not bound
        # UIDs of pods that were seen here and are gone, as long as claims name them.
        self._gone: set[str] = set()
        # When a claim was first seen to name a pod that was never seen here, by pod UID.
        self._missing: dict[str, float] = {}
        self._desired = asyncio.Event()
        self._sweeping: asyncio.Task[bool] | None = None

    def observe(self, event: Event) -> None:
        """Sweep soon after an event that may end an allocation."""
        match event:
            case PodChanged(old=old, new=new):
                self._pod_changed(old, new)
            case ClaimChanged():
                self._desired.set()

    async def run(self) -> None:
        """Sweep after every such event, and every few seconds."""
        await self._node.view.wait_synced()
        await self.look_for_lost_pods()
        while True:
            again_s = _RETRY_S if await self._one_sweep() else self.rest_s()
            try:
                async with asyncio.timeout(again_s):  # wait_for may swallow a cancellation
                    await self._desired.wait()
            except TimeoutError:
                await self.look_for_lost_pods()
            self._desired.clear()

    async def sweep(self) -> None:
        """Free what can be freed now."""
        await self._one_sweep()

    async def close(self) -> None:
        """Cancel the sweep in progress; nothing is written after that."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    def rest_s(self) -> float:
        """Return the seconds until the next sweep is needed, if no event comes before."""
        now = self._clock.monotonic()
        ends = (seen + self._unused_allocation_s for seen in self._unbound().values())
        waits = [end - now for end in ends if end > now]
        return min((_ROUND_S, *(max(wait, _RETRY_S) for wait in waits)))

    async def _one_sweep(self) -> bool:
        """Sweep, or join the sweep in progress; return True if something is left to free soon."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep())
        # A PreStart that is cancelled must not cancel the sweep of the others.
        return await asyncio.shield(self._sweeping)

    async def _sweep(self) -> bool:
        node = self._node
        if not node.view.is_synced:
            return True
        left = False
        # 1. Claims whose pod has ended, and slot allocations that were never bound.
        ended = [
            claim_allocation
            for claim_allocation in node.checkpoint.state.claim_allocations.values()
            if not claim_allocation.closed and self._has_ended(claim_allocation.pod_uid)
        ]
        unused = self._unused_allocations()
        if ended or unused:
            try:
                # PodResources is rate-limited, so it is asked once for all of them.
                listing, entries = await node.kubelet.read()
                for claim_allocation in ended:
                    left |= not await self._close_unless_used(claim_allocation, listing, entries)
                self._drop(unused, entries)
            except (KubeletUnavailable, OSError) as error:
                logger.warning("cannot release yet: %s", error)
                left = True
        # 2. What only init containers needed, while their pod goes on.
        left |= await self._end_inits()
        # 3. MIG instances of claims that never started, or that could not be removed before.
        left |= await self._remove_instances()
        # 4. Usage of dead processes of running pods; in a thread, as it reads the process list.
        for slot_allocation in node.checkpoint.state.slot_allocations.values():
            if slot_allocation.is_bound:
                await asyncio.to_thread(node.allocations.reclaim, slot_allocation.name)
        # 5. Report what is released, and forget what the API server has recorded.
        return not self._release_ended_claims() or left

    async def _remove_instances(self) -> bool:
        """Remove MIG instances that are not needed any more; return True if one is left."""
        instances = self._node.checkpoint.state.claim_instances.values()
        return await self._node.instances.remove_all(list(filter(self._is_over, instances)))

    async def _end_inits(self) -> bool:
        """Close the pages of init containers that have ended; return True if some are left."""
        try:
            freed, left = await self._init_ends.sweep()
        except OSError as error:
            logger.warning("cannot record the end of init containers: %s", error)
            return True
        if freed:
            self._node.events.put(RoomMade())
        return left

    def _has_ended(self, pod_uid: str) -> bool:
        """True if a pod that ran here has ended."""
        pod = self._node.view.pod_with_uid(pod_uid)
        return pod is None or pod.is_terminal

    async def _close_unless_used(
        self,
        claim_allocation: ClaimAllocation,
        listing: PodListing,
        entries: Sequence[KubeletEntry],
    ) -> bool:
        node = self._node
        slot_allocations = node.checkpoint.state.of_claim(claim_allocation.claim_uid)
        place = (claim_allocation.namespace, claim_allocation.pod_name)
        known = {entry.slot_allocation for entry in entries}
        for slot_allocation in slot_allocations:
            for container in listing.holders(frozenset(slot_allocation.slot_ids)):
                # A new pod may have the same name and slots already: only a slot allocation on the
                # kubelet's record is still held.
                if (container.namespace, container.pod) == place and slot_allocation.name in known:
                    return False
        if node.view.pod_with_uid(claim_allocation.pod_uid) is None:
            if node.kubelet.has_directory(claim_allocation.pod_uid):
                return False
            if await self._orphans.are_there(claim_allocation):
                return False
        # Before anybody else gets its place. The driver refuses while something runs on it.
        if not await node.instances.remove(
            claim_allocation.claim_uid, claim_allocation.allocation_id
        ):
            return False
        for slot_allocation in slot_allocations:
            node.allocations.close(slot_allocation.name)
        node.checkpoint.commit(slots.close(node.checkpoint.state, claim_allocation.claim_uid))
        logger.info("released claim %s/%s", claim_allocation.namespace, claim_allocation.claim_name)
        self._node.events.put(RoomMade())
        return True

    def _unused_allocations(self) -> list[str]:
        """Return the slot allocations that were never bound and are old enough to judge."""
        oldest = self._clock.monotonic() - self._unused_allocation_s
        return [name for name, seen in self._unbound().items() if seen < oldest]

    def _unbound(self) -> dict[str, float]:
        """Return the slot allocations that are not bound, and when each was first seen."""
        now, slot_allocations = (
            self._clock.monotonic(),
            self._node.checkpoint.state.slot_allocations.values(),
        )
        unbound = (
            slot_allocation.name
            for slot_allocation in slot_allocations
            if not slot_allocation.is_bound
        )
        self._first_seen = {name: self._first_seen.get(name, now) for name in unbound}
        return self._first_seen

    def _drop(self, unused: Sequence[str], entries: Sequence[KubeletEntry]) -> None:
        # The kubelet removes a pod that went before it started from its record only when it admits
        # the next pod, so an entry counts only if its pod is still there.
        known = {entry.slot_allocation for entry in entries if self._is_here(entry.pod_uid)}
        for name in unused:
            if name not in known:
                self._node.allocations.close(name)
                checkpoint = self._node.checkpoint
                checkpoint.commit(slots.drop(checkpoint.state, name))
                self._node.events.put(RoomMade())

    def _is_here(self, pod_uid: str) -> bool:
        """True if the pod is known, or the kubelet still has a directory for it."""
        is_known = self._node.view.pod_with_uid(pod_uid) is not None
        return is_known or self._node.kubelet.has_directory(pod_uid)

    def _release_ended_claims(self) -> bool:
        """Report released claims; forget claim allocations whose release is recorded in the API.

        Returns:
            False if something could not be recorded.
        """
        node, done = self._node, True
        for claim_allocation in list(node.checkpoint.state.claim_allocations.values()):
            claim = node.view.claim_with_uid(claim_allocation.claim_uid)
            if claim_allocation.closed and (
                claim is None or _allocation_id(claim) != claim_allocation.allocation_id
            ):
                try:
                    node.checkpoint.commit(
                        slots.forget(node.checkpoint.state, claim_allocation.claim_uid)
                    )
                except OSError as error:
                    place = (claim_allocation.namespace, claim_allocation.claim_name)
                    logger.warning("cannot record the end of claim %s/%s: %s", *place, error)
                    done = False
        for claim in node.view.claims.objects.values():
            name = _allocation_id(claim)
            if name and not _is_released(claim) and self._nothing_in_use(claim):
                self._reports.released(claim, name)
        self._gone &= {reserved.pod_uid for _, reserved in _reserved(node)}
        return done

    def _is_over(self, claim_instance: ClaimInstance) -> bool:
        """True if an instance is not needed any more; its claim allocation, if any, decides."""
        claim_allocation = self._node.checkpoint.state.claim_allocations.get(
            claim_instance.claim_uid
        )
        if (
            claim_allocation is not None
            and claim_allocation.allocation_id == claim_instance.allocation_id
        ):
            return claim_allocation.closed
        claim = self._node.view.claim_with_uid(claim_instance.claim_uid)
        return (
            claim is None
            or _allocation_id(claim) != claim_instance.allocation_id
            or self._nothing_granted(claim)
        )

    def _nothing_in_use(self, claim: VGPUClaim) -> bool:
        claim_instance = claim_instances.of_claim(
            self._node.checkpoint.state.claim_instances, claim.metadata.uid
        )
        return not claim_instance and self._nothing_granted(claim)

    def _nothing_granted(self, claim: VGPUClaim) -> bool:
        claim_allocation = self._node.checkpoint.state.claim_allocations.get(claim.metadata.uid)
        if claim_allocation is not None and claim_allocation.allocation_id == _allocation_id(claim):
            return claim_allocation.closed
        reserved = claim.status.reserved_for
        if reserved is None or claim_allocation is not None:
            return False
        if self._node.checkpoint.state.has_open_account(reserved.pod_uid):
            return False  # it belongs to an earlier claim of the same name
        pod = self._node.view.pod_with_uid(reserved.pod_uid)
        return pod.is_terminal if pod is not None else reserved.pod_uid in self._gone

    async def look_for_lost_pods(self) -> None:
        """Find claims whose pod was bound and deleted while no agent ran.

        Kubernetes deletes a pod's own claim with the pod. For a user's claim that was never
        prepared, only time distinguishes a pod that is gone from one that is not bound yet.
        """
        missing: dict[str, float] = {}
        for claim, reserved in _reserved(self._node):
            uid = reserved.pod_uid
            if (
                uid in self._gone
                or claim.metadata.uid in self._node.checkpoint.state.claim_allocations
                or self._node.view.pod_with_uid(uid) is not None
            ):
                continue
            missing[uid] = self._missing.get(uid, self._clock.monotonic())
            is_old = self._clock.monotonic() - missing[uid] >= LOST_AFTER_S
            is_deleted = claim.metadata.deletion_timestamp is not None
            if not (is_deleted or is_old or self._has_left(claim, uid)):
                continue
            namespace = claim.metadata.namespace or ""
            if not await self._bound.is_bound(namespace, reserved.pod_name, uid):
                self._gone.add(uid)
        self._missing = missing

    def _has_left(self, claim: VGPUClaim, pod_uid: str) -> bool:
        """True if an unseen pod was prepared here, and the kubelet has no directory for it.

        `Prepared` ends with its allocation, so the pod was bound here. Without this rule an agent
        that lost its record while the pod went would wait again after each restart.
        """
        prepared = conditions.find(claim.status.conditions, conditions.PREPARED)
        was_here = prepared is not None and prepared.status == "True"
        return was_here and not self._node.kubelet.has_directory(pod_uid)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._gone.add(old.metadata.uid)
            self._reports.pod_gone(old.metadata.uid)
            self._desired.set()
        elif new is not None and (new.is_terminal or _init_moved(old, new)):
            self._desired.set()


def _init_moved(old: Pod | None, new: Pod) -> bool:
    """True if init containers have ended or run again."""
    return bool(init_containers(new)) and (
        old is None or ended_init_ids(new) != ended_init_ids(old)
    )


def _reserved(node: LocalNode) -> list[tuple[VGPUClaim, ReservedFor]]:
    return [
        (claim, claim.status.reserved_for)
        for claim in node.view.claims.objects.values()
        if claim.status.reserved_for is not None
    ]


def _allocation_id(claim: VGPUClaim) -> str:
    return claim.status.allocation.id if claim.status.allocation is not None else ""


def _is_released(claim: VGPUClaim) -> bool:
    released = claim.status.released
    return released is not None and released.allocation_id == _allocation_id(claim)
