"""Decides a resize: which limits of a claim's pages change, and what prevents it.

`vgpu_api.resize` describes how operator and agent share the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vgpu_api.effective import Use, effective_use
from vgpu_api.init_part import init_requests, init_round, without_init_part
from vgpu_api.quantity import MIB, format_mib
from vgpu_api.reasons import Reason
from vgpu_api.resize import allowed, target, unmet, was_changed
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_nodeagent.discovery.inventory import DeviceCapacity, allocatable
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.errors import Refused
from vgpu_nodeagent.lifecycle.effects import Commit, Effect, ResizePage
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.slots import SlotAllocation, SlotState

Obstacle: TypeAlias = tuple[str, str]
"""A reason and a sentence that say why something cannot be done."""


@dataclass(frozen=True, slots=True)
class PageReading:
    """The current page and usage of a slot allocation.

    Attributes:
        slot_allocation: The slot allocation.
        state: The state of its page; None if the page is damaged.
        limits: The limits in its page.
        used: Bytes in use, by UUID of the device.
        damage: Why the page or the usage cannot be read; empty if both can.
    """

    slot_allocation: SlotAllocation
    state: PageState | None = None
    limits: Sequence[DeviceLimit] = ()
    used: Mapping[str, int] = field(default_factory=dict)
    damage: str = ""


@dataclass(slots=True)
class Resize:
    """The changes by which the pages of a claim follow its requests.

    Attributes:
        desired: The devices with the amounts that the claim requests.
        shown: The MiB and cores of pages once they are changed, by request and device.
        ended: Requests of init containers that have ended, whose pages have no limits any more.
        effects: The changes that can be made now.
        obstacles: Why other changes cannot be made.
        lack: Why the operator granted less than requested; None if it did not.
        unmet: Requests that no resize can meet, until the claim changes again.
        is_starting: True if a container that changes has no page yet.
    """

    desired: Sequence[AllocatedDevice]
    shown: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    effects: list[Effect] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)
    lack: Obstacle | None = None
    unmet: Sequence[Obstacle] = ()
    is_starting: bool = False


def may_start_with(claim: VGPUClaim, allocation: Allocation) -> Allocation:
    """Return what a starting container is granted: a smaller request applies at once."""
    if not was_changed(claim):
        return allocation
    devices = allowed(target(claim.spec, allocation), allocation.devices)
    return allocation.model_copy(update={"devices": list(devices)})


def decide_resize(
    claim: VGPUClaim,
    readings: Sequence[PageReading],
    *,
    state: SlotState,
    capacities: Mapping[str, DeviceCapacity],
    resizes: bool,
) -> Resize | None:
    """Decide how to change the claim's pages to its current requests; None if it has no page.

    Args:
        claim: The claim.
        readings: The pages of its slot allocations.
        state: What is allocated on the node.
        capacities: The devices of the node.
        resizes: True if rewriting a page changes the limit of a running container.
    """
    allocation, held = claim.status.allocation, state.claim_allocations.get(claim.metadata.uid)
    if allocation is None or held is None or held.closed:
        return None  # a container that starts later is granted the amounts requested at that time
    if held.allocation_id != allocation.id:
        return None
    if held.init_ended == init_round(allocation):
        allocation = without_init_part(claim.spec, allocation)
    resize = Resize(target(claim.spec, allocation), unmet=unmet(claim.spec, allocation))
    devices = allowed(resize.desired, allocation.devices)
    pages = _pages(resize, claim, readings, devices, resizes=resizes)
    now = effective_use(claim.spec, _as_shown(allocation.devices, resize))
    if held.init_ended is not None:
        now = {uuid: use for uuid, use in now.items() if uuid in held.use}
    most = {uuid: use.peak(held.use.get(uuid, Use())) for uuid, use in now.items()}
    has = allocatable(capacities)
    try:
        # While pages change, the record has the larger amounts.
        state = slots.resize(state, held.claim_uid, use=most, allocatable=has)
        resize.effects += [Commit(state), *pages]
        state = slots.resize(state, held.claim_uid, use=now, allocatable=has)
        resize.effects.append(Commit(state))
    except Refused as refused:
        resize.obstacles.append(("NoRoom", str(refused)))
    if resize.desired != _least(resize.desired, allocation.devices):
        resize.lack = _lack(claim, resize.desired, allocation, state.used(), capacities)
    resize.is_starting = _is_starting(resize, allocation)
    return resize


def _pages(
    resize: Resize,
    claim: VGPUClaim,
    readings: Sequence[PageReading],
    devices: Sequence[AllocatedDevice],
    *,
    resizes: bool,
) -> Sequence[ResizePage]:
    """Return the changes of pages, and record what the pages show and what prevents the resize."""
    init = init_requests(claim.spec)
    changes: list[ResizePage] = []
    for reading in readings:
        request = _request_of(claim, reading.slot_allocation)
        mine = {d.uuid: d for d in devices if d.request == request and d.mig is None}
        if reading.state is PageState.CLOSED and request in init:
            resize.ended.add(request)
        concerns = reading.state is None or (reading.state is PageState.GRANT and mine)
        if concerns and reading.damage:
            resize.obstacles.append(("LimitPageDamaged", reading.damage))
        elif concerns:
            changes += _page(resize, reading, request, mine, resizes=resizes)
    return changes


def _page(
    resize: Resize,
    reading: PageReading,
    request: str,
    devices: Mapping[str, AllocatedDevice],
    *,
    resizes: bool,
) -> Sequence[ResizePage]:
    limits = []
    for old in reading.limits:
        limit, obstacle = _new_limit(reading, old, devices.get(old.uuid), resizes=resizes)
        limits.append(limit)
        resize.shown[request, limit.uuid] = limit.memory_bytes // MIB, limit.cores
        if obstacle is not None:
            resize.obstacles.append(obstacle)
    is_same = limits == list(reading.limits)
    return [] if is_same else [ResizePage(reading.slot_allocation.name, limits)]


def _new_limit(
    reading: PageReading, old: DeviceLimit, desired: AllocatedDevice | None, *, resizes: bool
) -> tuple[DeviceLimit, Obstacle | None]:
    """Return the limit to write, and why it is not the desired one."""
    if desired is None or old.memory_bytes == UNLIMITED:
        return old, None
    memory = desired.memory_mib * MIB
    if (memory, desired.cores) == (old.memory_bytes, old.cores):
        return old, None
    if not resizes:
        sentence = f"GPU {old.uuid}: the driver's limit is set when a container starts"
        return old, ("LimitBackend", sentence)
    container = f"GPU {old.uuid}: container {reading.slot_allocation.container}"
    if not reading.slot_allocation.interposed:
        known = (
            "runs without the library"
            if reading.slot_allocation.interposed is not None
            else "was started before it was recorded whether it has the library"
        )
        sentence = f"{container} {known}, and cannot be limited before it starts again"
        return old, ("NotInterposed", sentence)
    obstacle, used = None, reading.used.get(old.uuid, 0)
    if memory < old.memory_bytes and used > memory:
        sentence = f"{container} has {-(-used // MIB)} MiB in use, {desired.memory_mib} MiB asked"
        obstacle = "InUse", sentence
        memory = old.memory_bytes
    physical = old.physical_bytes * memory // old.memory_bytes
    limit = replace(old, memory_bytes=memory, cores=desired.cores, physical_bytes=physical)
    return limit, obstacle


def _is_starting(resize: Resize, allocation: Allocation) -> bool:
    """True if a container that changes has no page yet; it is checked once it has one."""
    return any(
        device != old
        and device.request not in resize.ended
        and (device.request, device.uuid) not in resize.shown
        for device, old in zip(resize.desired, allocation.devices, strict=True)
    )


def _lack(
    claim: VGPUClaim,
    desired: Sequence[AllocatedDevice],
    allocation: Allocation,
    used: Mapping[str, Use],
    capacities: Mapping[str, DeviceCapacity],
) -> Obstacle:
    """Return why the operator granted less than requested.

    The claim stays on its devices, so an amount that one of them could not hold even if it were
    empty will never be granted.
    """
    nothing, parts = Use(), []
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


def _least(
    desired: Sequence[AllocatedDevice], held: Sequence[AllocatedDevice]
) -> Sequence[AllocatedDevice]:
    return [
        device if device.memory_mib <= old.memory_mib and device.cores <= old.cores else old
        for device, old in zip(desired, held, strict=True)
    ]


def _as_shown(devices: Sequence[AllocatedDevice], resize: Resize) -> list[AllocatedDevice]:
    """Return the devices with the amounts of their pages, or as allocated without a page."""
    found = []
    for device in devices:
        shown = resize.shown.get((device.request, device.uuid))
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
