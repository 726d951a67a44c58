"""Earmarks: devices on which nothing new starts until a request that has starved fits there.

kube-scheduler decides in which order pods are tried, so a stream of small requests could take every
device that a large one waits for. A request that has been refused for lack of capacity for long
enough gets an earmark: on the node where the least must become free, for the devices that the whole
claim would get there. The earmark is removed when the claim is served, stops waiting, or can no
longer use the node. More important requests do not see it; it is lost when one of them gets a
device of it. HPC schedulers call this a reservation for backfill
(docs/design/queue-earmarks-preemption.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from vgpu_operator.demand import ALL_CORES, Demand, RequestDemand
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.kept import Earmark, Earmarks, numbers_of
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, Fleet, NodeFilter, Share
from vgpu_operator.placement.constraints import ClaimUse
from vgpu_operator.placement.fit_device import give_back, lay
from vgpu_operator.placement.fit_node import plan_alone_on, policies_on
from vgpu_operator.placement.part_requests import on_device, on_node

HELD = "held for a request that has waited longer"
"""Text in a refusal for devices that only an earmark keeps from the request."""
NODES_WEIGHED = 32
"""Nodes that are examined for one request: those where the least must become free."""


def is_sound(columns: Columns, earmark: Earmark, nodes: NodeFilter) -> bool:
    """Return True if all of its devices are healthy and uncordoned and its node takes the pod."""
    node, numbers = columns.node_id(earmark.node), numbers_of(columns, earmark)
    if node != earmark.number or node not in nodes or columns.closed(node, nodes) is not None:
        return False
    return len(numbers) == len(earmark.devices) and all(
        columns.healthy[number] and not columns.cordoned[number] for number in numbers.values()
    )


def explain(
    columns: Columns,
    earmarks: Earmarks,
    key: ClaimKey,
    demand: Demand,
    group: GroupKey | None = None,
    priority: int = 0,
) -> Mapping[str, str]:
    """Return the note about kept devices for the refusal of each node that has some."""
    found = kept_devices(columns, earmarks, key, demand, group, priority)
    return {node: kept_text(node, count) for node, count in found.items()}


def kept_text(node: str, count: int) -> str:
    """Return the note about a node's kept devices.

    It does not name the claim they are kept for, which may belong to another tenant.
    """
    return f"{count} on {node} {HELD}"


def kept_devices(
    columns: Columns,
    earmarks: Earmarks,
    key: ClaimKey,
    demand: Demand,
    group: GroupKey | None = None,
    priority: int = 0,
) -> Mapping[str, int]:
    """Return the number of devices on each node that only an earmark keeps from a claim."""
    found: dict[str, int] = {}
    for earmark in earmarks:
        if earmark.may_be_used_by(key, group, priority):
            continue
        kept = sum(
            any(_is_enough(columns, number, request) for request in demand.requests)
            for number in numbers_of(columns, earmark).values()
        )
        if kept:
            found[earmark.node] = kept
    return found


def _is_enough(columns: Columns, device: int, requested: RequestDemand) -> bool:
    """Return True if a device has as much free memory as the request means on that device."""
    request = on_device(columns, device, requested)
    if request is None:
        return False
    return request.least_mib <= request.memory_on(columns.memory[device]) <= _free(columns, device)


def choose(
    fleet: Fleet,
    demand: Demand,
    key: ClaimKey,
    nodes: NodeFilter,
    earmarks: Earmarks,
    promised: Collection[int] = (),
    priority: int = 0,
) -> Earmark | None:
    """Return an earmark on the node where the least must become free, or None if no node will do.

    Args:
        fleet: The state of all devices; unchanged on return.
        demand: The claim's request.
        key: The claim that gets the earmark.
        nodes: The nodes that its pod may use.
        earmarks: The earmarks that exist; less important ones lose the devices that are chosen.
        promised: Numbers of devices that must not be chosen.
        priority: The claim's priority.
    """
    best: tuple[float, str, tuple[str, ...]] | None = None
    left = {fleet.name[device] for device in promised}
    for node, least in fleet.closest(demand, NODES_WEIGHED, nodes):
        if best is not None and least >= best[0] and len(demand.requests) == 1:
            break  # on the nodes that follow at least as much must become free
        target = _on_node(fleet, node, demand, earmarks.devices_on(node, priority) | left)
        if target is not None and (best is None or target < best):
            best = target
    if best is None:
        return None
    number = fleet.node_id(best[1])
    assert number is not None
    return Earmark(key, best[1], number, best[2], priority)


def joins(
    columns: Columns,
    chosen: Collection[Earmark],
    shared: dict[int, Share],
    demand: Demand,
    nodes: NodeFilter,
) -> bool:
    """Add a claim to a device that is kept for its group; return False if none can take it.

    Args:
        columns: The state of all devices.
        chosen: The earmarks that the group gets.
        shared: By device, what claims of the group will take of it; changed.
        demand: The claim's request.
        nodes: The nodes that its pod may use.
    """
    request = _part_of_one(demand)
    if request is None:
        return False
    for earmark in chosen:
        if earmark.number not in nodes or columns.closed(earmark.number, nodes) is not None:
            continue
        for device in numbers_of(columns, earmark).values():
            taken = shared.get(device)
            if taken is None:
                continue
            memory = taken.memory_mib + request.memory_on(columns.memory[device])
            new = Share(device, taken.slots + 1, taken.cores + request.cores, memory)
            if (
                new.slots <= columns.slots[device]
                and new.cores <= columns.cores[device]
                and memory <= columns.memory[device]
            ):
                shared[device] = new
                return True
    return False


def begin_sharing(
    columns: Columns, shared: dict[int, Share], demand: Demand, devices: Collection[int]
) -> None:
    """Record what the claim that devices are kept for takes of them, if it leaves a rest."""
    request = _part_of_one(demand)
    if request is not None:
        for device in devices:
            memory = request.memory_on(columns.memory[device])
            shared[device] = Share(device, 1, request.cores, memory)


def _part_of_one(demand: Demand) -> RequestDemand | None:
    """Return the only request of a claim if it asks for a part of one device, else None."""
    if len(demand.requests) != 1:
        return None
    request = demand.requests[0]
    if request.count != 1 or request.cores >= ALL_CORES or request.is_marked:
        return None
    return request


def _on_node(
    columns: Columns, node: int, demand: Demand, taken: set[str]
) -> tuple[float, str, tuple[str, ...]] | None:
    """Return how much must still become free on a node, its name, and the devices to keep."""
    there = _asked_on(columns, node, demand)
    if there is None:
        return None
    demand = there
    best: tuple[float, str, tuple[str, ...]] | None = None
    for devices in _groups_on(columns, node, demand, taken):
        # The cheapest devices may not suit each other, for instance their links or their NUMA
        # nodes. Placement itself decides then, among all devices of the group.
        chosen = _with_least_missing(columns, node, devices, demand)
        chosen = _served_by(columns, node, demand, chosen) or _served_by(
            columns, node, demand, devices
        )
        if chosen:
            names = tuple(sorted(columns.name[device] for device in chosen))
            target = _missing(columns, node, demand, chosen), columns.node_name[node], names
            best = target if best is None else min(best, target)
    return best


def _asked_on(columns: Columns, node: int, demand: Demand) -> Demand | None:
    """Return the demand as it applies to a node, or None if a request cannot be served there."""
    found = [on_node(columns, node, request) for request in demand.requests]
    requests = tuple(request for request in found if request is not None)
    if len(requests) < len(found):
        return None
    return demand if requests == demand.requests else replace(demand, requests=requests)


def _groups_on(
    columns: Columns, node: int, demand: Demand, taken: set[str]
) -> Collection[list[int]]:
    """Return the node's usable devices, by NUMA node if the demand requires one."""
    groups: dict[int, list[int]] = {}
    for device in columns.node_devices[node]:
        if columns.name[device] not in taken and columns.mode[device] != "MIG":
            numa = columns.numa[device] if demand.numa == "Require" else 0
            groups.setdefault(numa, []).append(device)
    return groups.values()


