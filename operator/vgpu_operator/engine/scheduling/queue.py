"""The queue for devices: pods that a Filter refused, Immediate claims, and bound pods without any.

Waiters that the same nodes and devices can serve form one class. Each class has a cursor: no node
serves the class as of that release of devices. After it, only the nodes where something became free
are checked, once for each class. So ten thousand waiting pods of a hundred kinds cost as much as a
hundred pods, and cost nothing while nothing becomes free.

kube-scheduler decides in which order pods are tried. The queue only decides which pods are worth a
requeue when there is capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vgpu_api.core import PodScopes
from vgpu_operator.demand import Demand
from vgpu_operator.engine.gpu_pod import GroupKey, Rank
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import HostDemand, NodeRules

UNKNOWN = -1
"""The cursor of a class for which all nodes have yet to be checked."""
_MOST_AT_ONCE = 64
_STALE = 64
"""Stale entries that a heap may hold beyond as many as there are waiters."""


class EquivalenceClass(NamedTuple):
    """The key of a class: waiters with the same values can be served by the same devices.

    Attributes:
        request: The devices that are requested.
        rules: The pod's node selector, affinity and tolerations.
        namespace: The namespace whose quotas apply.
        node: The node of a bound pod; empty for any node.
        ruled_out: Bits of nodes that kube-scheduler did not offer. No requeue is needed for them:
            a change that makes kube-scheduler offer such a node also wakes the pod.
        avoided: Bits of nodes that its controller's pods avoid for now.
        host_demand: The pod's other demands on a node; None if kube-scheduler checks them.
        scopes: The quota scopes that match the pod; None if it is for no pod.
        group: The group that the pod starts with; its pods are only served together.
        priority: Of the pod, or of an Immediate claim. Devices that are kept for less important
            requests may serve it.
    """

    request: Demand
    rules: NodeRules
    namespace: str
    node: str = ""
    ruled_out: int = 0
    avoided: int = 0
    host_demand: HostDemand | None = None
    scopes: PodScopes | None = None
    group: GroupKey | None = None
    priority: int = 0


@dataclass(slots=True)
class Waiter:
    """A claim in the queue.

    Attributes:
        key: The claim, which need not exist yet.
        pod_uid: The pod that it is for; empty for an Immediate claim.
        kind: The class it waits in.
        rank: Its position; a lower rank goes first.
        since: When it was first refused, in monotonic seconds; a failed try does not reset it.
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
        kind: The key of the class.
        cursor: The last release of devices that the class was tried with; no node served it then.
        budget: The version of the namespace's quotas that the class was last checked with.
        misses: By node number, how many pods in a row were requeued for the node and were not
            offered it. Pods of one kind can still differ in ways that only kube-scheduler
            knows. So each miss doubles the number of pods requeued at once, and pods that cannot
            use the node do not keep the others waiting.
        looks_everywhere: True if a group's pod found room and its group did not: the rest of the
            group may need other nodes than this class does.
        explained: When the class was last explained, as of which cursors, and the refusal.
        waiters: The waiters by claim.
        heap: The waiters by rank; may contain entries that no longer wait.
    """

    kind: EquivalenceClass
    cursor: int = UNKNOWN
    budget: int = 0
    misses: dict[int, int] = field(default_factory=dict)
    looks_everywhere: bool = False
    explained: tuple[float, tuple[int, int], Refusal] | None = None
    waiters: dict[ClaimKey, Waiter] = field(default_factory=dict)
    heap: list[tuple[Rank, int, Waiter]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self.waiters.values()))

    def head(self) -> Waiter | None:
        """Return the waiter with the lowest rank, or None if the queue is empty."""
        while self.heap:
            waiter = self.heap[0][2]
            if self.waiters.get(waiter.key) is waiter:
                return waiter
            heappop(self.heap)
        return None

    def pop(self) -> Waiter:
        """Take the head off the heap for the rest of a pass; `push` puts it back."""
        waiter = self.head()
        assert waiter is not None
        heappop(self.heap)
        return waiter

    def leave(self, key: ClaimKey) -> None:
        """Remove a claim that no longer waits."""
        del self.waiters[key]
        # Only the head is popped when it is stale. Rebuild the heap, because behind a head that
        # stays for days it would grow with every waiter that comes and goes.
        if len(self.heap) > 2 * len(self.waiters) + _STALE:
            waiting = self.waiters
            self.heap = [each for each in self.heap if waiting.get(each[2].key) is each[2]]
            heapify(self.heap)

    def push(self, waiter: Waiter) -> None:
        """Put a waiter on the heap, if it still waits."""
        if self.waiters.get(waiter.key) is waiter:
            heappush(self.heap, (waiter.rank, id(waiter), waiter))

    def at_once(self, node: int) -> int:
        """Return how many pods to requeue at once when a node has free capacity."""
        return int(min(2 ** self.misses.get(node, 0), _MOST_AT_ONCE))

    def missed(self, node: int) -> None:
        """Count a pod that was requeued for a node and was not offered it."""
        self.misses[node] = self.misses.get(node, 0) + 1

    def hit(self, node: int) -> None:
        """Reset the count of misses: a pod got its place on the node."""
        self.misses.pop(node, None)


class WaitQueue:
    """All waiters, by claim and by class."""

    def __init__(self) -> None:
        self._classes: dict[EquivalenceClass, WaitClass] = {}
        self._waiters: dict[ClaimKey, Waiter] = {}
        self._since: dict[ClaimKey, float] = {}
        self._of_group: Counter[GroupKey] = Counter()

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._waiters.values()))

    def get(self, key: ClaimKey) -> Waiter | None:
        """Return the waiter of a claim, or None."""
        return self._waiters.get(key)

    def groups(self) -> list[GroupKey]:
        """Return the groups of which a pod waits."""
        return list(self._of_group)

    def has_group(self, group: GroupKey) -> bool:
        """Return True if a pod of the group waits."""
        return group in self._of_group

    def class_of(self, kind: EquivalenceClass) -> WaitClass | None:
        """Return the class of a kind, or None if it has no waiter."""
        return self._classes.get(kind)

    def put(self, waiter: Waiter) -> Waiter:
        """Add a claim to the queue; a claim that waits already keeps its time."""
        waiter.since = self._since.setdefault(waiter.key, waiter.since)
        known = self._waiters.get(waiter.key)
        if known is not None:
            same = known.pod_uid == waiter.pod_uid and known.kind == waiter.kind
            if same and known.rank == waiter.rank:
                return known
            self.take(waiter.key)
        self._waiters[waiter.key] = waiter
        if waiter.kind.group is not None:
            self._of_group[waiter.kind.group] += 1
        of_kind = self._classes.get(waiter.kind)
        if of_kind is None:
            of_kind = self._classes[waiter.kind] = WaitClass(waiter.kind)
        of_kind.waiters[waiter.key] = waiter
        of_kind.push(waiter)
        return waiter

    def remove(self, key: ClaimKey) -> Waiter | None:
        """Remove and return the waiter of a claim that was served or is gone."""
        self._since.pop(key, None)
        return self.take(key)

    def take(self, key: ClaimKey) -> Waiter | None:
        """Remove and return a waiter to be tried; if it is requeued, it keeps its waiting time."""
        waiter = self._waiters.pop(key, None)
        if waiter is None:
            return None
        group = waiter.kind.group
        if group is not None:
            self._of_group[group] -= 1
            if not self._of_group[group]:
                del self._of_group[group]
        of_kind = self._classes[waiter.kind]
        of_kind.leave(key)
        if not of_kind.waiters:
            del self._classes[waiter.kind]
        return waiter

    def by_rank(self) -> list[tuple[Rank, WaitClass]]:
        """Return the classes and the ranks of their heads, ordered by rank."""
        ranked = [(head.rank, of_kind) for of_kind in self._classes.values()
                  if (head := of_kind.head()) is not None]  # fmt: skip
        return sorted(ranked, key=lambda pair: pair[0])
