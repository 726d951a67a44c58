"""Makes a container's slots, or the shares of a ResourceClaim, a grant.

The pod is found first and its claim second; then `decisions/start.py` decides, and only then are
pages and CDI specs opened. There is no `await` between the decision and the last file written, so
the state cannot change in between and no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.errors import (
    DriverFilesMissing,
    DriverUnavailable,
    LimitsUnsupported,
    PageDamaged,
    Refused,
    Why,
)
from vgpu_nodeagent.events import StartGranted, StartRefused
from vgpu_nodeagent.kubelet.identity import Consumer
from vgpu_nodeagent.kubelet.server import KubeletCall
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.decisions.init_starts import Fill
from vgpu_nodeagent.lifecycle.decisions.reserved_claim import (
    claim_reserved_for,
    refuse_another_plugins,
)
from vgpu_nodeagent.lifecycle.decisions.resize import may_start_with
from vgpu_nodeagent.lifecycle.decisions.start import Start, decide_start
from vgpu_nodeagent.lifecycle.effector import GrantEffector
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import SLOW_S, Reports
from vgpu_nodeagent.state.cdi_device import is_share
from vgpu_nodeagent.state.node_view import Place
from vgpu_nodeagent.state.slots import SlotState

logger = logging.getLogger(__name__)

SETTLE_S = 0.01
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
    """Findings so far, for the report of a refusal."""

    consumer: Consumer | None = None
    claim: VGPUClaim | None = None


class Applicant(Protocol):
    """The subject of the kubelet's request: the slots of a container, or a ResourceClaim."""

    def pod(self) -> Pod | None:
        """Return the pod whose claims are to be read, as far as records on this node show it.

        Raises:
            Refused: There is none yet.
        """

    async def consumer(self) -> Consumer:
        """Find the pod and the containers, without an await after the last record is read.

        Raises:
            Refused: They are not known.
        """

    def accept(self, claim: VGPUClaim, allocation: Allocation) -> None:
        """Check that the claim is given in this way.

        Raises:
            Refused: It is given in another way, or to another ResourceClaim.
        """

    def to_fill(
        self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation, state: SlotState
    ) -> Fill:
        """Return what to fill, and with which part of the claim's allocation."""

    def state(self, fill: Fill) -> SlotState:
        """Return the node's state with everything that is to be filled."""


class Sweeping(Protocol):
    """Releases what has ended."""

    async def sweep(self) -> None:
        """Free what can be freed now."""


class Granting:
    """Grants devices to containers, or refuses.

    Args:
        node: The node.
        reports: Reports grants and refusals.
        waiting: Wakes refused pods when what they lack appears.
        releases: Releases what has ended.
        patience_s: Retry a refusal that may resolve itself for this long within one call.
    """

    def __init__(
        self,
        node: LocalNode,
        *,
        reports: Reports,
        waiting: WaitingPods,
        releases: Sweeping,
        patience_s: float,
    ) -> None:
        self._node = node
        self._reports = reports
        self._waiting = waiting
        self._releases = releases
        self._patience_s = patience_s
        self._effector = GrantEffector(node, reports)

    async def grant(self, applicant: Applicant, *, call: KubeletCall) -> Start:
        """Grant the applicant's containers the devices of their pod's claim.

        Args:
            applicant: What the kubelet asks for.
            call: The kubelet's call, which may end before it is answered.

        Raises:
            Refused: The containers must not start.
        """
        found = _Found()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            start = await self._try(applicant, call, found)
        except Refused as refused:
            self._report(refused, found)
            raise
        self._waiting.done(_place(start.consumer))
        self._node.events.put(StartGranted(start.consumer.pod))
        if start.has_devices:
            took_s = clock() - began
            self._reports.prepared(start.claim, _summary(took_s), took_s=took_s)
        await asyncio.sleep(SETTLE_S)
        return start

    async def _try(self, applicant: Applicant, call: KubeletCall, found: _Found) -> Start:
        """Attempt until the containers are granted, refused for good, or out of time."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        wait_s = 0.05
        while True:
            try:
                return await self._attempt(applicant, call, found)
            except Refused as refused:
                left_s = deadline - asyncio.get_running_loop().time()
                if refused.reason not in _MAY_PASS or left_s <= 0 or not call.is_waiting():
                    raise
            # The refused devices may be held by a pod that has just ended. Retrying within the call
            # is
            # worth it: the kubelet itself waits 10 s before it asks again.
            await self._releases.sweep()
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, 1.0)

    async def _attempt(self, applicant: Applicant, call: KubeletCall, found: _Found) -> Start:
        # An agent that has just started would not find the claim of a pod that has one.
        if not self._node.view.is_synced:
            raise Refused(
                Why.NOT_SYNCED, "the node agent has not yet read pods and claims of this node"
            )
        # PodResources is queried only after this await; it is slow and rate-limited.
        pod = applicant.pod()
        if pod is not None:
            await self._node.claims.read_for(pod)
        consumer, claim, allocation = await self._look_up(applicant, found)
        if consumer.of_another:  # it has its devices and limits from that plugin
            return Start(consumer, claim, {}, ())
        if await self._limit(consumer, claim, allocation):
            # Anything may have changed during the await.
            consumer, claim, allocation = await self._look_up(applicant, found)
        # No await from here until everything is written.
        start = self._decide(applicant, consumer, claim, allocation)
        self._carry_out(start, call)
        return start

    async def _look_up(
        self, applicant: Applicant, found: _Found
    ) -> tuple[Consumer, VGPUClaim, Allocation]:
        """Find the pod and its claim, without an await after the kubelet's records are read."""
        consumer = found.consumer = await applicant.consumer()
        claims = self._node.view.claims.objects.values()
        refuse_another_plugins(consumer, claims, node=self._node.name)
        claim, allocation = claim_reserved_for(consumer.pod, claims, node=self._node.name)
        found.claim = claim
        applicant.accept(claim, allocation)
        return consumer, claim, allocation

    async def _limit(self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Apply the limits that lie outside the page; return True if that took an await.

        This comes before anything is recorded: a limit of a pod that is then refused does no harm.
        """
        try:
            granted = may_start_with(claim, allocation)
            return await self._node.backends.limit(consumer.pod.metadata.uid, claim, granted)
        except LimitsUnsupported as error:
            raise Refused(Why.LIMITS_UNSUPPORTED, str(error)) from error
        except DriverUnavailable as error:
            raise Refused(Why.DRIVER_UNAVAILABLE, str(error)) from error

    def _decide(
        self, applicant: Applicant, consumer: Consumer, claim: VGPUClaim, allocation: Allocation
    ) -> Start:
        node = self._node
        fill = applicant.to_fill(consumer, claim, allocation, node.checkpoint.state)
        if fill.wanted is not None:  # whether this start is refused or not
            self._reports.init_wanted(claim, fill.wanted)
        return decide_start(
            consumer,
            claim,
            fill,
            state=applicant.state(fill),
            capacities=node.inventory.capacities(),
            backends=node.backends,
            resource=node.kubelet.resource,
        )

    def _carry_out(self, start: Start, call: KubeletCall) -> None:
        try:
            for name in start.grants:
                self._make_whole(name)
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

    def _make_whole(self, name: str) -> None:
        """Make page and region whole; a share's are made here, a slot's since Allocate."""
        if is_share(name) and name not in self._node.checkpoint.state.slot_allocations:
            self._node.allocations.create_share(name)
        self._node.allocations.check(name)

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
