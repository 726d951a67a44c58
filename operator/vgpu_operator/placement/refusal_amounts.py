"""Compares a refused request with the largest free amounts, as text.

The text is made when a refusal is reported and not when it is decided, because it takes several
vector operations over all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vgpu_api.reasons import Reason
from vgpu_operator.demand import ALL_CORES, WHOLE_MEMORY, Demand, PartDemand, RequestDemand
from vgpu_operator.placement.constraints import NodeFilter
from vgpu_operator.placement.fleet import Best, Fleet
from vgpu_operator.placement.part_requests import on_device

_OF_COUNT = (Reason.NODE_INSUFFICIENT_DEVICE, Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST)


def amounts(fleet: Fleet, demand: Demand, reasons: str, *, within: NodeFilter) -> list[str]:
    """Return the requested and the largest free amount for each reason about an amount.

    Args:
        fleet: The state of all devices.
        demand: The refused claim's requests.
        reasons: The text of the refusal (`Plan.text`).
        within: The nodes that the claim may use.
    """
    texts = []
    for request in demand.requests:
        best = fleet.most_free(request, within)
        found = _lacking(fleet, request, reasons, best)
        texts += [f"{_of(request, demand)}{text}" for text in found]
    return texts


def impossible(fleet: Fleet, demand: Demand) -> str | None:
    """Return why no node could serve the claim even if all devices were empty, or None.

    Devices that are unhealthy, cordoned or on nodes that accept no pods count as usable. UUIDs are
    not considered, nor is the fact that requests take devices from each other.
    """
    for request in demand.requests:
        best = fleet.largest(request)
        # A device in MIG mode may serve a request several times.
        in_mig_mode = any(fleet.node_in_mig_mode)
        if best.serving >= request.count or (in_mig_mode and best.serving):
            continue
        if best.memory is None or best.cores is None:
            if not fleet.conditions.facts:
                return None
            return (
                f"{_of(request, demand)}no device of the cluster is of the kind that is asked for"
            )
        memory, cores = fleet.memory[best.memory], fleet.cores[best.cores]
        if request.part is not None:
            text = f"asked {_memory(request)}; no device is given in parts of which one serves that"
        elif best.serving:
            assert best.node is not None
            text = (
                f"asked {request.count} devices on one node; the most that could serve it on one "
                f"node are {best.serving} ({fleet.node_name[best.node]})"
            )
        elif request.memory_on(memory) > memory:
            text = (
                f"asked {_memory(request)}; the largest device has {_mib(memory)} "
                f"{_where(fleet, best.memory)}"
            )
        else:
            text = (
                f"asked {request.cores} % of compute; the most that a device has is {cores} % "
                f"{_where(fleet, best.cores)}"
            )
        return f"{_of(request, demand)}{text}"
    return None


def impossible_together(fleet: Fleet, demands: Sequence[Demand], count: int) -> str | None:
    """Return why no `count` of these claims fit at once even if all devices were empty, or None.

    Only sums over all devices are compared, so a group may still not fit where this returns None.
    Devices in MIG mode have sums of their own, so nothing is said about a cluster that has one.
    """
    if any(fleet.node_in_mig_mode):
        return None
    there = _Sums(
        sum(map(len, fleet.node_devices)),
        sum(fleet.node_slots),
        sum(fleet.node_memory),
        sum(fleet.node_cores),
    )
    needed = [_sums_of(demand) for demand in demands]
    for number, unit in enumerate(("whole devices", "slices", "MiB", "% of compute")):
        least = sum(sorted(each[number] for each in needed)[:count])
        if least > there[number]:
            asked = f"asked {least:,} {unit} for {count} pods together"
            return f"{asked}; all devices of the cluster have {there[number]:,}"
    return None


class _Sums(NamedTuple):
    """Amounts over several devices."""

    whole: int
    slots: int
    memory_mib: int
    cores: int


def _sums_of(demand: Demand) -> _Sums:
    """Return the least that a claim takes of all devices together, without its init containers."""
    apps = [each for each in demand.requests if each.phase == "App"]
    if any(each.is_marked or each.one_device for each in apps):
        return _Sums(0, 0, 0, 0)  # containers may share the devices that they request
    return _Sums(
        sum(each.count for each in apps if _is_whole(each)),
        sum(each.count for each in apps),
        sum(each.count * (each.memory_mib or 0) for each in apps),
        sum(each.count * each.cores for each in apps),
    )


def _lacking(fleet: Fleet, request: RequestDemand, reasons: str, best: Best) -> list[str]:
    """Return the amounts that no device has free, or all if each is free but not on one device."""
    if best.memory is None or best.cores is None:
        return []
    meant = on_device(fleet, best.memory, request)
    if meant is None:
        return []
    request = meant
    found: list[tuple[str, bool]] = []  # the text, and True if no device has that much free
    if Reason.CARD_INSUFFICIENT_MEMORY in reasons:
        total = fleet.memory[best.memory]
        free = total - fleet.memory_used[best.memory]
        of_all = "" if request.memory_percent is None else f" of {_mib(total)}"
        text = (
            f"asked {_memory(request)}; most free on one device {_mib(free)}{of_all} "
            f"{_where(fleet, best.memory)}"
        )
        found.append((text, free < request.memory_on(total)))
    if Reason.CARD_INSUFFICIENT_CORE in reasons:
        share = fleet.cores[best.cores] - fleet.cores_used[best.cores]
        text = (
            f"asked {request.cores} % of compute; most free on one device {share} % "
            f"{_where(fleet, best.cores)}"
        )
        found.append((text, share < request.cores))
    if request.count > 1 and any(reason in reasons for reason in _OF_COUNT):
        where = "" if best.node is None else f" ({fleet.node_name[best.node]})"
        text = f"asked {request.count} devices on one node; most that fit on one {best.serving}"
        if best.serving < request.count:
            found.append((f"{text}{where}", True))
    lacking = [text for text, lacks in found if lacks]
    return lacking or ([text for text, _ in found] if len(found) > 1 else [])


def _is_whole(request: RequestDemand) -> bool:
    return (
        request.cores >= ALL_CORES
        or request.memory_percent == WHOLE_MEMORY
        or request.mode == "Exclusive"
    )


def _of(request: RequestDemand, demand: Demand) -> str:
    """Return a prefix with the container's name if there are several requests."""
    return f"container {request.name} " if len(demand.requests) > 1 else ""


def _memory(request: RequestDemand) -> str:
    if request.mig_profile:
        return f"a MIG instance ({request.mig_profile})"
    if request.part is not None:
        return _part(request, request.part)
    if request.memory_mib is None:
        return f"{request.memory_percent} % of a device's memory"
    return _mib(request.memory_mib)


def _part(request: RequestDemand, part: PartDemand) -> str:
    """Describe a part: by name and memory if it was resolved on a node, else as requested."""
    if part.name:
        return f"part {part.name} with {_mib(request.memory_mib or 0)}"
    if part.size:
        return f"a part of size {part.size}"
    memory = f"{part.memory:,} GiB or MiB" if part.memory else _mib(request.memory_mib or 0)
    return f"a part with {memory} and {request.cores} % of compute"


def _mib(amount: int) -> str:
    return f"{amount:,} MiB"


def _where(fleet: Fleet, device: int) -> str:
    return f"({fleet.name[device]} on {fleet.node_name[fleet.node_of[device]]})"
