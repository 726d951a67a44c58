"""Who waits for devices: pods that a Filter refused, Immediate claims, and bound pods without any.

Those that are alike wait as one class. For a class it is known up to which release of devices no
node serves it; after that only the nodes where something became free are checked, once for each
class. So ten thousand waiting pods of a hundred kinds cost what a hundred cost, and nothing while
nothing becomes free.

kube-scheduler owns the order of pods; this is about who is worth a requeue when there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vgpu_api.core import PodScopes
from vgpu_operator.demand import Demand
from vgpu_operator.engine.gpu_pod import Rank
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import HostDemand, NodeRules

UNKNOWN = -1
"""The cursor of a class of which no node has been looked at."""
_MOST_AT_ONCE = 64
_STALE = 64
"""Entries of a heap that may be out of date, beside as many as wait."""


class EquivalenceClass(NamedTuple):
    """What makes two that wait alike: the same nodes and devices serve both.

    Attributes:
        request: What is asked for.
        rules: The pod's rules about nodes.
        namespace: Whose quota it counts against.
        node: The node that a bound pod has; empty: any.
        ruled_out: Bits of nodes that kube-scheduler did not offer: what makes it offer them wakes
            the pod.
        avoided: Bits of nodes that its controller's pods avoid for now.
        host_demand: What else it asks of a node; None where kube-scheduler checks that.
        scopes: Which of the namespace's quotas count it; None: it is for no pod.
    """

    request: Demand
    rules: NodeRules
    namespace: str
    node: str = ""
    ruled_out: int = 0
    avoided: int = 0
    host_demand: HostDemand | None = None
    scopes: PodScopes | None = None


@dataclass(slots=True)
class Waiter:
    """A claim that waits.

    Attributes:
        key: The claim, which need not exist yet.
        pod_uid: The pod that it is for; empty for an Immediate claim.
        kind: What it waits for.
        rank: Its turn.
        since: When it was refused first, monotonic seconds; a failed try does not reset it.
    """

    key: ClaimKey
    pod_uid: str
    kind: EquivalenceClass
    rank: Rank
    since: float


@dataclass(slots=True)
class WaitClass:
    """All waiters of one kind.

    Attributes:
        cursor: Up to which release of devices no node serves it.
        budget: The version of the namespace's quotas that it was checked with.
        misses: By node number: how many in a row were requeued for room there and not offered the
            node. Pods of one kind differ in what only kube-scheduler knows, so after each miss
            twice as many are requeued at once: those that cannot go there do not keep others
            waiting.
        explained: Why it was refused, when that was found out, and as of which changes.
        waiters: By claim.
        heap: In turn; some of those in it wait no more.
    """

    kind: EquivalenceClass
    cursor: int = UNKNOWN
    budget: int = 0
    misses: dict[int, int] = field(default_factory=dict)
    explained: tuple[float, tuple[int, int], Refusal] | None = None
    waiters: dict[ClaimKey, Waiter] = field(default_factory=dict)
    heap: list[tuple[Rank, int, Waiter]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self.waiters.values()))

    def head(self) -> Waiter | None:
        """The first in turn."""
        while self.heap:
            waiter = self.heap[0][2]
            if self.waiters.get(waiter.key) is waiter:
                return waiter
            heappop(self.heap)
        return None

    def pop(self) -> Waiter:
        """Take the head out of its turn, for the length of a pass; `push` puts it back."""
        waiter = self.head()
        assert waiter is not None
        heappop(self.heap)
        return waiter

    def leave(self, key: ClaimKey) -> None:
        """A claim waits no more."""
        del self.waiters[key]
        # Behind a head that stays for days others come and go: the heap may not grow with them.
        if len(self.heap) > 2 * len(self.waiters) + _STALE:
            waiting = self.waiters
            self.heap = [each for each in self.heap if waiting.get(each[2].key) is each[2]]
            heapify(self.heap)

    def push(self, waiter: Waiter) -> None:
        """Give a waiter its turn."""
        if self.waiters.get(waiter.key) is waiter:
            heappush(self.heap, (waiter.rank, id(waiter), waiter))

    def at_once(self, node: int) -> int:
        """How many are requeued together for room on a node."""
        return int(min(2 ** self.misses.get(node, 0), _MOST_AT_ONCE))

    def missed(self, node: int) -> None:
        """One that was requeued for a node was not offered it."""
        self.misses[node] = self.misses.get(node, 0) + 1

    def hit(self, node: int) -> None:
        """One got its place there."""
        self.misses.pop(node, None)


class WaitQueue:
    """All that wait, by claim and by class."""

    def __init__(self) -> None:
        self._classes: dict[EquivalenceClass, WaitClass] = {}
        self._waiters: dict[ClaimKey, Waiter] = {}
        self._since: dict[ClaimKey, float] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._waiters.values()))

    def get(self, key: ClaimKey) -> Waiter | None:
        """The waiter of a claim."""
        return self._waiters.get(key)

    def class_of(self, kind: EquivalenceClass) -> WaitClass | None:
        """The class of a kind, while anybody waits in it."""
        return self._classes.get(kind)

    def put(self, waiter: Waiter) -> Waiter:
        """Let a claim wait; one that waits already keeps its time."""
        waiter.since = self._since.setdefault(waiter.key, waiter.since)
        known = self._waiters.get(waiter.key)
        if known is not None:
            same = known.pod_uid == waiter.pod_uid and known.kind == waiter.kind
            if same and known.rank == waiter.rank:
                return known
            self.take(waiter.key)
        self._waiters[waiter.key] = waiter
        of_kind = self._classes.get(waiter.kind)
        if of_kind is None:
            of_kind = self._classes[waiter.kind] = WaitClass(waiter.kind)
        of_kind.waiters[waiter.key] = waiter
        of_kind.push(waiter)
        return waiter

    def remove(self, key: ClaimKey) -> Waiter | None:
        """It waits no more: it was served, or is gone; returns it."""
        self._since.pop(key, None)
        return self.take(key)

    def take(self, key: ClaimKey) -> Waiter | None:
        """It is being tried; returns it. If it is refused it comes back and keeps its time."""
        waiter = self._waiters.pop(key, None)
        if waiter is None:
            return None
        of_kind = self._classes[waiter.kind]
        of_kind.leave(key)
        if not of_kind.waiters:
            del self._classes[waiter.kind]
        return waiter

    def by_rank(self) -> list[tuple[Rank, WaitClass]]:
        """The classes with the ranks of their heads, those with the most important first."""
        ranked = [(head.rank, of_kind) for of_kind in self._classes.values()
                  if (head := of_kind.head()) is not None]  # fmt: skip
        return sorted(ranked, key=lambda pair: pair[0])
