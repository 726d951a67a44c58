"""Allocate makes slots a slot allocation, and PreStart makes the slot allocation a grant.

Allocate is called before anybody knows the pod. PreStart finds the pod and its claim, decides
(`decisions/start.py`), and only then opens the slot allocation. There is no `await` between the
decision and the last file written, so the state cannot change in between and no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.errors import (
    DriverFilesMissing,
    DriverUnavailable,
    KubeletUnavailable,
    LimitsUnsupported,
    PageDamaged,
    Refused,
    Why,
)
from vgpu_nodeagent.events import StartGranted, StartRefused
from vgpu_nodeagent.kubelet.identity import Consumer, identify
from vgpu_nodeagent.kubelet.server import KubeletCall
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.alignment import misaligned
from vgpu_nodeagent.lifecycle.decisions.init_starts import InitStarts
from vgpu_nodeagent.lifecycle.decisions.reserved_claim import claim_reserved_for
from vgpu_nodeagent.lifecycle.decisions.resize import may_start_with
from vgpu_nodeagent.lifecycle.decisions.start import Start, decide_start
from vgpu_nodeagent.lifecycle.effector import GrantEffector
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import SLOW_S, Reports
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.node_view import Place

logger = logging.getLogger(__name__)

RETRY_S = 0.01
"""Wait this long after writing a CDI spec, so that the runtime notices the file."""

_MAY_PASS = frozenset(
    {
        Why.NOT_SYNCED,
        Why.POD_UNKNOWN,
        Why.RECORDS_DISAGREE,
        Why.WRONG_POD,
        Why.NO_CLAIM,
        Why.SLOT_TAKEN,
        Why.CLAIM_CLOSED,
        Why.OVER_CAPACITY,
        Why.INIT_ENDED,
        Why.MIG_PLACE_MISSING,
        Why.MIG_PLACE_TAKEN,
    }
)
"""Refusals that may resolve themselves, when a watch catches up or a release completes."""


@dataclass(slots=True)
class _Found:
    """Findings of a PreStart so far, for the report of its refusal."""

    consumer: Consumer | None = None
    claim: VGPUClaim | None = None


class Sweeping(Protocol):
    """Releases what has ended."""

    async def sweep(self) -> None:
        """Free what can be freed now."""


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
        self._waiting = waiting
        self._releases = releases
        self._patience_s = patience_s
        self._clock = clock or Clock()
        self._effector = GrantEffector(node, reports)
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
        ids = tuple(slot_ids)
        found = _Found()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            start = await self._try(ids, call, found)
        except Refused as refused:
            self._report(refused, found)
            raise
        self._waiting.done(_place(start.consumer))
        self._node.events.put(StartGranted(start.consumer.pod))
        if start.has_devices:
            took_s = clock() - began
            self._reports.prepared(start.claim, _summary(took_s), took_s=took_s)
        self._compare_cpus(start.consumer, start.claim)
        await asyncio.sleep(RETRY_S)

    async def _try(self, ids: tuple[str, ...], call: KubeletCall, found: _Found) -> Start:
        """Attempt until the container is granted, refused for good, or out of time."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        wait_s = 0.05
        while True:
            try:
                return await self._attempt(ids, call, found)
            except Refused as refused:
                left_s = deadline - asyncio.get_running_loop().time()
                if refused.reason not in _MAY_PASS or left_s <= 0:
                    raise
            # What is refused may be held by a pod that has just ended. Retrying within the call is
            # worth it: the kubelet itself waits 10 s before it asks again.
            await self._releases.sweep()
            await asyncio.sleep(min(wait_s, left_s))
            wait_s *= 2

    async def _attempt(self, ids: tuple[str, ...], call: KubeletCall, found: _Found) -> Start:
        # An agent that has just started would not find the claim of a pod that has one.
        if not self._node.view.is_synced:
            raise Refused(
                Why.NOT_SYNCED, "the node agent has not yet read pods and claims of this node"
            )
        await self._node.claims.read_for((await self._identify(ids, found)).pod)
        consumer, claim, allocation = await self._look_up(ids, found)
        if await self._limit(consumer, claim, allocation):
            # Anything may have changed meanwhile.
            consumer, claim, allocation = await self._look_up(ids, found)
        # No await from here until everything is written.
        start = self._decide(consumer, claim, allocation)
        self._carry_out(start, call)
        return start

    async def _look_up(
        self, ids: tuple[str, ...], found: _Found
    ) -> tuple[Consumer, VGPUClaim, Allocation]:
        """Find the pod and claim of the slots, without an await after the kubelet's response."""
        consumer = await self._identify(ids, found)
        claim, allocation = claim_reserved_for(
            consumer.pod, self._node.view.claims.objects.values(), node=self._node.name
        )
        found.claim = claim
        return consumer, claim, allocation

    async def _identify(self, ids: tuple[str, ...], found: _Found) -> Consumer:
        """Find the pod of the slots, without an await after the kubelet's response."""
        node = self._node
        try:
            listing, entries = await node.kubelet.read()
        except KubeletUnavailable as error:
            raise Refused(Why.KUBELET_UNAVAILABLE, str(error)) from error
        found.consumer = identify(
            ids, entries=entries, listing=listing, pods=node.view.pods.objects
        )
        return found.consumer

    async def _limit(self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Apply the limits that lie outside the page; return True if that took an await.

        This comes before anything is recorded: a limit of a pod that is then refused harms nobody.
        """
        try:
            granted = may_start_with(claim, allocation)
            return await self._node.backends.limit(consumer.pod.metadata.uid, claim, granted)
        except LimitsUnsupported as error:
            raise Refused(Why.LIMITS_UNSUPPORTED, str(error)) from error
        except DriverUnavailable as error:
            raise Refused(Why.DRIVER_UNAVAILABLE, str(error)) from error

    def _decide(self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation) -> Start:
        node = self._node
        state = node.checkpoint.state
        fill = self._init_starts.to_fill(
            consumer, claim, allocation, state.claim_allocations.get(claim.metadata.uid)
        )
        if fill.wanted is not None:  # whether this start is refused or not
            self._reports.init_wanted(claim, fill.wanted)
        return decide_start(
            consumer,
            claim,
            fill,
            state=state,
            capacities=node.inventory.capacities(),
            backends=node.backends,
            resource=node.kubelet.resource,
        )

    def _carry_out(self, start: Start, call: KubeletCall) -> None:
        try:
            for slot_allocation in start.grants:
                self._node.allocations.check(slot_allocation)
            # A container whose call has timed out does not start, but its grant would stay.
            if not call.is_waiting():
                raise Refused(Why.CALL_ENDED, "the kubelet no longer waits for this answer")
            self._effector.carry_out(start.effects)
        except DriverFilesMissing as error:
            raise Refused(Why.DRIVER_FILES_MISSING, str(error)) from error
        except PageDamaged as error:
            raise Refused(Why.PAGE_DAMAGED, f"{error}; it was replaced and denies") from error
        except OSError as error:
            raise Refused(Why.STORAGE_FAILED, f"cannot write the grant: {error}") from error

    def _compare_cpus(self, consumer: Consumer, claim: VGPUClaim) -> None:
        """Report exclusive CPUs on another NUMA node than the devices, if the claim forbids it."""
        allocation = claim.status.allocation
        if not consumer.cpus or allocation is None:
            return
        devices, host = self._node.inventory.devices, self._node.host_numa
        if apart := misaligned(consumer, claim, allocation, devices=devices, host=host):
            self._reports.warning(consumer.pod, "MisalignedCPUs", apart)

    def _report(self, refused: Refused, found: _Found) -> None:
        if refused.reason is Why.CALL_ENDED:
            return
        if found.consumer is None:
            logger.warning("a container does not start: %s: %s", refused.reason, refused)
            return
        pod = found.consumer.pod
        place = _place(found.consumer)
        logger.warning("pod %s/%s does not start: %s: %s", *place, refused.reason, refused)
        self._waiting.add(place, refused.reason)
        self._node.events.put(StartRefused(pod))
        self._reports.refusal(pod, refused.reason, str(refused))
        if found.claim is not None:
            self._reports.not_prepared(found.claim, refused.reason, str(refused))


def _place(consumer: Consumer) -> Place:
    return consumer.pod.metadata.namespace or "", consumer.pod.metadata.name


def _summary(took_s: float) -> str:
    """Return the message of `Prepared`, without amounts, which a resize would make untrue."""
    after = f" after {took_s:.1f} s" if took_s > SLOW_S else ""
    return f"limits are in place{after}"