def _served_by(columns: Columns, node: int, demand: Demand, devices: list[int]) -> list[int]:
    """Return the devices the claim would get if these were empty and the node's others full."""
    laid = lay(
        columns,
        [
            Share(device, -columns.slots_used[device], -columns.cores_used[device],
                  -columns.memory_used[device])
            if device in devices
            else Share(device, columns.slots[device], 0, columns.memory[device])
            for device in columns.node_devices[node]
        ],
    )  # fmt: skip
    plan = plan_alone_on(columns, node, demand, demand.numa) if devices else ()
    give_back(columns, laid)
    if not isinstance(plan, tuple):
        return []
    return sorted({columns.number_of(grant.device) for grant in plan})


def _with_least_missing(
    columns: Columns, node: int, devices: list[int], demand: Demand
) -> list[int]:
    """Return, request by request, the devices on which the least must become free."""
    alone = "Mutex" in policies_on(columns, node, demand)
    least: dict[int, ClaimUse] = {}
    for request in demand.requests:

        def cost(device: int, request: RequestDemand = request) -> tuple[float, int, str]:
            memory, cores = _with(least.get(device), request, columns.memory[device]).peak
            lonely = alone or request.cores >= ALL_CORES
            missing = _lacks(columns, device, memory, cores, alone=lonely)
            return missing, columns.index[device], columns.name[device]

        for device in sorted(devices, key=cost)[: request.count]:
            least[device] = _with(least.get(device), request, columns.memory[device])
    return sorted(least)


def _missing(columns: Columns, node: int, demand: Demand, devices: list[int]) -> float:
    """Return how much must become free on some devices: the sum of the missing fractions."""
    share = max(len(devices), 1)
    alone = "Mutex" in policies_on(columns, node, demand)
    alone = alone or any(request.cores >= ALL_CORES for request in demand.requests)
    apps = [request for request in demand.requests if request.phase == "App"]
    total = 0.0
    for device in devices:
        mib = columns.memory[device]
        memory = sum(request.memory_on(mib) * request.count for request in apps) / share
        cores = sum(request.cores * request.count for request in apps) / share
        total += _lacks(columns, device, math.ceil(memory), math.ceil(cores), alone=alone)
    return total


def _with(need: ClaimUse | None, request: RequestDemand, total_mib: int) -> ClaimUse:
    """Return the use of a device with one more request, if the device has this much memory."""
    return (need or ClaimUse()).plus(request, request.memory_on(total_mib))


def _lacks(columns: Columns, device: int, memory: int, cores: int, *, alone: bool) -> float:
    slots_used, cores_used, memory_used = columns.used(device)
    totals = (columns.memory[device], columns.cores[device], columns.slots[device])
    # An exclusive request needs an empty device: count all that is in use, not just the shortfall.
    if alone:
        lacks = (memory_used, cores_used, slots_used)
    else:
        lacks = (
            max(0, memory + memory_used - totals[0]),
            max(0, cores + cores_used - totals[1]),
            max(0, 1 + slots_used - totals[2]),
        )
    return sum(lack / total for lack, total in zip(lacks, totals, strict=True) if total)


def _free(columns: Columns, device: int) -> int:
    return columns.memory[device] - columns.memory_used[device]
