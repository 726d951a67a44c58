"""Checks whether a request fits on a device, and takes the device.

The checks run in HAMi v2.10's order, and the first that fails is the reason. Check 4 (NUMA)
compares several devices, so it is in `hami_selection`. A request fits on a device in MIG mode if
there is a place for a large enough instance (`mig_geometry`). Everything that is taken here is
returned before the plan ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import ANY_PROFILE, DevicePolicy
from vgpu_operator.demand import ALL_CORES, RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import Charge, Share
from vgpu_operator.placement.device_conditions import refusal_of_facts
from vgpu_operator.placement.mig_geometry import Instance, bits_of, smallest
from vgpu_operator.vendors.neighbours import MARKED_FROM, joined, refusal_beside


def refusal_of_kind(columns: Columns, device: int, request: RequestDemand) -> Reason | None:
    """Run checks 1 to 3: is the device usable, and of the requested kind?"""
    return refusal_of_facts(columns.conditions.facts[columns.facts[device]], request)


def refusal_of_room(
    columns: Columns,
    device: int,
    request: RequestDemand,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> Reason | None:
    """Run checks 5 to 14: does the request fit on this particular device?"""
    uuid = columns.uuid[device]
    if uuid in request.exclude_uuids or (request.uuids and uuid not in request.uuids):
        return Reason.CARD_UUID_MISMATCH
    used = columns.slots_used[device]
    if used >= columns.slots[device]:
        return Reason.CARD_TIME_SLICING_EXHAUSTED
    if "Mutex" in policies and (used or (request.group_mutex and _group_is_used(columns, device))):
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    memory = request.memory_on(columns.memory[device])
    in_mig_mode = columns.mode[device] == "MIG"
    instance = instance_on(columns, device, request) if in_mig_mode else None
    if charge is not None and charge.exceeds(device, request, *charged(request, memory, instance)):
        return Reason.RESOURCE_QUOTA_NOT_FIT
    # A percentage of a tiny device may round down to 0 MiB, which would mean no limit.
    if memory < request.least_mib or memory > columns.memory[device] - columns.memory_used[device]:
        return Reason.CARD_INSUFFICIENT_MEMORY
    if request.one_size and columns.memory_used[device] != used * memory:
        return Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE
    cores_free = columns.cores[device] - columns.cores_used[device]
    if request.cores > cores_free or not has_cores(columns, device, request):
        return Reason.CARD_INSUFFICIENT_CORE
    if used and request.cores >= ALL_CORES:
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    if not request.cores and cores_free < request.least_cores:
        return Reason.CARD_COMPUTE_UNITS_EXHAUSTED
    if in_mig_mode and instance is None:
        return Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
    return None


def refusal_among(
    columns: Columns,
    device: int,
    request: RequestDemand,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> Reason | None:
    """Like `refusal_of_room`, for a request with marks."""
    return refusal_beside(columns.slices_used[device], request.neighbours) or refusal_of_room(
        columns, device, request, policies, charge
    )


def _group_is_used(columns: Columns, device: int) -> bool:
    """Return True if a linked device is in use. Source: HAMi v2.10.0, Vastai."""
    linked, of_node = columns.links[device], columns.node_devices[columns.node_of[device]]
    return any(columns.slots_used[other] and columns.uuid[other] in linked for other in of_node)


def with_room(columns: Columns, devices: Iterable[int], request: RequestDemand) -> list[int]:
    """Return the devices that pass checks 6 and 10 to 13, which decide nearly all cases."""
    slots, slots_used = columns.slots, columns.slots_used
    memory, memory_used = columns.memory, columns.memory_used
    cores, cores_used = columns.cores, columns.cores_used
    alone, at_least = request.cores >= ALL_CORES, request.least_cores
    mib = request.memory_mib
    if mib is None:
        return [
            device
            for device in devices
            if slots_used[device] < slots[device]
            and at_least <= cores[device] - cores_used[device]
            and not (alone and slots_used[device])
            and 1 <= request.memory_on(memory[device]) <= memory[device] - memory_used[device]
        ]
    return [
        device
        for device in devices
        if memory_used[device] + mib <= memory[device]
        and slots_used[device] < slots[device]
        and at_least <= cores[device] - cores_used[device]
        and not (alone and slots_used[device])
    ]


def may_fit(columns: Columns, node: int, request: RequestDemand, shares: Iterable[Share]) -> bool:
    """Return True if some device of the node has enough memory for a request besides these shares.

    If not, the plan can be skipped. Most requests that wait for a node with much kept capacity find
    no device, and this check costs a fraction of a plan.
    """
    memory, used, kept = columns.memory, columns.memory_used, Counter[int]()
    for share in shares:
        kept[share.device] += share.memory_mib
    return any(
        used[device] + kept[device] + request.memory_on(memory[device]) <= memory[device]
        for device in with_room(columns, columns.node_devices[node], request)
    )


def passing(
    columns: Columns,
    devices: Sequence[int],
    request: RequestDemand,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> list[int]:
    """Return the devices that pass every check, in the given order."""
    known, condition = columns.conditions.fitting.of(request), columns.condition
    try:  # usually all conditions are known, and then this is cheaper than `get` for each
        found = [device for device in devices if known[condition[device]]]
    except KeyError:
        found = _serving(columns, devices, request)
        known.update(dict.fromkeys([condition[device] for device in devices], False))
        known.update(dict.fromkeys([condition[device] for device in found], True))
    named = request.uuids or request.exclude_uuids or request.one_size
    if "Mutex" in policies or charge is not None or named:
        return [c for c in found if not refusal_of_room(columns, c, request, policies, charge)]
    return found


def _serving(columns: Columns, devices: Sequence[int], request: RequestDemand) -> list[int]:
    """Return the devices that pass the checks which have equal results for equal conditions."""
    fits, kind = columns.conditions.right_kinds.of(request), columns.kind
    found: list[int] = []
    for device in with_room(columns, devices, request):
        right = fits.get(kind[device])
        if right is None:
            right = refusal_of_kind(columns, device, request) is None
            right = right and _goes_with(columns, device, request)
            if columns.mode[device] != "MIG":
                fits[kind[device]] = right
            else:  # an instance also needs memory and compute, on which a kind says nothing
                right = right and instance_on(columns, device, request) is not None
        if right:
            found.append(device)
    return found


def _goes_with(columns: Columns, device: int, request: RequestDemand) -> bool:
    """Return True if the request may share the device with the requests whose marks it has."""
    if not request.is_marked:
        return True
    return has_cores(columns, device, request) and not refusal_beside(
        columns.slices_used[device], request.neighbours
    )


Taken: TypeAlias = tuple[int, int, int, int, int]
"""A device with its slots, cores, MiB and slices in use before it was taken, for `give_back`."""


def instance_on(columns: Columns, device: int, request: RequestDemand) -> Instance | None:
    """Return the instance that a device in MIG mode would create for a request, or None."""
    total, (_, cores, memory, slices) = columns.memory[device], columns.in_use(device)
    named = "" if request.mig_profile == ANY_PROFILE else request.mig_profile
    requested = request.memory_on(total)
    instance = smallest(columns.profiles[device], slices, requested, named=named)
    if instance is None:
        return None
    # An instance's size does not follow scaled amounts of its device, so it may exceed them.
    is_over = memory + instance.memory_mib > total or cores + instance.cores > columns.cores[device]
    return None if is_over else instance


def cores_on(columns: Columns, device: int, request: RequestDemand) -> tuple[int, ...]:
    """Return the lowest free cores of a device, for a request for numbered cores.

    There are fewer than requested if the device has too few. `slices_used` contains the cores in
    use: a device has either numbered cores or MIG slices.
    """
    needed = request.numbered_cores
    if not needed:
        return ()
    used, each = columns.slices_used[device], needed * ALL_CORES // request.cores
    return tuple(core for core in range(each) if not used >> core & 1)[:needed]


def has_cores(columns: Columns, device: int, request: RequestDemand) -> bool:
    """Return True if the device has enough numbered cores, or the request needs none."""
    needed = request.numbered_cores
    return not needed or len(cores_on(columns, device, request)) == needed


def charged(request: RequestDemand, memory_mib: int, instance: Instance | None) -> tuple[int, int]:
    """Return the (MiB, percent of compute) to charge; in MIG mode, the size of the instance."""
    if instance is None:
        return memory_mib, request.cores
    return instance.memory_mib, instance.cores


def take(columns: Columns, device: int, request: RequestDemand) -> Taken:
    """Take a device that fits, or an instance of it. The caller must return it."""
    before = slots, cores, memory, slices = columns.in_use(device)
    instance = instance_on(columns, device, request) if columns.mode[device] == "MIG" else None
    if instance is not None:
        slices |= instance.slices
    if request.is_marked:
        slices = _marked(columns, device, request)
    more, own = charged(request, request.memory_on(columns.memory[device]), instance)
    cores += own
    if own >= ALL_CORES:  # exclusive use, even if the device's cores are scaled above 100 %
        cores = max(cores, columns.cores[device])
    columns.lend(device, slots + 1, cores, memory + more, slices)
    return device, *before


def _marked(columns: Columns, device: int, request: RequestDemand) -> int:
    """Return a device's numbered cores or marks after it has served the request."""
    marks = request.neighbours or bits_of(cores_on(columns, device, request))
    return joined(columns.slices_used[device], marks, 1)


