"""Earmarks: devices on which nothing new starts until a request that has starved fits there.

kube-scheduler owns the order of pods, so a stream of small requests could take every device that a
large one waits for. A request that was refused for want of room for long enough gets an earmark: on
the node where the least must become free, for the devices that the whole claim would get there once
they are free. It is given up when the claim is served, waits no more, or could not go there. (HPC
schedulers call this a reservation for backfill. Source of the rule:
docs/design/queue-earmarks-preemption.md.)

`KeptFrom`, the view that placement asks, adds what tentative places keep from a claim.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from vgpu_operator.demand import ALL_CORES, Demand, RequestDemand
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.reservation import Reservation, Reservations
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, NodeFilter, Share
from vgpu_operator.placement.bounds import ClaimUse
from vgpu_operator.placement.checks import give_back, lay
from vgpu_operator.placement.parts import on_device, on_node
from vgpu_operator.placement.planning import plan_alone_on, policies_on

MOST = 9
"""Earmarks at a time in the cluster."""
MOST_OF_A_NAMESPACE = 3
"""Of those, for one namespace: no tenant keeps the others' devices free for itself."""
HELD = "held for a request that has waited longer"
"""In a refusal, of devices that an earmark alone keeps."""
NODES_WEIGHED = 32
"""Nodes that are checked closely for one request: those where the least must become free."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """Devices of one node that are kept for a claim.

    Attributes:
        key: The claim, which need not exist yet.
        node: The node's name.
        number: The number that the columns give the node.
        devices: Names of the GPUDevices.
    """

    key: ClaimKey
    node: str
    number: int
    devices: tuple[str, ...]


@dataclass(slots=True)
class Earmarks:
    """All earmarks, one at most for a claim."""

    _of_claim: dict[ClaimKey, Earmark] = field(default_factory=dict)
    _on_node: dict[int, list[Earmark]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Earmark]:
        return iter(list(self._of_claim.values()))

    def __len__(self) -> int:
        return len(self._of_claim)

    def get(self, key: ClaimKey) -> Earmark | None:
        """The claim's."""
        return self._of_claim.get(key)

    @property
    def by_node(self) -> Mapping[int, list[Earmark]]:
        """By node number."""
        return self._on_node

    def has_room_for(self, namespace: str) -> bool:
        """Whether a claim of the namespace may get one."""
        used = Counter(key.namespace for key in self._of_claim)
        return len(self._of_claim) < MOST and used[namespace] < MOST_OF_A_NAMESPACE

    def put(self, earmark: Earmark) -> None:
        """Keep devices from now on."""
        self.remove(earmark.key)
        self._of_claim[earmark.key] = earmark
        self._on_node.setdefault(earmark.number, []).append(earmark)

    def remove(self, key: ClaimKey) -> Earmark | None:
        """Keep nothing for the claim any more; returns what was kept."""
        earmark = self._of_claim.pop(key, None)
        if earmark is not None:
            there = self._on_node[earmark.number]
            there.remove(earmark)
            if not there:
                del self._on_node[earmark.number]
        return earmark

    def shares_on(self, columns: Columns, node: int, key: ClaimKey) -> list[Share]:
        """What is kept on a node from a claim: all memory of each device, so nothing starts."""
        shares = []
        for earmark in self._on_node.get(node, ()):
            if earmark.key != key:
                for device in _numbers(columns, earmark).values():
                    shares.append(Share(device, 0, 0, columns.memory[device]))
        return shares


def is_sound(columns: Columns, earmark: Earmark, nodes: NodeFilter) -> bool:
    """True if its devices are there, in order, and on a node that takes its pod."""
    node, numbers = columns.node_id(earmark.node), _numbers(columns, earmark)
    if node != earmark.number or node not in nodes or columns.closed(node, nodes) is not None:
        return False
    return len(numbers) == len(earmark.devices) and all(
        columns.healthy[number] and not columns.cordoned[number] for number in numbers.values()
    )


def explain(
    columns: Columns, earmarks: Earmarks, key: ClaimKey, demand: Demand
) -> Mapping[str, str]:
    """Return the note about kept devices for the refusal of each node that has some."""
    found = kept_devices(columns, earmarks, key, demand)
    return {node: kept_text(node, count) for node, count in found.items()}


def kept_text(node: str, count: int) -> str:
    """Return the note about a node's kept devices.

    The claim that they are kept for is left out: it may be another tenant's.
    """
    return f"{count} on {node} {HELD}"


def kept_devices(
    columns: Columns, earmarks: Earmarks, key: ClaimKey, demand: Demand
) -> Mapping[str, int]:
    """Return the number of devices on each node that only an earmark keeps from a claim."""
    found: dict[str, int] = {}
    for earmark in earmarks:
        if earmark.key == key:
            continue
        kept = sum(
            any(_is_enough(columns, number, request) for request in demand.requests)
            for number in _numbers(columns, earmark).values()
        )
        if kept:
            found[earmark.node] = kept
    return found


def _is_enough(columns: Columns, device: int, requested: RequestDemand) -> bool:
    """Whether as much memory is free of a device as a request means there."""
    request = on_device(columns, device, requested)
    if request is None:
        return False
    return request.least_mib <= request.memory_on(columns.memory[device]) <= _free(columns, device)


