"""The constraints on a decision: the pod's nodes, its quota, and capacity kept for others.

A node filter has one bit per node: a selector, an affinity and a set of tolerations take a few
bitwise operations on integers, so ten thousand different filters cost no more each than ten do.

Quota (check 9): a claim is charged its peak usage of each device, as in the ledger
(`vgpu_api.effective`). The number of its devices is counted for the claim as a whole, as Kubernetes
counts it for a pod. Requests are in the order in which the pod starts its containers.

Reservations of unbound pods and earmarks are not allocations, so they appear in no column, status
or quota. They apply only to the claims from which they keep capacity; for these, their shares are
added to the columns of one node while it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import Phase
from vgpu_operator.demand import Demand, RequestDemand

ALL = -1
"""All bits are set: the rule excludes no node."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes that pass each rule, as bit masks indexed by node number.

    `room`, `peers`, `volumes` and `attachable` are set only where kube-scheduler does not check
    them afterwards, as in Gate mode.

    Attributes:
        ours: Nodes whose devices the operator allocates, and not kube-scheduler.
        selector: Nodes that match the pod's node selector and have no label that excludes the pod.
        affinity: Nodes that match its required node affinity.
        taints: Nodes without taints that it does not tolerate.
        room: Nodes with enough of all resources besides devices.
        peers: Nodes that satisfy pod affinity, anti-affinity and topology spread.
        volumes: Nodes that can use its volumes.
        attachable: Nodes that can attach its volumes without exceeding their limit.
        welcoming: Nodes that have not rejected a pod of its controller lately.
        tolerated: Nodes that are cordoned or not ready, which the pod tolerates.
        allowed: Nodes that pass all rules.
    """

    ours: int = ALL
    selector: int = ALL
    affinity: int = ALL
    taints: int = ALL
    room: int = ALL
    peers: int = ALL
    volumes: int = ALL
    attachable: int = ALL
    welcoming: int = ALL
    tolerated: int = 0
    allowed: int = field(init=False)

    def __post_init__(self) -> None:
        passed = self.ours & self.selector & self.affinity & self.taints & self.room & self.peers
        passed &= self.volumes & self.attachable & self.welcoming
        object.__setattr__(self, "allowed", passed)

    def __contains__(self, node: int) -> bool:
        return bool(self.allowed >> node & 1)

    def refusal(self, node: int) -> Reason:
        """Return the reason of the first rule that excludes a node."""
        if not self.ours >> node & 1:
            return Reason.NODE_OF_SCHEDULER
        if not self.selector >> node & 1:
            return Reason.NODE_SELECTOR_MISMATCH
        if not self.affinity >> node & 1:
            return Reason.NODE_AFFINITY_MISMATCH
        if not self.taints >> node & 1:
            return Reason.NODE_TAINTED
        if not self.room >> node & 1:
            return Reason.NODE_INSUFFICIENT_RESOURCES
        if not self.peers >> node & 1:
            return Reason.NODE_POD_RULES_MISMATCH
        if not self.volumes >> node & 1:
            return Reason.NODE_VOLUME_MISMATCH
        if not self.attachable >> node & 1:
            return Reason.NODE_VOLUME_LIMIT
        return Reason.NODE_AVOIDED


EVERY_NODE = NodeFilter()


def only(node: int) -> int:
    """Return the mask with only this node."""
    return 1 << node


def any_of(sets: Iterable[int]) -> int:
    """Return the union of several masks."""
    nodes = 0
    for each in sets:
        nodes |= each
    return nodes


def numbers_of(nodes: int) -> Iterator[int]:
    """Yield the numbers of the nodes in a mask, in ascending order."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


@dataclass(frozen=True, slots=True)
class Budget:
    """The MiB, percent of compute and number of devices that a namespace may still take.

    None means no limit; `is_limited` is True if there is any limit.
    """

    memory_mib: int | None = None
    cores: int | None = None
    devices: int | None = None
    is_limited: bool = field(init=False)

    def __post_init__(self) -> None:
        limits = (self.memory_mib, self.cores, self.devices)
        object.__setattr__(self, "is_limited", limits != (None, None, None))

    def less(self, *, memory_mib: int, cores: int, devices: int) -> Budget:
        """Return the remaining amounts after subtracting these; they may be negative."""
        return Budget(
            None if self.memory_mib is None else self.memory_mib - memory_mib,
            None if self.cores is None else self.cores - cores,
            None if self.devices is None else self.devices - devices,
        )


UNLIMITED = Budget()


def together(demand: Demand, each: Callable[[RequestDemand], int]) -> int:
    """Return the amount to charge a claim for a request, given that for one of its devices."""
    return most_at_once((r.phase, r.count * each(r)) for r in demand.requests)


def most_at_once(amounts: Iterable[tuple[Phase, int]]) -> int:
    """Return the most that requests hold at a time, given the phase and amount of each.

    An ordinary init container runs beside the App requests before it, which belong to sidecars.
    """
    running = most = 0
    for phase, amount in amounts:
        most = max(most, running + amount)
        if phase == "App":
            running += amount
    return most


