"""What narrows a decision besides use: the pod's nodes, its quota, and what is kept for others.

A node filter has one bit per node number: a selector, an affinity and a set of tolerations are a
few bitwise operations on integers, so ten thousand different filters cost no more each than ten.

Quota (check 9): a claim is charged what it holds of each device at its worst moment, as the ledger
counts it (`vgpu_api.effective`). The number of its devices is counted for the claim as a whole, as
Kubernetes counts it for a pod. Requests come in the order in which the pod starts its containers.

Tentative places and earmarks are no allocations: they stand in no column, no status and no quota.
They count only against the claims that they are kept from, so they are laid over the columns of the
one node at hand for the length of its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import Phase
from vgpu_operator.demand import Demand, RequestDemand

ALL = -1
"""Every bit is set: the rule rules nothing out."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Bits of the nodes that pass each rule; a node has the number that `Columns` gave it.

    Attributes:
        selector: Pass the pod's node selector, and wear no label that rules the pod out.
        affinity: Pass its required node affinity.
        taints: Have no taint that it does not tolerate.
        room: Have room for what it asks besides devices, where that is checked here.
        peers: Are where its rules about other pods allow, and theirs about it; checked likewise.
        volumes: Are where its volumes are, or can be; checked likewise.
        attachable: May attach as many volumes as it brings; checked likewise.
        welcoming: Turned away no pod of its controller lately.
        tolerated: Take no other pods, being cordoned or not ready, and may take this one.
        allowed: Pass all of them.
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
        """The first rule that rules a node out."""
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
    """The bits of one node."""
    return 1 << node


def any_of(sets: Iterable[int]) -> int:
    """The bits of the nodes that are in one of several sets."""
    nodes = 0
    for each in sets:
        nodes |= each
    return nodes


def numbers_of(nodes: int) -> Iterator[int]:
    """The numbers of some nodes by their bits, the lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be taken: MiB and percent of compute over all devices, and how many devices.

    None is no limit; `is_limited` is True if there is any.
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
    """Return what a claim counts for, given what one device counts for."""
    return most_at_once((r.phase, r.count * each(r)) for r in demand.requests)


def most_at_once(amounts: Iterable[tuple[Phase, int]]) -> int:
    """Return the most that requests have at the same time, from each one's phase and amount.

    An ordinary init container runs beside the App requests before it, which are sidecars'.
    """
    running = most = 0
    for phase, amount in amounts:
        most = max(most, running + amount)
        if phase == "App":
            running += amount
    return most


class DeviceCount:
    """How many devices a claim counts for, while its requests are given theirs one by one.

    A device counts once for each container that it serves.
    """

    def __init__(self) -> None:
        self._app = 0
        self._init: dict[str, int] = {}  # by request, with those of the sidecars before it

    def copy(self) -> DeviceCount:
        """A count of its own that begins with the same devices."""
        copy = DeviceCount()
        copy._app, copy._init = self._app, dict(self._init)
        return copy

    @property
    def total(self) -> int:
        """So many, so far."""
        return max(self._app, *self._init.values(), 0)

    def rise(self, count: int) -> int:
        """By how much the total would grow with a further request."""
        return max(0, self._app + count - self.total)

    def add(self, request: str, phase: Phase) -> None:
        """One more device for a request, by its name."""
        if phase == "Init":
            self._init[request] = self._init.get(request, self._app) + 1
        else:
            self._app += 1


@dataclass(slots=True)
class ClaimUse:
    """(MiB, percent of compute) that a claim holds of one device: at most, and at the end."""

    peak: tuple[int, int] = (0, 0)
    running: tuple[int, int] = (0, 0)

    def plus(self, request: RequestDemand, memory_mib: int, cores: int | None = None) -> ClaimUse:
        """Return the use with one more grant, for a container that starts after the others."""
        cores = request.cores if cores is None else cores
        started = self.running[0] + memory_mib, self.running[1] + cores
        peak = max(self.peak[0], started[0]), max(self.peak[1], started[1])
        return ClaimUse(peak, self.running if request.phase == "Init" else started)


class Charge:
    """What a claim is charged so far, against its namespace's budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: dict[int, ClaimUse] = {}
        self._memory_mib = 0
        self._cores = 0
        self._devices = DeviceCount()

    def copy(self) -> Charge:
        """A charge of its own that begins with all that the claim is charged so far."""
        copy = Charge(self._budget)
        copy._held = dict(self._held)
        copy._memory_mib, copy._cores = self._memory_mib, self._cores
        copy._devices = self._devices.copy()
        return copy

    @property
    def is_over(self) -> bool:
        """Whether that is more than the namespace may take."""
        budget = self._budget
        limits = (budget.memory_mib, budget.cores, budget.devices)
        charged = (self._memory_mib, self._cores, self._devices.total)
        # What takes nothing exceeds nothing, also of a quota that is more than used up.
        return any(
            limit is not None and amount > max(limit, 0)
            for limit, amount in zip(limits, charged, strict=True)
        )

    def holds(self, device: int) -> bool:
        """Whether the claim was given this device."""
        return device in self._held

    def exceeds(
        self, device: int, request: RequestDemand, memory_mib: int, cores: int | None = None
    ) -> bool:
        """Whether `request.count` devices like this one are more than the namespace may take.

        Args:
            device: Which.
            request: For whom.
            memory_mib: MiB that the device would be charged.
            cores: Percent of compute that it would be charged, if not what is asked for.
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
        """The request was given this device."""
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
    """An amount of one device: requests, percent of compute, MiB, slices of MIG or cores."""

    device: int
    slots: int
    cores: int
    memory_mib: int
    slices: int = 0


class Kept(Protocol):
    """What is kept from the claim that is planned."""

    @property
    def nodes(self) -> Collection[int]:
        """Nodes with anything that is kept from anybody; `on` may still be empty for this claim."""

    def on(self, node: int) -> Sequence[Share]:
        """What is kept from this claim on a node."""


class _Nothing:
    nodes: frozenset[int] = frozenset()

    def on(self, node: int) -> Sequence[Share]:
        return ()


NOTHING_KEPT: Kept = _Nothing()
