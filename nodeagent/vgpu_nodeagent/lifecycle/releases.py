"""Releases allocations once no part of them can be in use any more.

A pod has ended when it is terminal or gone. Its containers are gone when PodResources no longer
lists them, the kubelet has cleaned up after a pod that vanished, and no process maps the usage
region. What was prepared for a ResourceClaim stays until the kubelet has it unprepared. Then the
page is closed, spec and folder are removed, the slots are free, and the claim's status names the
allocation as released. `decisions/release.py` decides that; a sweep asks the kubelet, looks for
processes and carries the decisions out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from vgpu_api import conditions
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import ended_init_ids, init_containers
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.clock import Clock
from vgpu_nodeagent.config import UNUSED_ALLOCATION_S
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.events import ClaimChanged, Event, PodChanged, RoomMade
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.lifecycle.decisions.release import Endings, close, drop, forget, reserved_claims
from vgpu_nodeagent.lifecycle.effector import GrantEffector
from vgpu_nodeagent.lifecycle.init_ends import InitEnds
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.lifecycle.orphaned_processes import OrphanedProcesses
from vgpu_nodeagent.reporting.reports import Reports
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
        self._effector = GrantEffector(node, reports)
        self._init_ends = InitEnds(node, self._effector)
        self._orphans = OrphanedProcesses(node, reports=reports)
        self._bound = bound
        self._unused_allocation_s = unused_allocation_s
        self._clock = clock or Clock()
        self._first_seen: dict[str, float] = {}  # of slot allocations that are not bound
        # When each pod that was seen here was found gone, by UID. Its claim may be read later.
        self._gone: dict[str, float] = {}
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

    async def unprepare(self, resource_claim_uid: str) -> bool:
        """Close the shares prepared for a ResourceClaim; return False while they are in use.

        The kubelet asks for it once the containers of the pod are gone, whether our watch shows
        that already or not.

        Raises:
            OSError: The record cannot be written.
        """
        held = self._node.checkpoint.state.prepared(resource_claim_uid)
        if held is None:
            return True
        is_gone = self._node.view.pod_with_uid(held.pod_uid) is None
        if is_gone and await self._orphans.are_there(held):
            return False
        if not await self._close(held):
            return False
        self._forget()
        return True

    async def close(self) -> None:
        """Cancel the sweep in progress; nothing is written after that."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    def rest_s(self) -> float:
        """Return the seconds until the next sweep is needed if no event occurs before."""
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

    def _endings(self) -> Endings:
        gone = self._gone.keys() - self._leaving()
        return Endings(self._node.checkpoint.state, self._node.view, gone)

    def _leaving(self) -> frozenset[str]:
        """Return the UIDs of held pods that are gone while the kubelet still ends them.

        A force-deleted pod vanishes before its containers. Those of a held pod have no usage region
        of ours by which their processes could be found.
        """
        return frozenset(
            reserved.pod_uid
            for claim, reserved in reserved_claims(self._node.view)
            if claim.held_for and self._node.kubelet.has_directory(reserved.pod_uid)
        )

    async def _sweep(self) -> bool:
        node = self._node
        if not node.view.is_synced:
            return True
        # 1. Claims whose pod has ended, and slot allocations that were never bound.
        left = await self._close_ended()
        # 2. What only init containers needed, while their pod keeps running.
        left |= await self._end_inits()
        # 3. MIG instances of claims that never started, or that could not be removed before.
        left |= await node.instances.remove_all(self._endings().instances_over())
        # 4. Usage of dead processes of running pods; in a thread, as it reads the process list.
        for name, slot_allocation in node.checkpoint.state.slot_allocations.items():
            # It may have been unprepared during the await.
            if slot_allocation.is_bound and name in node.checkpoint.state.slot_allocations:
                await asyncio.to_thread(node.allocations.reclaim, name)
        # 5. Forget what the API server has recorded, and report what is released.
        return not self._forget() or left

    async def _close_ended(self) -> bool:
        """Close what has ended and is not in use any more; return True if some is left."""
        ended, unused = self._endings().ended(), self._unused_allocations()
        if not ended and not unused:
            return False
        left = False
        try:
            remembered = self._node.kubelet.remembered({e.resource_claim_uid for e in ended} - {""})
            if remembered:
                ended = [e for e in ended if e.resource_claim_uid not in remembered]
                left = True
            # PodResources is rate-limited, so it is queried once for all of them.
            listing, entries = await self._node.kubelet.read()
            for held in ended:
                if self._endings().is_held(held, listing, entries) or await self._is_used(held):
                    left = True
                else:
                    left |= not await self._close(held)
            self._drop(unused, entries)
        except (KubeletUnavailable, OSError) as error:
            logger.warning("cannot release yet: %s", error)
            return True
        return left

    async def _close(self, held: ClaimAllocation) -> bool:
        """Close a claim allocation; return False while one of its MIG instances is in use.

        Raises:
            OSError: The record cannot be written.
        """
        # Before anybody else gets its place; the driver refuses while something runs.
        if not await self._node.instances.remove(held.claim_uid, held.allocation_id):
            return False
        self._effector.carry_out(close(self._node.checkpoint.state, held.claim_uid))
        logger.info("released claim %s/%s", held.namespace, held.claim_name)
        return True

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

    async def _is_used(self, held: ClaimAllocation) -> bool:
        """Return True if the pod has vanished, and not all of it is gone from the node."""
        node = self._node
        return node.view.pod_with_uid(held.pod_uid) is None and (
            node.kubelet.has_directory(held.pod_uid) or await self._orphans.are_there(held)
        )

    def _unused_allocations(self) -> list[str]:
        """Return the slot allocations that were never bound and are old enough to judge."""
        oldest = self._clock.monotonic() - self._unused_allocation_s
        return [name for name, seen in self._unbound().items() if seen < oldest]

    def _unbound(self) -> dict[str, float]:
        """Return the slot allocations that are not bound, and when each was first seen."""
        now = self._clock.monotonic()
        self._first_seen = {
            each.name: self._first_seen.get(each.name, now)
            for each in self._node.checkpoint.state.slot_allocations.values()
            if not each.is_bound
        }
        return self._first_seen

    def _drop(self, unused: Sequence[str], entries: Sequence[KubeletEntry]) -> None:
        # The kubelet's record keeps a pod that was deleted before it started until the kubelet
        # admits the next pod, so an entry counts only if its pod still exists.
        known = {entry.slot_allocation for entry in entries if self._is_here(entry.pod_uid)}
        for name in unused:
            if name not in known:
                self._effector.carry_out(drop(self._node.checkpoint.state, name))

    def _is_here(self, pod_uid: str) -> bool:
        """True if the pod is known, or the kubelet still has a directory for it."""
        is_known = self._node.view.pod_with_uid(pod_uid) is not None
        return is_known or self._node.kubelet.has_directory(pod_uid)

    def _forget(self) -> bool:
        """Forget claim allocations, and report released claims; return False to be tried again."""
        done = True
        for held in self._endings().recorded():
            try:
                self._effector.carry_out(forget(self._node.checkpoint.state, held.claim_uid))
            except OSError as error:
                place = (held.namespace, held.claim_name)
                logger.warning("cannot record the end of claim %s/%s: %s", *place, error)
                done = False
        self._effector.carry_out(self._endings().released())
        self._forget_gone()
        return done

    def _forget_gone(self) -> None:
        """Forget pods that are gone, once neither a claim nor a pending read can name them."""
        since = self._clock.monotonic() - LOST_AFTER_S
        named = {reserved.pod_uid for _, reserved in reserved_claims(self._node.view)}
        self._gone = {uid: at for uid, at in self._gone.items() if uid in named or at > since}

    async def look_for_lost_pods(self) -> None:
        """Find claims whose pod was bound and deleted while no agent ran.

        Kubernetes deletes a pod's own claim with the pod. For a user's claim that was never
        prepared, only time distinguishes a pod that is gone from one that is not bound yet.
        """
        now, unseen = self._clock.monotonic(), self._endings().unseen()
        uids = [reserved.pod_uid for _, reserved in unseen]
        self._missing = {uid: self._missing.get(uid, now) for uid in uids}
        for claim, reserved in unseen:
            uid = reserved.pod_uid
            is_old = now - self._missing[uid] >= LOST_AFTER_S
            is_deleted = claim.metadata.deletion_timestamp is not None
            if not (is_deleted or is_old or self._has_left(claim, uid)):
                continue
            namespace = claim.metadata.namespace or ""
            if not await self._bound.is_bound(namespace, reserved.pod_name, uid):
                self._gone[uid] = now

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
            self._gone[old.metadata.uid] = self._clock.monotonic()
            self._reports.pod_gone(old.metadata.uid)
            self._desired.set()
        elif new is not None and (new.is_terminal or _init_moved(old, new)):
            self._desired.set()


def _init_moved(old: Pod | None, new: Pod) -> bool:
    """True if init containers have ended or run again."""
    return bool(init_containers(new)) and (
        old is None or ended_init_ids(new) != ended_init_ids(old)
    )
