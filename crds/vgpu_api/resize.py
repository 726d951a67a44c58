"""Resize in place: what a changed request of an allocated claim means for the devices that it has.

Memory and cores of a request may change while it holds devices. The operator and the agent share
the work, so that no device is ever given away beyond what it has:

    grow     the operator finds room and writes the larger amounts into the allocation; then the
             agent raises the page
    shrink   the agent lowers the page as soon as no more is used, and reports `Resized`; then the
             operator writes the smaller amounts into the allocation

Until both are done, the allocation holds the larger of both amounts.

A percentage means the device's memory as the allocation records it (`deviceMemory`), so that both
work out the same amount. Were it of the memory that each sees at the time, a change of the node's
memory scaling would let the operator free more than the agent has taken from the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgpu_api import conditions
from vgpu_api.quantity import format_mib, read_mib
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim, VGPUClaimSpec, VGPURequest

FIRST_GENERATION = 1
"""Of a claim that has just been made."""


def was_changed(claim: VGPUClaim) -> bool:
    """Whether the spec was ever written again: only then can it differ from its allocation."""
    return (claim.metadata.generation or FIRST_GENERATION) > FIRST_GENERATION


def target(spec: VGPUClaimSpec, allocation: Allocation) -> list[AllocatedDevice]:
    """The allocation's devices with the amounts that the spec asks for now.

    What the spec leaves to defaults stays as it was given, and so do MIG instances, parts that a
    node registers and whole devices (`Exclusive`), which cannot change while they are held: see
    `unmet`.
    """
    requests = {request.name: request for request in spec.requests}
    return [_desired(device, requests.get(device.request)) for device in allocation.devices]


def unmet(spec: VGPUClaimSpec, allocation: Allocation) -> list[tuple[str, str]]:
    """Why devices cannot become what the spec asks for now: reason and sentence.

    A MIG instance, a part or a whole device that has at least as much serves the request as it is.
    """
    requests = {request.name: request for request in spec.requests}
    found = []
    for device in allocation.devices:
        request = requests.get(device.request)
        if request is None:
            continue
        is_of_one_size = device.mig is not None or bool(device.part)
        if not is_of_one_size and request.mode != "Exclusive":
            if request.memory_percent is not None and _memory_mib(device, request) is None:
                found.append(("DeviceMemoryUnknown", _no_percentage(device, request)))
            continue
        memory = max(device.memory_mib, _memory_mib(device, request) or 0)
        cores = device.cores
        if is_of_one_size:
            cores = max(cores, request.cores or 0)
        if (memory, cores) == (device.memory_mib, device.cores):
            continue
        reason, what = "WholeDevice", "all of the device"
        if device.mig is not None:
            reason, what = "MigInstance", f"its MIG instance {device.mig.profile}"
        elif device.part:
            reason, what = "RegisteredPart", f"its part {device.part}"
        requested = f"{format_mib(memory)} and {cores} % asked"
        has = f"{what} has {format_mib(device.memory_mib)} and {device.cores} %"
        found.append(
            (reason, f"device {device.uuid}: {requested}, {has} and cannot change while held")
        )
    return found


def granted(
    desired: Sequence[AllocatedDevice], held: Sequence[AllocatedDevice]
) -> Sequence[AllocatedDevice]:
    """Device by device the larger amounts: what is held while a resize is under way."""
    return [_each(max, *pair) for pair in zip(desired, held, strict=True)]


def allowed(
    desired: Sequence[AllocatedDevice], held: Sequence[AllocatedDevice]
) -> Sequence[AllocatedDevice]:
    """Device by device the smaller amounts: what a page may have while one is under way."""
    return [_each(min, *pair) for pair in zip(desired, held, strict=True)]


def is_resized(claim: VGPUClaim) -> bool:
    """Whether the agent has reported that the pages hold no more than this version asks for."""
    found = conditions.find(claim.status.conditions, conditions.RESIZED)
    return (
        found is not None
        and found.status == "True"
        and found.observed_generation == claim.metadata.generation
    )


def _desired(device: AllocatedDevice, request: VGPURequest | None) -> AllocatedDevice:
    if request is None or device.mig is not None or device.part or request.mode == "Exclusive":
        return device
    memory = _memory_mib(device, request)
    cores = device.cores if request.cores is None else request.cores
    return _with(device, device.memory_mib if memory is None else memory, cores)


def _memory_mib(device: AllocatedDevice, request: VGPURequest) -> int | None:
    """MiB that the request means on the device; None: none is asked, or it cannot be worked out.

    Rounded down as by `RequestDemand.memory_on`; a percentage of less than 1 MiB is none.
    """
    if request.memory_percent is None:
        return request.memory_mib
    if device.device_memory is None:
        return None
    return read_mib(device.device_memory) * request.memory_percent // 100 or None


def _no_percentage(device: AllocatedDevice, request: VGPURequest) -> str:
    of = device.device_memory or "none"
    return (
        f"device {device.uuid}: {request.memory_percent} % of its memory asked, "
        f"{format_mib(device.memory_mib)} held; the allocation has {of} "
        "as the memory of the device: ask by memory, or recreate the pod"
    )


def _each(
    choose: Callable[[int, int], int], one: AllocatedDevice, other: AllocatedDevice
) -> AllocatedDevice:
    memory = choose(one.memory_mib, other.memory_mib)
    return _with(other, memory, choose(one.cores, other.cores))


def _with(device: AllocatedDevice, memory_mib: int, cores: int) -> AllocatedDevice:
    if (memory_mib, cores) == (device.memory_mib, device.cores):
        return device  # as it is written, to the letter
    return device.model_copy(update={"memory": format_mib(memory_mib), "cores": cores})
