"""Preemptions in progress, and the records of former ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from vgpu_client.backoff import Backoff
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.preemption.budgets import Budgets
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Share

MINUTE_S = 60.0
PROTECTED_S = 60.0
"""Seconds for which a pod counts as protected after the API server has refused to evict it. Our
copy of its budget may be late, or the API server may know of a rule that we do not."""
_MOST_FRUITLESS = 1000

Result: TypeAlias = Literal[
    "served", "withdrawn", "protected", "overtaken", "node_lost", "overdue", "in_vain"
]
"""The end of a preemption: the pod got its devices; it is gone or was placed otherwise; a budget
forbade it; a more important pod got the devices; its node or devices were lost; the victims did not
end in time; they ended, and the pod got nothing all the same."""
Kind: TypeAlias = EquivalenceClass | GroupKey
"""The waiters for which one search for victims is enough."""


def new_backoff() -> Backoff:
    """Return the back-off of an eviction that could not be carried out."""
    return Backoff(0.5, 30.0)


@dataclass(frozen=True)
class Victim:
    """Pods that end together, and the claims whose devices become free when they do.

    Attributes:
        keys: The claims.
        pods: The pods to evict; empty for an Immediate claim without a pod, which is taken back.
        priority: The highest priority among them.
        is_protected: True if a disruption budget forbids to evict one of the pods now.
        shares: The capacity that the claims hold on the node that is looked at.
    """

    keys: tuple[ClaimKey, ...]
    pods: tuple[GPUPod, ...]
    priority: int
    is_protected: bool = False
    shares: tuple[Share, ...] = ()

    @cached_property
    def since(self) -> str:
        """Return the start of the oldest pod; of two victims the younger one is evicted."""
        return min((each.pod.status.start_time for each in self.pods), default="")


@dataclass(frozen=True, slots=True)
class Vacancy:
    """The devices that are made free for one claim.

    Attributes:
        key: The claim.
        pod_uid: The pod that waits for it.
        node: The node on which victims make room.
    """

    key: ClaimKey
    pod_uid: str
    node: str


@dataclass(slots=True)
class OpenPreemption:
    """A preemption whose preemptor has no devices yet.

    Attributes:
        name: The preemptor in texts: a pod, or a group of pods.
        priority: Its priority.
        rooms: What is made free: one room for a pod alone, several for a group.
        group: The group that preempts; None for a pod alone.
        pods: The pods that have to end, by UID, in the order in which they are evicted.
        protected: Those that a budget protects, and that are deleted instead of evicted.
        claims: Immediate claims to take back, once they have no pod.
        evicting: The pod whose eviction has no outcome yet; empty if there is none.
        evicted: Pods whose eviction the API server has accepted.
        until: The time at which the victims should have ended, in monotonic seconds.
        not_before: The time before which a failed eviction is not tried again.
        backoff: The time between two tries.
        is_contested: A more important claim got some of the devices, or makes others go for them.
    """

    name: str
    priority: int
    rooms: tuple[Vacancy, ...]
    group: GroupKey | None
    pods: Mapping[str, GPUPod]
    protected: frozenset[str]
    claims: tuple[ClaimKey, ...]
    until: float
    evicting: str = ""
    evicted: set[str] = field(default_factory=set)
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=new_backoff)
    is_contested: bool = False

    @property
    def key(self) -> ClaimKey:
        """The claim by which the preemption is known; a group has several."""
        return self.rooms[0].key

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes on which room is made, sorted."""
        return sorted({room.node for room in self.rooms})

    @property
    def next(self) -> GPUPod | None:
        """Return the pod to evict next, or None if all have been evicted."""
        return next((pod for uid, pod in self.pods.items() if uid not in self.evicted), None)


