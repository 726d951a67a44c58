"""What narrows a decision besides use: the pod's nodes, its quota, and what is kept for others.

A node filter has one bit per node number: a selector, an affinity and a set of tolerations are a
few bitwise operations on integers, so ten thousand different filters cost no more each than ten.

Quota (check 9): a claim is charged what it holds of each device at its worst moment, as the ledger
counts it: the greater of its init containers' peak and its app containers' sum.

Tentative places and earmarks are no allocations: they stand in no column, no status and no quota.
They count only against the claims that they are kept from, so they are laid over the columns of the
one node at hand for the length of its plan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from vgpu_api.reasons import Reason
from vgpu_operator.ask import RequestAsk

ALL = -1
"""Every bit is set: the rule rules nothing out."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Bits of the nodes that pass each rule; a node has the number that `Columns` gave it.

    Attributes:
        selector: Pass the pod's node selector, and wear no label that rules the pod out.
        affinity: Pass its required node affinity.
        taints: Have no taint that it does not tolerate.
        allowed: Pass all three.
    """

    selector: int = ALL
    affinity: int = ALL
    taints: int = ALL
    allowed: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", self.selector & self.affinity & self.taints)

    def __contains__(self, node: int) -> bool:
        return bool(self.allowed >> node & 1)

    def refusal(self, node: int) -> Reason:
        """The first rule that rules a node out."""
        if not self.selector >> node & 1:
            return Reason.NODE_SELECTOR_MISMATCH
        if not self.affinity >> node & 1:
            return Reason.NODE_AFFINITY_MISMATCH
        return Reason.NODE_TAINTED


EVERY_NODE = NodeFilter()


def only(node: int) -> int:
    """The bits of one node."""
    return 1 << node


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be taken: MiB and percent of compute over all devices; None is no limit.

    `is_limited` says whether there is any limit.
    """

    memory_mib: int | None = None
    cores: int | None = None
    is_limited: bool = field(init=False)

    def __post_init__(self) -> None:
        limits = self.memory_mib is not None or self.cores is not None
        object.__setattr__(self, "is_limited", limits)


UNLIMITED = Budget()


@dataclass(slots=True)
class _Held:
    """(MiB, percent of compute) that a claim holds of one card."""

    app: tuple[int, int] = (0, 0)
    init: tuple[int, int] = (0, 0)

    def peak(self) -> tuple[int, int]:
        return max(self.app[0], self.init[0]), max(self.app[1], self.init[1])

    def plus(self, request: RequestAsk, memory_mib: int, cores: int | None) -> _Held:
        """With one more grant; init containers run one after the other."""
        cores = request.cores if cores is None else cores
        if request.phase == "Init":
            return _Held(self.app, (max(self.init[0], memory_mib), max(self.init[1], cores)))
        return _Held((self.app[0] + memory_mib, self.app[1] + cores), self.init)


class Charge:
    """What a claim is charged so far, against its namespace's budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: dict[int, _Held] = {}
        self._memory_mib = 0
        self._cores = 0

    def exceeds(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None = None
    ) -> bool:
        """Whether `request.count` cards like this one are more than the namespace may take.

        Args:
            card: Which.
            request: For whom.
            memory_mib: MiB that the card would be charged.
            cores: Percent of compute that it would be charged, if not what is asked for.
        """
        memory, share = self._rise(card, request, memory_mib, cores)
        return _is_over(
            self._budget.memory_mib, self._memory_mib, memory * request.count
        ) or _is_over(self._budget.cores, self._cores, share * request.count)

    def add(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None = None
    ) -> None:
        """The request was given this card."""
        memory, share = self._rise(card, request, memory_mib, cores)
        self._memory_mib += memory
        self._cores += share
        self._held[card] = self._held.get(card, _Held()).plus(request, memory_mib, cores)

    def _rise(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None
    ) -> tuple[int, int]:
        held = self._held.get(card, _Held())
        before, after = held.peak(), held.plus(request, memory_mib, cores).peak()
        return after[0] - before[0], after[1] - before[1]


def _is_over(limit: int | None, charged: int, rise: int) -> bool:
    return limit is not None and rise > 0 and charged + rise > limit


class Share(NamedTuple):
    """An amount of one device: requests, percent of compute, MiB, slices of MIG."""

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