def take_place(columns: Columns, device: int, request: RequestDemand) -> Taken:
    """Take only the place of an init container's instance, for the requests planned after it.

    Their containers run when the init container has ended, so its memory and compute are free
    again; its instance stays on the device until the pod ends.
    """
    before = slots, cores, memory, slices = columns.in_use(device)
    instance = instance_on(columns, device, request) if columns.mode[device] == "MIG" else None
    if instance is not None:
        columns.lend(device, slots, cores, memory, slices | instance.slices)
    return device, *before


def lay(columns: Columns, shares: Iterable[Share]) -> list[Taken]:
    """Count shares as in use while a node is planned; `give_back` undoes it."""
    taken: list[Taken] = []
    for share in shares:
        device = share.device
        before = slots, cores, memory, slices = columns.in_use(device)
        columns.lend(
            device,
            slots + share.slots,
            cores + share.cores,
            memory + share.memory_mib,
            slices | share.slices
            if share.slices < MARKED_FROM
            else joined(slices, share.slices, share.slots),
        )
        taken.append((device, *before))
    return taken


def give_back(columns: Columns, taken: Iterable[Taken]) -> None:
    """Restore the devices in reverse order."""
    for device, slots, cores, memory, slices in reversed(tuple(taken)):
        columns.lend(device, slots, cores, memory, slices)