@dataclass(slots=True)
class Handed:
    """The victims that were added to those of kube-scheduler for one pod.

    kube-scheduler is given several nodes and ends the victims of one, so no more go than those of
    the node with the most.

    Attributes:
        until: The time by which kube-scheduler has ended its victims, in monotonic seconds.
        most: The number of added victims that may still end.
        pods: The UIDs of those of all nodes.
    """

    until: float
    most: int = 0
    pods: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Preemptions:
    """The work of preemption. Times are monotonic seconds.

    Attributes:
        open: The preemptions under way, by the claim that they are known by.
        search: The search for victims that is under way; rounds carry it on.
        budgets: The disruption budgets.
        protected: Pods that the API server refused to evict, and until when this is believed.
        taken_back: Immediate claims to be taken back, with the reason.
        fruitless: Classes of waiters, and groups, for which nobody was found: when to look again.
        handed: Claims whose preemption kube-scheduler is about to carry out.
        in_vain: Pods that got no devices although their victims have ended; they preempt no more.
        times: The times of the evictions of the last minute, and of those that kube-scheduler has
            carried out for us.
        results: How the preemptions of this process have ended.
    """

    open: dict[ClaimKey, OpenPreemption] = field(default_factory=dict)
    search: Iterator[list[Effect]] | None = None
    budgets: Budgets = field(default_factory=Budgets)
    protected: dict[str, float] = field(default_factory=dict)
    taken_back: dict[ClaimKey, str] = field(default_factory=dict)
    fruitless: dict[Kind, tuple[float, Backoff]] = field(default_factory=dict)
    handed: dict[ClaimKey, Handed] = field(default_factory=dict)
    in_vain: set[str] = field(default_factory=set)
    times: deque[float] = field(default_factory=deque)
    results: Counter[Result] = field(default_factory=Counter)

    def of(self, key: ClaimKey, group: GroupKey | None) -> OpenPreemption | None:
        """Return the preemption in progress for a claim or its group, or None."""
        found = self.open.get(key)
        if found is not None or group is None:
            return found
        return next((each for each in self.open.values() if each.group == group), None)

    def is_victim(self, uid: str) -> bool:
        """Return True if the pod is a victim of a preemption in progress."""
        return any(uid in each.pods for each in self.open.values())

    def may_evict(self, now: float, per_minute: int) -> bool:
        """Return True if the cluster's limit allows one more eviction now."""
        return self.left(now, per_minute) > 0

    def left(self, now: float, per_minute: int, key: ClaimKey | None = None) -> int:
        """Return how many evictions the cluster's limit allows now.

        Args:
            now: The time.
            per_minute: The limit.
            key: The claim whose preemption is being handed to kube-scheduler, if it is about that.
        """
        while self.times and self.times[0] <= now - MINUTE_S:
            self.times.popleft()
        self.handed = {each: handed for each, handed in self.handed.items() if handed.until > now}
        expected = sum(handed.most for each, handed in self.handed.items() if each != key)
        return per_minute - len(self.times) - expected

    def hand_over(self, key: ClaimKey, added: Sequence[Collection[str]], until: float) -> None:
        """Record the victims, by node, that were added to kube-scheduler's own for a claim."""
        handed = self.handed.setdefault(key, Handed(until))
        handed.until = until
        handed.most = max((handed.most, *map(len, added)))
        handed.pods.update(*added)

    def note_end(self, uid: str, now: float) -> None:
        """Count a pod that ends, if it was added to the victims of kube-scheduler."""
        for handed in self.handed.values():
            if uid in handed.pods and handed.until > now:
                handed.pods.discard(uid)
                handed.most = max(handed.most - 1, 0)
                self.times.append(now)
                return

    def protect(self, uid: str, now: float) -> None:
        """Note that the API server refused to evict a pod."""
        self.protected = {each: until for each, until in self.protected.items() if until > now}
        self.protected[uid] = now + PROTECTED_S

    def is_protected(self, uid: str, now: float) -> bool:
        """Return True if the API server refused to evict the pod a short time ago."""
        return self.protected.get(uid, 0.0) > now

    def fruitless_until(self, kind: Kind) -> float:
        """Return the time before which a class or group need not be searched for again."""
        return self.fruitless.get(kind, (0.0, None))[0]

    def found_nobody(self, kind: Kind, now: float, first: Backoff) -> None:
        """Note that no node has victims for a class or group; look again ever less often."""
        if len(self.fruitless) >= _MOST_FRUITLESS:
            self.fruitless = {k: found for k, found in self.fruitless.items() if found[0] > now}
        _, backoff = self.fruitless.get(kind, (0.0, first))
        self.fruitless[kind] = now + backoff.failed(), backoff

    def forget(self, uid: str, key: ClaimKey) -> None:
        """Forget a pod that is gone."""
        self.in_vain.discard(uid)
        self.handed.pop(key, None)
