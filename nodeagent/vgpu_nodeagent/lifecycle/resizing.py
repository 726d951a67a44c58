"""The agent's part of a resize in place: pages follow a claim's changed memory and cores.

`vgpu_api.resize` describes how operator and agent share the work. A change has no await between
reading what is in use and writing the page, so nothing is granted in between. While pages change,
the record on disk holds the larger of the old and new amounts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vgpu_api.effective import Use, effective_use
from vgpu_api.init_part import init_requests, init_round, without_init_part
from vgpu_api.quantity import MIB, format_mib
from vgpu_api.reasons import Reason
from vgpu_api.resize import allowed, target, unmet, was_changed
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import DeviceLimit, PageContent
from vgpu_nodeagent.errors import PageDamaged, Refused
from vgpu_nodeagent.events import ClaimChanged, Event
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation

logger = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Retry a resize that could not be done after this many seconds."""


@dataclass(slots=True)
class _Outcome:
    """The outcome of an attempt to resize the pages of a claim.

    Attributes:
        limits: The new limits of pages that change, by slot allocation.
        shown: The MiB and cores of pages, by request and device.
        blocked: Why something could not be done, as reasons and sentences.
        ended: Requests of init containers that have ended, whose pages have no limits any more.
    """

    limits: dict[str, list[DeviceLimit]] = field(default_factory=dict)
    shown: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    blocked: list[tuple[str, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def add(self, name: str, page: PageContent, request: str, limits: list[DeviceLimit]) -> None:
        """Record the new limits of a page."""
        for limit in limits:
            self.shown[request, limit.uuid] = limit.memory_bytes // MIB, limit.cores
        if limits != list(page.devices):
            self.limits[name] = limits


def may_start_with(claim: VGPUClaim, allocation: Allocation) -> Allocation:
    """Return what a starting container is granted: a smaller request applies at once."""
    if not was_changed(claim):
        return allocation
    devices = allowed(target(claim.spec, allocation), allocation.devices)
    return allocation.model_copy(update={"devices": list(devices)})


class Resizing:
    """Adapts pages to what claims request, whenever a claim changes.

    Args:
        node: The node.
        reports: Reports the outcome.
    """

    def __init__(self, node: LocalNode, *, reports: Reports) -> None:
        self._node = node
        self._reports = reports
        self._due: dict[str, None] = {}  # claims by UID, in order
        self._desired = asyncio.Event()
        self._said: dict[str, tuple[int | None, str]] = {}

    async def run(self) -> None:
        """Resize changed claims at once and retry failed resizes, for ever."""
        await self._node.view.wait_synced()
        while True:
            try:
                async with asyncio.timeout(AGAIN_S if self._due else None):
                    await self._desired.wait()
            except TimeoutError:
                pass
            self._desired.clear()
            self.resize_due()

    def resize_due(self) -> None:
        """Try every claim that is due; a claim that could not be resized stays due."""
        for uid in list(self._due):
            claim = self._node.view.claim_with_uid(uid)
            if claim is None or self._resize(claim):
                del self._due[uid]

    def observe(self, event: Event) -> None:
        """Note the claims that need a resize."""
        match event:
            case ClaimChanged(old=VGPUClaim() as gone, new=None):
                self._said.pop(gone.metadata.uid, None)
            case ClaimChanged(new=VGPUClaim() as new):
                if was_changed(new) and not new.unknown_values:
                    self._due[new.metadata.uid] = None
                    self._desired.set()

    def _resize(self, claim: VGPUClaim) -> bool:
        """Adapt the claim's pages to what it requests; return False to be tried again."""
        allocation = claim.status.allocation
        claim_allocation = self._node.checkpoint.state.claim_allocations.get(claim.metadata.uid)
        if allocation is None or claim_allocation is None or claim_allocation.closed:
            return True  # a container that starts later is granted what is requested then
        if claim_allocation.allocation_id != allocation.id:
            return True
        if claim_allocation.init_ended == init_round(allocation):
            allocation = without_init_part(claim.spec, allocation)
        desired = target(claim.spec, allocation)
        outcome = self._attempt(claim, allocation, allowed(desired, allocation.devices))
        try:
            self._apply(claim, allocation, claim_allocation, outcome)
        except Refused as refused:
            outcome.blocked.append(("NoRoom", str(refused)))
        except (PageDamaged, OSError) as error:
            outcome.blocked.append(("StorageFailed", str(error)))
        if not outcome.blocked and desired != _least(desired, allocation.devices):
            outcome.blocked.append(self._lack(claim, desired, allocation))
        if not outcome.blocked and self._starting(desired, allocation, outcome):
            return False
        is_done = not outcome.blocked
        outcome.blocked += unmet(claim.spec, allocation)  # until the claim changes again
        self._report(claim, desired, outcome)
        return is_done

    def _attempt(
        self, claim: VGPUClaim, allocation: Allocation, devices: Sequence[AllocatedDevice]
    ) -> _Outcome:
        """Compute the new limits without writing anything."""
        outcome = _Outcome()
        init = init_requests(claim.spec)
        for slot_allocation in self._node.checkpoint.state.of_claim(claim.metadata.uid):
            request = _request_of(claim, slot_allocation)
            mine = {d.uuid: d for d in devices if d.request == request and d.mig is None}
            try:
                content = self._node.allocations.content(slot_allocation.name)
                if content.state is PageState.CLOSED and request in init:
                    outcome.ended.add(request)
                if content.state is not PageState.GRANT or not mine:
                    continue
                ledger = self._node.allocations.usage(slot_allocation.name)
            except PageDamaged as error:
                outcome.blocked.append(("LimitPageDamaged", str(error)))
                continue
            used = {use.uuid: use.used_bytes for use in ledger}
            limits = [
                self._limit(
                    slot_allocation, old, mine.get(old.uuid), used.get(old.uuid, 0), outcome
                )
                for old in content.devices
            ]
            outcome.add(slot_allocation.name, content, request, limits)
        return outcome

    def _limit(
        self,
        slot_allocation: SlotAllocation,
        old: DeviceLimit,
        desired: AllocatedDevice | None,
        used: int,
        outcome: _Outcome,
    ) -> DeviceLimit:
        if desired is None or old.memory_bytes == UNLIMITED:
            return old
        memory = desired.memory_mib * MIB
        if (memory, desired.cores) == (old.memory_bytes, old.cores):
            return old
        if not self._node.backends.resizes:
            outcome.blocked.append(
                (
                    "LimitBackend",
                    f"GPU {old.uuid}: the driver's limit is set when a container starts",
                )
            )
            return old
        if not slot_allocation.interposed:
            known = (
                "runs without the library"
                if slot_allocation.interposed is not None
                else "was started before it was recorded whether it has the library"
            )
            outcome.blocked.append(
                (
                    "NotInterposed",
                    f"GPU {old.uuid}: container {slot_allocation.container} {known}, "
                    "and cannot be limited before it starts again",
                )
            )
            return old
        if memory < old.memory_bytes and used > memory:
            outcome.blocked.append(
                (
                    "InUse",
                    f"GPU {old.uuid}: container {slot_allocation.container} has "
                    f"{-(-used // MIB)} MiB in use, {desired.memory_mib} MiB asked",
                )
            )
            memory = old.memory_bytes
        physical = old.physical_bytes * memory // old.memory_bytes
        return replace(old, memory_bytes=memory, cores=desired.cores, physical_bytes=physical)

    def _apply(
        self,
        claim: VGPUClaim,
        allocation: Allocation,
        claim_allocation: ClaimAllocation,
        outcome: _Outcome,
    ) -> None:
        """Record the larger amounts, change the pages, then record the amounts of the pages.

        Raises:
            Refused: The devices have no capacity for it; nothing was changed.
            PageDamaged: A page could not be written.
            OSError: The record could not be written.
        """
        checkpoint = self._node.checkpoint
        capacities = self._node.inventory.capacities()
        has = {uuid: device.allocatable for uuid, device in capacities.items()}
        uid = claim.metadata.uid
        now = effective_use(claim.spec, _as_shown(allocation.devices, outcome))
        if claim_allocation.init_ended is not None:
            now = {uuid: use for uuid, use in now.items() if uuid in claim_allocation.use}
        most = {uuid: use.peak(claim_allocation.use.get(uuid, Use())) for uuid, use in now.items()}
        checkpoint.commit(slots.resize(checkpoint.state, uid, use=most, allocatable=has))
        for slot_allocation, limits in outcome.limits.items():
            self._node.allocations.resize(slot_allocation, limits)
        checkpoint.commit(slots.resize(checkpoint.state, uid, use=now, allocatable=has))

    def _starting(
        self, desired: Sequence[AllocatedDevice], allocation: Allocation, outcome: _Outcome
    ) -> bool:
        """True if a container that changes has no page yet; it is checked once it has one."""
        return any(
            device != old
            and device.request not in outcome.ended
            and (device.request, device.uuid) not in outcome.shown
            for device, old in zip(desired, allocation.devices, strict=True)
        )

    def _lack(
        self, claim: VGPUClaim, desired: Sequence[AllocatedDevice], allocation: Allocation
    ) -> tuple[str, str]:
        """Return why the operator granted less than requested, as a reason and a sentence.

        The claim stays on its devices, so an amount that one of them could not hold even if it
        were empty will never be granted.
        """
        capacities, used = self._node.inventory.capacities(), self._node.checkpoint.state.used()
        nothing = Use()
        parts = []
        for device, held in zip(desired, allocation.devices, strict=True):
            if device.memory_mib <= held.memory_mib and device.cores <= held.cores:
                continue
            has = capacities[device.uuid].allocatable if device.uuid in capacities else nothing
            free = has - used.get(device.uuid, nothing)
            parts.append(
                f"GPU {device.uuid}: {format_mib(device.memory_mib)} and {device.cores} % asked, "
                f"{format_mib(held.memory_mib)} and {held.cores} % held, "
                f"{format_mib(max(0, free.memory_mib))} and {max(0, free.cores)} % free beside that"
            )
        for uuid, use in effective_use(claim.spec, desired).items():
            if uuid not in capacities:
                continue  # a lost GPU may come back
            has = capacities[uuid].allocatable
            if use.memory_mib > has.memory_mib or use.cores > has.cores:
                parts.append(
                    f"GPU {uuid} has {format_mib(has.memory_mib)} and {has.cores} % in all, so it "
                    "can never hold that: ask for less, or create the claim anew"
                )
                return Reason.IMPOSSIBLE, "; ".join(parts)
        return "WaitingForRoom", "; ".join(parts)

    def _report(
        self, claim: VGPUClaim, desired: Sequence[AllocatedDevice], outcome: _Outcome
    ) -> None:
        reason = outcome.blocked[0][0] if outcome.blocked else ""
        message = "; ".join(sentence for _, sentence in outcome.blocked)
        # The amounts in use and free change all the time and are not worth another event.
        said = claim.metadata.generation, reason
        if self._said.get(claim.metadata.uid) == said:
            return
        self._said[claim.metadata.uid] = said
        if not outcome.blocked:
            self._reports.resized(claim, f"limits are in place: {_amounts(desired)}")
            return
        self._reports.not_resized(claim, reason, message)
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self._node.view.pod_with_uid(reserved.pod_uid)
        if pod is not None:
            self._reports.warning(pod, "ResizeNotDone", f"claim {claim.metadata.name}: {message}")


def _least(
    desired: Sequence[AllocatedDevice], held: Sequence[AllocatedDevice]
) -> Sequence[AllocatedDevice]:
    return [
        device if device.memory_mib <= old.memory_mib and device.cores <= old.cores else old
        for device, old in zip(desired, held, strict=True)
    ]


def _as_shown(devices: Sequence[AllocatedDevice], outcome: _Outcome) -> list[AllocatedDevice]:
    """Return the devices with the amounts of their pages, or as allocated without a page."""
    found = []
    for device in devices:
        shown = outcome.shown.get((device.request, device.uuid))
        if shown is not None:
            memory_mib, cores = shown
            update = {"memory": format_mib(memory_mib), "cores": cores}
            device = device.model_copy(update=update)
        found.append(device)
    return found


def _request_of(claim: VGPUClaim, slot_allocation: SlotAllocation) -> str:
    """Return the container's request: the one of its name, or the sole one without a name."""
    names = {request.name for request in claim.spec.requests}
    return slot_allocation.container if slot_allocation.container in names else ""


def _amounts(devices: Sequence[AllocatedDevice]) -> str:
    return ", ".join(
        f"{format_mib(device.memory_mib)} and {device.cores} % of GPU {device.uuid}"
        for device in devices
    )
