"""The constraints of a decision: the pod's nodes, its quota, and capacity kept for others.

A node filter has one bit per node number: a selector, an affinity and a set of tolerations are a
few bitwise operations on integers, so ten thousand different filters cost no more each than ten.

Quota (check 9): a claim is charged what it holds of each device at its worst moment, as the ledger
counts it (`vgpu_api.effective`). The number of its devices is counted for the claim as a whole, as
Kubernetes counts it for a pod. Requests come in the order in which the pod starts its containers.

Reservations for pods that are not bound yet and earmarks are no allocations: they are in no column,
status or quota. They count only against the claims that they are kept from, so their shares are
added to the columns of one node for the duration of its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import Phase
from vgpu_operator.demand import Demand, RequestDemand

ALL = -1
"""Every bit is set: the rule excludes no node."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes that pass each rule, as bit masks indexed by the numbers of `Columns`.

    `room`, `peers`, `volumes` and `attachable` are set only where kube-scheduler does not check
    them afterwards, as in mode Gate.

    Attributes:
        selector: Match the pod's node selector, and have no label that excludes the pod.
        affinity: Match its required node affinity.
        taints: Have no taint that it does not tolerate.
        room: Have enough of all resources besides devices.
        peers: Satisfy pod affinity, anti-affinity and topology spread.
        volumes: Can reach its volumes.
        attachable: Can attach its volumes without exceeding their limit.
        welcoming: Have not rejected a pod of its controller lately.
        tolerated: Are cordoned or not ready, but the pod tolerates that.
        allowed: Pass all rules.
    """

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
        passed = self.selector & self.affinity & self.taints & self.room & self.peers
        passed &= self.volumes & self.attachable & self.welcoming
        object.__setattr__(self, "allowed", passed)

    def __contains__(self, node: int) -> bool:
        return bool(self.allowed >> node & 1)

    def refusal(self, node: int) -> Reason:
        """Return the reason of the first rule that excludes a node."""
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
    """Return the mask of one node."""
    return 1 << node


def any_of(sets: Iterable[int]) -> int:
    """Return the union of several masks."""
    nodes = 0
    for each in sets:
        nodes |= each
    return nodes


def numbers_of(nodes: int) -> Iterator[int]:
    """Yield the numbers of the nodes in a mask, the lowest first."""
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


UNLIMITED = Budget()


def together(demand: Demand, each: Callable[[RequestDemand], int]) -> int:
    """Return the amount that a claim is charged, given the amount for one device of a request."""
    return most_at_once((r.phase, r.count * each(r)) for r in demand.requests)


def most_at_once(amounts: Iterable[tuple[Phase, int]]) -> int:
    """Return the most that requests hold at the same time, given the phase and amount of each.

    An ordinary init container runs beside the App requests before it, which are sidecars'.
    """
    running = most = 0
    for phase, amount in amounts:
        most = max(most, running + amount)
        if phase == "App":
            running += amount
    return most


class DeviceCount:
    """The number of devices that a claim is charged for, as its requests are planned one by one.

    A device counts once for each container that it serves.
    """

    def __init__(self) -> None:
        self._app = 0
        self._init: dict[str, int] = {}  # by request, with those of the sidecars before it

    def copy(self) -> DeviceCount:
        """Return an independent copy."""
        copy = DeviceCount()
        copy._app, copy._init = self._app, dict(self._init)
        return copy

    @property
    def total(self) -> int:
        """The number of devices so far."""
        return max(self._app, *self._init.values(), 0)

    def rise(self, count: int) -> int:
        """Return how much the total would grow with a further request for so many devices."""
        return max(0, self._app + count - self.total)

    def add(self, request: str, phase: Phase) -> None:
        """Count one more device for a request, given by its name."""
        if phase == "Init":
            self._init[request] = self._init.get(request, self._app) + 1
        else:
            self._app += 1


@dataclass(slots=True)
class ClaimUse:
    """The (MiB, percent of compute) that a claim holds of a device, at its peak and afterwards."""

    peak: tuple[int, int] = (0, 0)
    running: tuple[int, int] = (0, 0)

    def plus(self, request: RequestDemand, memory_mib: int, cores: int | None = None) -> ClaimUse:
        """Return the use with one more grant, for a container that starts after the others."""
        cores = request.cores if cores is None else cores
        started = self.running[0] + memory_mib, self.running[1] + cores
        peak = max(self.peak[0], started[0]), max(self.peak[1], started[1])
        return ClaimUse(peak, self.running if request.phase == "Init" else started)


class Charge:
    """The amounts that a claim is charged so far, compared with its namespace's budget."""

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
        # A claim that takes nothing exceeds nothing, even of a quota that is overdrawn.
        return any(
            limit is not None and amount > max(limit, 0)
            for limit, amount in zip(limits, charged, strict=True)
        )

    def holds(self, device: int) -> bool:
        """Return True if the claim has been given this device."""
        return device in self._held

    def exceeds(
        self, device: int, request: RequestDemand, memory_mib: int, cores: int | None = None
    ) -> bool:
        """Return True if `request.count` devices like this one would exceed the budget.

        Args:
            device: The device's number.
            request: The request it is for.
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
        """Charge the claim for a device that the request was given."""
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
    """An amount of one device: requests, percent of compute, MiB, and MIG slices or cores."""

    device: int
    slots: int
    cores: int
    memory_mib: int
    slices: int = 0


class Kept(Protocol):
    """The capacity that is kept from the claim being planned."""

    @property
    def nodes(self) -> Collection[int]:
        """The nodes with kept capacity; `on` may still be empty for this claim."""

    def on(self, node: int) -> Sequence[Share]:
        """Return the shares of a node that are kept from this claim."""


class _Nothing:
    nodes: frozenset[int] = frozenset()

    def on(self, node: int) -> Sequence[Share]:
        return ()


NOTHING_KEPT: Kept = _Nothing()