class DeviceCount:
    """Counts the devices that a claim is charged for, as its requests are planned one by one.

    A device counts once for each container that uses it.
    """

    def __init__(self) -> None:
        self._app = 0
        # Devices counted at each init request, including those of sidecars that started before it.
        self._init: dict[str, int] = {}

    def copy(self) -> DeviceCount:
        """Return an independent copy."""
        copy = DeviceCount()
        copy._app, copy._init = self._app, dict(self._init)
        return copy

    @property
    def total(self) -> int:
        """Return the number of devices so far."""
        return max(self._app, *self._init.values(), 0)

    def rise(self, count: int) -> int:
        """Return how much the total would grow if a request got this many more devices."""
        return max(0, self._app + count - self.total)

    def add(self, request: str, phase: Phase) -> None:
        """Count one more device for a request."""
        if phase == "Init":
            self._init[request] = self._init.get(request, self._app) + 1
        else:
            self._app += 1


@dataclass(slots=True)
class ClaimUse:
    """A claim's (MiB, percent of compute) of one device, at its peak and afterwards."""

    peak: tuple[int, int] = (0, 0)
    running: tuple[int, int] = (0, 0)

    def plus(self, request: RequestDemand, memory_mib: int, cores: int | None = None) -> ClaimUse:
        """Return the usage with one more grant, for a container that starts after the others."""
        cores = request.cores if cores is None else cores
        started = self.running[0] + memory_mib, self.running[1] + cores
        peak = max(self.peak[0], started[0]), max(self.peak[1], started[1])
        return ClaimUse(peak, self.running if request.phase == "Init" else started)


class Charge:
    """The amounts that a claim is charged so far, with its namespace's budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: dict[int, ClaimUse] = {}
        self._memory_mib = 0
        self._cores = 0
        self._devices = DeviceCount()

    def copy(self) -> Charge:
        """Return an independent copy."""
        copy = Charge(self._budget)
        copy._held = dict(self._held)
        copy._memory_mib, copy._cores = self._memory_mib, self._cores
        copy._devices = self._devices.copy()
        return copy

    @property
    def is_over(self) -> bool:
        """True if the charge exceeds the budget."""
        budget = self._budget
        limits = (budget.memory_mib, budget.cores, budget.devices)
        charged = (self._memory_mib, self._cores, self._devices.total)
        # A claim that takes nothing exceeds nothing, even if the quota is already overdrawn.
        return any(
            limit is not None and amount > max(limit, 0)
            for limit, amount in zip(limits, charged, strict=True)
        )

    def holds(self, device: int) -> bool:
        """Return True if the device has been granted to the claim."""
        return device in self._held

    def exceeds(
        self, device: int, request: RequestDemand, memory_mib: int, cores: int | None = None
    ) -> bool:
        """Return True if `request.count` devices like this one would exceed the budget.

        Args:
            device: The device's number.
            request: The request.
            memory_mib: The MiB to charge for the device.
            cores: The percent of compute to charge; None for the requested amount.
        """
        memory, share = self._rise(device, request, memory_mib, cores)
        budget, devices = self._budget, self._devices
        return (
            _is_over(budget.memory_mib, self._memory_mib, memory * request.count)
            or _is_over(budget.cores, self._cores, share * request.count)
            or _is_over(budget.devices, devices.total, devices.rise(request.count))
        )

    def add(
        self, device: int, request: RequestDemand, memory_mib: int, cores: int | None = None
    ) -> None:
        """Charge the claim for a device that is granted to the request."""
        memory, share = self._rise(device, request, memory_mib, cores)
        self._memory_mib += memory
        self._cores += share
        self._held[device] = self._held.get(device, ClaimUse()).plus(request, memory_mib, cores)
        self._devices.add(request.name, request.phase)

    def _rise(
        self, device: int, request: RequestDemand, memory_mib: int, cores: int | None
    ) -> tuple[int, int]:
        held = self._held.get(device, ClaimUse())
        before, after = held.peak, held.plus(request, memory_mib, cores).peak
        return after[0] - before[0], after[1] - before[1]


def _is_over(limit: int | None, charged: int, rise: int) -> bool:
    return limit is not None and rise > 0 and charged + rise > limit


class Share(NamedTuple):
    """A share of a device: requests, percent of compute, MiB, and MIG slices or numbered cores."""

    device: int
    slots: int
    cores: int
    memory_mib: int
    slices: int = 0


class Kept(Protocol):
    """The capacity that is kept from the claim being planned, for other claims."""

    @property
    def nodes(self) -> Collection[int]:
        """Return nodes with kept capacity; for this claim, `on` may be empty."""

    def on(self, node: int) -> Sequence[Share]:
        """Return the shares on a node that are kept from this claim."""


class _Nothing:
    nodes: frozenset[int] = frozenset()

    def on(self, node: int) -> Sequence[Share]:
        return ()


NOTHING_KEPT: Kept = _Nothing()
