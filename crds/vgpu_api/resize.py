"""In-place resize: how changes to an allocated claim's requests take effect.

Memory and cores of a request may change while it holds devices. The operator and the agent share
the work, so that a device is never over-allocated:

    grow     the operator finds capacity and writes the larger amounts into the allocation; then the
             agent raises the page
    shrink   once usage allows it, the agent lowers the page and reports `Resized`; then the
             operator writes the smaller amounts into the allocation

Until both have acted, the allocation has the larger of the two amounts.

A percentage refers to the device's memory as recorded in the allocation (`deviceMemory`), so that
both compute the same amount. If each used the memory that it sees at the time, the operator could
free more than the agent has taken from the page after the node's memory scaling changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgpu_api import conditions
from vgpu_api.quantity import format_mib, read_mib
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim, VGPUClaimSpec, VGPURequest

FIRST_GENERATION = 1
"""The generation of a newly created claim."""


def was_changed(claim: VGPUClaim) -> bool:
    """Return True if the spec has changed since creation; else the allocation agrees with it."""
    return (claim.metadata.generation or FIRST_GENERATION) > FIRST_GENERATION


def target(spec: VGPUClaimSpec, allocation: Allocation) -> list[AllocatedDevice]:
    """Return the allocation's devices with the amounts that the spec now requests.

    Amounts that the spec leaves to defaults keep their value. So do MIG instances, parts that a
    node registers, and whole devices (`Exclusive`), because they cannot change while they are held
    (see `unmet`).
    """
    requests = {request.name: request for request in spec.requests}
    return [_desired(device, requests.get(device.request)) for device in allocation.devices]


def unmet(spec: VGPUClaimSpec, allocation: Allocation) -> list[tuple[str, str]]:
    """Return why devices cannot have the requested amounts, each as a reason and a sentence.

    A MIG instance, part or whole device with at least the requested amounts needs no change.
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
    """Return the larger amounts, device by device: these are held during a resize."""
    return [_each(max, *pair) for pair in zip(desired, held, strict=True)]


def allowed(
    desired: Sequence[AllocatedDevice], held: Sequence[AllocatedDevice]
) -> Sequence[AllocatedDevice]:
    """Return the smaller amounts, device by device: these are the page's limits during a resize."""
    return [_each(min, *pair) for pair in zip(desired, held, strict=True)]


def is_resized(claim: VGPUClaim) -> bool:
    """Return True if the agent has reported that the pages are within this version's amounts."""
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
    """Return the requested MiB on the device; None if unset or not computable.

    Rounded down as in `RequestDemand.memory_on`; a percentage below 1 MiB gives None.
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
        return device  # keep the stored spelling of the quantity
    return device.model_copy(update={"memory": format_mib(memory_mib), "cores": cores})