def choose(
    columns: Columns,
    demand: Demand,
    key: ClaimKey,
    nodes: NodeFilter,
    earmarks: Earmarks,
    promised: Collection[int] = (),
) -> Earmark | None:
    """The devices that would serve `demand` soonest; None where no node ever could.

    Args:
        columns: The state of all devices; left as it was.
        demand: What is waited for.
        key: The claim.
        nodes: Those that its pod may use.
        earmarks: Devices that are kept already are kept for one claim only.
        promised: Numbers of devices that are left to others.
    """
    best: tuple[float, str, tuple[str, ...]] | None = None
    for node, least in columns.arrays.closest(columns, demand, NODES_WEIGHED, nodes):
        if best is not None and least >= best[0] and len(demand.requests) == 1:
            break  # no less must become free on the nodes that follow
        taken = {name for other in earmarks.by_node.get(node, ()) for name in other.devices}
        taken.update(columns.name[device] for device in promised)
        target = _on_node(columns, node, demand, taken)
        if target is not None and (best is None or target < best):
            best = target
    if best is None:
        return None
    number = columns.node_id(best[1])
    assert number is not None
    return Earmark(key, best[1], number, best[2])


def _on_node(
    columns: Columns, node: int, demand: Demand, taken: set[str]
) -> tuple[float, str, tuple[str, ...]] | None:
    """What must still become free there, the node, and the devices that the claim would get."""
    found = [on_node(columns, node, request) for request in demand.requests]
    requests = tuple(request for request in found if request is not None)
    if len(requests) < len(found):
        return None
    if requests != demand.requests:
        demand = replace(demand, requests=requests)
    usable = [
        device
        for device in columns.node_devices[node]
        if columns.name[device] not in taken and columns.mode[device] != "MIG"
    ]
    groups: dict[int, list[int]] = {}
    for device in usable:
        numa = columns.numa[device] if demand.numa == "Require" else 0
        groups.setdefault(numa, []).append(device)
    best: tuple[float, str, tuple[str, ...]] | None = None
    for devices in groups.values():
        chosen = _with_least_missing(columns, node, devices, demand)
        chosen = _served_by(columns, node, demand, chosen) or _served_by(
            columns, node, demand, devices
        )
        if chosen:
            names = tuple(sorted(columns.name[device] for device in chosen))
            target = _missing(columns, node, demand, chosen), columns.node_name[node], names
            best = target if best is None else min(best, target)
    return best


def _served_by(columns: Columns, node: int, demand: Demand, devices: list[int]) -> list[int]:
    """The devices that the whole claim gets if these are empty and the node's others full."""
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
    """The devices where the least must become free, request by request; none if too few could."""
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
    """What must become free of some devices, in devices: each amount as a part of its whole."""
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
    """Return a need with one request more, on a device with so much memory."""
    return (need or ClaimUse()).plus(request, request.memory_on(total_mib))


def _lacks(columns: Columns, device: int, memory: int, cores: int, *, alone: bool) -> float:
    slots_used, cores_used, memory_used = columns.used(device)
    totals = (columns.memory[device], columns.cores[device], columns.slots[device])
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


def _numbers(columns: Columns, earmark: Earmark) -> dict[str, int]:
    """The columns' numbers of its devices, of those that are there."""
    node = columns.node_id(earmark.node)
    devices = [] if node is None else columns.node_devices[node]
    return {
        columns.name[device]: device
        for device in devices
        if columns.name[device] in earmark.devices
    }


CROWDED = 4
"""So many kinds of pods are requeued for one node before no more are."""


class Yielding(Enum):
    """Which tentative places a claim respects."""

    ALL = "all"
    """Every other's: a Filter looks for room beside them first."""
    MORE_IMPORTANT = "more important"
    """Only those of pods of a higher priority: everybody else's yields to a Filter."""
    OF_ITS_KIND = "of its kind"
    """For a requeue: as many pods of a kind are requeued as there is room for, but pods of another
    kind are not kept waiting for one that may never come."""
    AS_IMPORTANT = "as important"
    """For an Immediate claim: those of pods of its priority or a higher one."""


@dataclass(frozen=True, slots=True)
class KeptFrom:
    """What is kept from a claim; see `placement.Kept`.

    Attributes:
        key: The claim.
        kind: Its kind, if it waits.
        priority: Its pod's, or its own.
        yielding: Which tentative places count.
        columns: The state of all devices.
        reservations: Where the tentative places are.
        earmarks: Count always, but for the claim's own.
    """

    key: ClaimKey
    kind: EquivalenceClass | None
    priority: int
    yielding: Yielding
    columns: Final[Columns]
    reservations: Final[Reservations]
    earmarks: Final[Earmarks]

    @property
    def nodes(self) -> Collection[int]:
        """See `placement.Kept`."""
        maps: tuple[Any, Any] = self.reservations.tentative, self.earmarks.by_node
        return ChainMap(*maps)

    def on(self, node: int) -> Sequence[Share]:
        """See `placement.Kept`."""
        shares = self.earmarks.shares_on(self.columns, node, self.key)
        there = self.reservations.tentative.get(node, {}).values()
        crowded = self.yielding is Yielding.OF_ITS_KIND and self._is_crowded(there)
        for place in there:
            if place.key != self.key and (crowded or self._counts(place)):
                shares += place.shares
        return shares

    def _counts(self, place: Reservation) -> bool:
        match self.yielding:
            case Yielding.ALL:
                return True
            case Yielding.MORE_IMPORTANT:
                return place.is_awaited and place.priority > self.priority
            case Yielding.AS_IMPORTANT:
                return place.is_awaited and place.priority >= self.priority
        return place.is_awaited and (place.kind == self.kind or place.priority > self.priority)

    def _is_crowded(self, there: Collection[Reservation]) -> bool:
        return len({place.kind for place in there if place.is_awaited} - {self.kind}) >= CROWDED
