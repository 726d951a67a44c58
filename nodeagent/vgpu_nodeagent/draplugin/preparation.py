"""Prepares a ResourceClaim: makes each of its containers a share with a page and a CDI spec.

Prepare is called before the sandbox of a pod is made, and again after a failure, a reboot or a
restart of the agent, so it is idempotent by the ResourceClaim's UID and the share. It runs the
checks and the sum of PreStart (`lifecycle/granting.py`), and waits within the call for what ends by
itself, because the kubelet asks again only after 10 to 15 s.

The kubelet does not ask again when it makes another sandbox for a pod that it has prepared. If the
init containers must then run again after their devices were given back, their shares are opened
here, as soon as the operator has allocated devices for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from vgpu_api import dra, init_part
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_nodeagent.draplugin.consumers import ClaimRef, ClaimUsers, find_users, joins
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.events import ClaimChanged, Event, PodChanged
from vgpu_nodeagent.kubelet.identity import Consumer
from vgpu_nodeagent.kubelet.server import KubeletCall
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.decisions.init_starts import Fill, has_ended
from vgpu_nodeagent.lifecycle.granting import Granting, Sweeping
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.cdi_device import device_name, share_name
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation, SlotState

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Wait this long within a call; the kubelet gives up after 45 s."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared ResourceClaim, as the kubelet gets it.

    A container's page holds all its devices, so only the first of them names the CDI device: the
    runtime would otherwise apply it twice.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    share_id: str
    cdi_devices: tuple[str, ...]


class Ending(Sweeping, Protocol):
    """Ends what was prepared; implemented by `lifecycle.releases.Releases`."""

    async def unprepare(self, resource_claim_uid: str) -> bool:
        """Close what was prepared for a ResourceClaim; return False while it is in use."""


class Preparation:
    """Prepares and unprepares ResourceClaims.

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
        releases: Ending,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._reports = reports
        self._releases = releases
        self._clock = clock or Clock()
        self._granting = Granting(
            node, reports=reports, waiting=waiting, releases=releases, patience_s=patience_s
        )
        self._again: dict[str, None] = {}  # claims by UID whose init containers run again
        self._wake = asyncio.Event()

    async def prepare(self, ref: ClaimRef, *, call: KubeletCall) -> Sequence[PreparedDevice]:
        """Open the shares of a ResourceClaim, and return its devices.

        Raises:
            Refused: The containers of its pod must not start.
        """
        shares = _Shares(self._node, ref, now=self._clock.unix())
        start = await self._granting.grant(shares, call=call)
        pod = start.consumer.pod
        logger.info("prepared ResourceClaim %s (%s) for pod %s", ref, ref.uid, pod.metadata.name)
        return list(_devices(start.claim, find_users(ref, [pod]), self._node.name))

    async def unprepare(self, ref: ClaimRef) -> None:
        """Close the shares of a ResourceClaim; nothing happens if it has none.

        Raises:
            Refused: Something still uses its devices, or the end cannot be recorded.
        """
        try:
            done = await self._releases.unprepare(ref.uid)
        except OSError as error:
            raise Refused(Why.STORAGE_FAILED, f"cannot record the release: {error}") from error
        if not done:
            raise Refused(
                Why.STILL_IN_USE,
                f"processes or MIG instances still use the GPUs of ResourceClaim {ref}",
            )
        logger.info("unprepared ResourceClaim %s (%s)", ref, ref.uid)

    def observe(self, event: Event) -> None:
        """Note init containers that got devices again, and pods that join another pod's claim."""
        match event:
            case ClaimChanged(new=VGPUClaim() as claim):
                held = self._node.checkpoint.state.claim_allocations.get(claim.metadata.uid)
                if held is not None and _has_init_again(claim, held):
                    self._again[claim.metadata.uid] = None
                    self._wake.set()
            case PodChanged(new=Pod() as pod):
                self._refuse_joining(pod)

    async def run(self) -> None:
        """Open the shares of init containers that run again, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for uid in list(self._again):
                del self._again[uid]
                await self._open_again(uid)

    async def _open_again(self, claim_uid: str) -> None:
        held = self._node.checkpoint.state.claim_allocations.get(claim_uid)
        if held is None or held.closed:
            return
        try:
            await self._granting.grant(_Opened(self._node, held), call=_NoCall())
        except Refused:
            logger.info("claim %s: init containers stay closed", held.claim_name)

    def _refuse_joining(self, pod: Pod) -> None:
        """Report that a pod uses the ResourceClaim of another pod, which no call would show."""
        if not pod.spec.resource_claims or pod.is_terminal:
            return
        state = self._node.checkpoint.state
        for other in self._node.view.pods.objects.values():
            is_other = other.metadata.uid != pod.metadata.uid
            if is_other and joins(pod, other) and state.has_open_account(other.metadata.uid):
                self._reports.refusal(
                    pod,
                    Why.RESOURCE_CLAIM_SHARED,
                    f"the pod uses the ResourceClaim of pod {other.metadata.name} and shares its "
                    "limits: a ResourceClaim of driver vgpu.dev serves one pod",
                )


class _Shares:
    """The shares of a ResourceClaim that the kubelet wants prepared."""

    def __init__(self, node: LocalNode, ref: ClaimRef, *, now: float) -> None:
        self._node = node
        self._ref = ref
        self._now = now

    def pod(self) -> Pod:
        return find_users(self._ref, self._node.view.pods.objects.values()).pod

    async def consumer(self) -> Consumer:
        return Consumer(self.pod(), ())

    def accept(self, claim: VGPUClaim, allocation: Allocation) -> None:
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        if not allocation.resource_claim_uid:
            # The operator may be about to write it.
            raise Refused(
                Why.NO_CLAIM, f"claim {name} is not given through a ResourceClaim, or not yet"
            )
        if allocation.resource_claim_uid != self._ref.uid:
            raise Refused(
                Why.RESOURCE_CLAIM_MISMATCH,
                f"claim {name} is given through the ResourceClaim with UID "
                f"{allocation.resource_claim_uid}, and {self._ref} has UID {self._ref.uid}",
            )

    def to_fill(
        self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation, state: SlotState
    ) -> Fill:
        held = state.claim_allocations.get(claim.metadata.uid)
        if init_part.init_requests(claim.spec) and has_ended(claim, allocation, held):
            # The kubelet prepares before it makes a sandbox, in which init containers run again.
            rest = init_part.without_init_part(claim.spec, allocation)
            return Fill((), rest, init_part.init_round(allocation))
        users = find_users(self._ref, [consumer.pod])
        names = {container: share_name(allocation.id, container) for container in users.requests}
        return Fill(tuple(Binding(names[each], each) for each in names), allocation)

    def state(self, fill: Fill) -> SlotState:
        names = [binding.slot_allocation for binding in fill.bindings]
        return slots.with_shares(self._node.checkpoint.state, names, now=self._now)


class _Opened:
    """The shares of a prepared ResourceClaim whose init containers got devices again."""

    def __init__(self, node: LocalNode, held: ClaimAllocation) -> None:
        self._node = node
        self._held = held

    def pod(self) -> Pod:
        pod = self._node.view.pod_with_uid(self._held.pod_uid)
        if pod is None or pod.is_terminal:
            raise Refused(Why.POD_ENDED, f"pod {self._held.pod_name} has ended")
        return pod

    async def consumer(self) -> Consumer:
        return Consumer(self.pod(), ())

    def accept(self, claim: VGPUClaim, allocation: Allocation) -> None:
        if not _has_init_again(claim, self._held):
            raise Refused(Why.INIT_ENDED, f"claim {claim.metadata.name} has nothing for them")

    def to_fill(
        self, consumer: Consumer, claim: VGPUClaim, allocation: Allocation, state: SlotState
    ) -> Fill:
        shares = state.of_claim(claim.metadata.uid)
        return Fill(tuple(Binding(each.name, each.container) for each in shares), allocation)

    def state(self, fill: Fill) -> SlotState:
        return self._node.checkpoint.state


class _NoCall:
    """Stands for a call where the kubelet does not wait for an answer."""

    def is_waiting(self) -> bool:
        return True


def _has_init_again(claim: VGPUClaim, held: ClaimAllocation) -> bool:
    """True if the operator has allocated devices to init containers that had ended before."""
    allocation = claim.status.allocation
    return (
        allocation is not None
        and bool(held.resource_claim_uid)
        and held.resource_claim_uid == allocation.resource_claim_uid
        and held.init_ended is not None
        and held.init_ended != init_part.init_round(allocation)
        and init_part.has_init_part(claim.spec, allocation)
    )


def _devices(claim: VGPUClaim, users: ClaimUsers, node: str) -> Iterator[PreparedDevice]:
    allocation = claim.status.allocation
    assert allocation is not None
    for container, request in users.requests.items():
        devices = [each for each in allocation.devices if each.request in (container, "")]
        cdi = device_name(share_name(allocation.id, container))
        for number, device in enumerate(devices):
            yield PreparedDevice(
                requests=(request,) if request else (),
                pool=node,
                device=dra.device_name(device.uuid),
                share_id=dra.share_id(allocation.id, container),
                cdi_devices=() if number else (cdi,),
            )
