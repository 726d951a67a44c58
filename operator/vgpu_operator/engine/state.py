"""The engine's state: everything that decisions rest on, and the only thing that changes.

`apply` takes observations into it and the decisions in `scheduling` and `claims` take into it what
they decide, so that the next decision sees it; no other module writes it. All of it can be rebuilt
from a list of the objects, but for what is tentative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.names import AGENT_GONE_S
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_client.backoff import Backoff
from vgpu_operator.engine.cache import Cache
from vgpu_operator.engine.claims.refusal_limiter import RefusalLimiter
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.scheduling.kept import Earmarks, KeptFrom, Yielding
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, WaitQueue
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservations
from vgpu_operator.ledger import Assumption, ClaimKey, Ledger
from vgpu_operator.placement import Plan


class Timers:
    """Claims that are to be looked at again at a time; the earliest time of a claim counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, ClaimKey]] = []
        self._at: dict[ClaimKey, float] = {}

    def set(self, key: ClaimKey, at: float) -> None:
        """Look at the claim at this time, in monotonic seconds, if not earlier."""
        if at < self._at.get(key, float("inf")):
            self._at[key] = at
            heappush(self._heap, (at, key))

    def pop(self, now: float, *, at_most: int = 1 << 30) -> list[ClaimKey]:
        """The claims whose time has come, the earliest first."""
        found: list[ClaimKey] = []
        while self._heap and self._heap[0][0] <= now and len(found) < at_most:
            at, key = heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                found.append(key)
        return found


@dataclass(slots=True)
class InFlight:
    """A write of a claim that has no outcome yet.

    Attributes:
        allocation: What it gives the claim, if it does.
        spec: Of the claim.
        assumption: What the ledger assumes because of it.
    """

    allocation: Allocation | None = None
    spec: VGPUClaimSpec | None = None
    assumption: Assumption | None = None


@dataclass(slots=True)
class Unsettled:
    """An assumption whose write may still land, for as long as the claim is at a version.

    A write tests the version that it was decided on, so once the claim has been observed at a later
    one it can land no more.
    """

    assumption: Assumption
    version: int


@dataclass(slots=True)
class ReportedRefusal:
    """What was reported of a refusal.

    Attributes:
        since: When the claim was refused first.
        reason: The reason reported last; empty: none yet.
        next: When it may be reported again.
        interval_s: How long after the last time.
    """

    since: float
    reason: str = ""
    next: float = 0.0
    interval_s: float = 0.0


@dataclass(slots=True)
class Evicted:
    """What was done about a claim that violates limits.

    Attributes:
        backoff: How long after the last eviction of its pod the next one is.
        again: When its pod may be evicted again, if it is still there.
    """

    backoff: Backoff
    again: float = 0.0


@dataclass(slots=True)
class Evictions:
    """When pods of violators may be evicted, in monotonic seconds.

    Attributes:
        cluster_from: When the next one may be.
        nodes_from: When the next one of a node may be; nodes without an entry need not wait.
    """

    cluster_from: float = 0.0
    nodes_from: dict[str, float] = field(default_factory=dict)

    def note(self, node: str, now: float, *, cluster_s: float, node_s: float) -> None:
        """A pod of the node is evicted: the next one waits for so long."""
        self.cluster_from = now + cluster_s
        waiting = {name: until for name, until in self.nodes_from.items() if until > now}
        self.nodes_from = {**waiting, node: now + node_s}


@dataclass(slots=True)
class ClaimWork:
    """What is to be done about claims.

    Attributes:
        due: Claims to be reconciled.
        writing: Claims that are being written.
        unsettled: Assumptions of writes without an answer.
        backoffs: Of claims whose last write failed.
        not_before: When such a claim may be written again.
        expired: Allocations, by id, whose pods were not bound in time.
        unusable: Idle Immediate claims whose devices serve no pod: which allocation, since when.
        without_devices: Claims of live pods whose node was registered anew and has not published
            their devices: since when.
        orphaned: Claims whose pods have ended and whose agents are silent: which allocation, since
            when.
        going: Claims that are being deleted and that no running pod keeps: since when.
        evicted: Claims that violate limits and whose pods were evicted.
        init_refused: Why there is no room for init containers that must run again.
        reported: Refusals that are, or will be, reported.
        violated: Violations that were announced last, by the time since when they hold.
        turns: Whose turn it is to have one of them written.
        timers: Claims to be looked at later.
    """

    due: dict[ClaimKey, None] = field(default_factory=dict)
    writing: dict[ClaimKey, InFlight] = field(default_factory=dict)
    unsettled: dict[ClaimKey, list[Unsettled]] = field(default_factory=dict)
    backoffs: dict[ClaimKey, Backoff] = field(default_factory=dict)
    not_before: dict[ClaimKey, float] = field(default_factory=dict)
    expired: dict[ClaimKey, str] = field(default_factory=dict)
    unusable: dict[ClaimKey, tuple[str, float]] = field(default_factory=dict)
    without_devices: dict[ClaimKey, float] = field(default_factory=dict)
    orphaned: dict[ClaimKey, tuple[str, float]] = field(default_factory=dict)
    going: dict[ClaimKey, float] = field(default_factory=dict)
    evicted: dict[ClaimKey, Evicted] = field(default_factory=dict)
    init_refused: dict[ClaimKey, Plan] = field(default_factory=dict)
    reported: dict[ClaimKey, ReportedRefusal] = field(default_factory=dict)
    violated: dict[ClaimKey, str] = field(default_factory=dict)
    turns: RefusalLimiter = field(default_factory=RefusalLimiter)
    timers: Timers = field(default_factory=Timers)

    def look_at(self, key: ClaimKey) -> None:
        """Reconcile the claim in the next round."""
        self.due[key] = None


@dataclass(slots=True)
class AgentSeen:
    """An agent's signs of life.

    Attributes:
        renewed: What it wrote last; a change is a sign of life.
        at: When that was observed, in monotonic seconds.
        reported: Its silence was reported to pods that wait for it.
    """

    renewed: str
    at: float
    reported: bool = False


@dataclass(slots=True)
class PodWork:
    """What is to be done about pods.

    Attributes:
        due: Pods, by UID, whose situation is to be judged: bound ones without an allocation, and
            waiting ones whose claim changed.
        blocked: Pods that a Filter refused for what no device can cure: a claim that is missing,
            or serves another. They are judged again when the claim changes.
        requeued: When each pod was made to be tried again last.
        nominated: Pods that carry a nomination of ours.
        slow: Pods that were offered a node and were not bound in time.
        owed: Bound pods that had devices on their node from us, or were offered them there in a
            Filter, and have none: they go first.
        ended: Pods that the agent reported to use nothing any more, though they are still there.
        listed: The version up to which every pod was listed.
    """

    due: dict[str, None] = field(default_factory=dict)
    blocked: dict[str, Refusal] = field(default_factory=dict)
    requeued: dict[str, float] = field(default_factory=dict)
    nominated: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    owed: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    listed: int = -1


@dataclass(slots=True)
class Avoided:
    """A node that turned away a controller's pod.

    Attributes:
        until: When the controller's pods may go there again, monotonic seconds.
        times: How often in a row it did that, once for each time that they were let go there.
        rejection: What its kubelet said; empty: kube-scheduler found no room there.
        is_told: An event has told of it.
    """

    until: float
    times: int
    rejection: str
    is_told: bool = False


@dataclass(slots=True)
class Avoidance:
    """Nodes that the pods of a controller avoid for a time.

    Attributes:
        of: By controller and node. A pod without a controller stands for itself.
        waiting: Pods that wait for the end of such a time: when it is.
        review_at: When that is looked at.
    """

    of: dict[str, dict[str, Avoided]] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    review_at: float = 0.0


@dataclass(slots=True)
class GateWork:
    """Work on pods behind our scheduling gate, in mode Gate.

    Attributes:
        lifting: Pods, by UID, whose gate is being lifted.
        backoffs: Of pods whose gate could not be lifted.
        not_before: When that may be tried again.
        stuck: Pods whose gate was lifted and that kube-scheduler finds no room for: since when.
        reported: When pods without a controller may be reported again.
        waiting: Pods that are judged again every second: they wait for a node, or for a time.
        with_volumes: Pods behind the gate that bring volumes: judged again when any change.
        volumes_version: Of the volumes that they were judged by last.
        review_at: When that is due.
    """

    lifting: set[str] = field(default_factory=set)
    backoffs: dict[str, Backoff] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    stuck: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)
    with_volumes: dict[str, None] = field(default_factory=dict)
    volumes_version: int = 0
    review_at: float = 0.0

    def forget(self, uid: str) -> None:
        """A pod is gone, or bound."""
        self.lifting.discard(uid)
        self.backoffs.pop(uid, None)
        self.waiting.pop(uid, None)
        self.with_volumes.pop(uid, None)
        for times in (self.not_before, self.stuck, self.reported):
            times.pop(uid, None)


@dataclass(slots=True)
class DeviceView:
    """What a device's status is to show, while that still changes.

    Attributes:
        status: As it was at the last look.
        since: When it did not yet differ from what is shown.
    """

    status: dict[str, Any]
    since: float


@dataclass(slots=True)
class DeviceLooks:
    """When devices are compared with their statuses.

    Attributes:
        last: The look under way, or the last one; None before the first.
        before: The one before it.
        zeros: Devices whose first write, of zeros, is under way.
        unwritten: Nodes whose devices wait for that.
    """

    last: float | None = None
    before: float = 0.0
    zeros: set[str] = field(default_factory=set)
    unwritten: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceWrite:
    """What the operator wrote of a device last.

    Attributes:
        status: All fields of our field manager.
        at: When that was decided.
        version: The device's resourceVersion since; None while the write is under way.
    """

    status: dict[str, Any]
    at: float
    version: int | None = None


@dataclass(slots=True)
class State:
    """All of it.

    Attributes:
        config: Defaults and policies.
        ledger: Who holds what.
        cache: What was observed.
        new_id: Makes a UUID that was never used before.
        now: Monotonic seconds, of the round at hand.
        unix: Unix seconds, of the round at hand.
        reservations: Decisions whose pods do not run yet.
        queue: Who waits.
        earmarks: What is kept for who starved.
        starving: When each waiter has waited for long enough to get an earmark.
        claims: What is to be done about claims.
        pods: What is to be done about pods.
        gates: Work on those behind our gate.
        avoidance: Which nodes the pods of a controller avoid.
        devices: Nodes whose devices' statuses are to be looked at.
        device_looks: When devices were compared with their statuses.
        device_views: By device: what is to be written once it has come to rest.
        device_writes: By device: what was written last.
        registers: Nodes whose registers of other vendors' devices are to be read.
        register_writes: By device: what was written last of what its node registers.
        registers_reported: By node and kind: what was reported last of a register that cannot be
            read; of no kind: of words of the node that mean nothing.
        links: Nodes whose devices' links are to be compared.
        links_reported: By node: the disagreements of links that were reported last.
        out_of_service: By device: why nothing is placed on it, as reported last; empty: it is
            in service.
        crowded: Nodes with more devices than are taken in, as reported.
        agents: Signs of life of the nodes' agents that have ever given one.
        evicts: Whether pods are evicted whose claims violate limits.
        evictions: When that may be.
        agent_gone_s: After so many seconds without an agent, claims of ended pods need none.
        outbox: Effects that taking an event in has had at once.
    """

    config: ClusterConfig
    ledger: Ledger
    new_id: Callable[[], str]
    cache: Cache = field(default_factory=Cache)
    now: float = 0.0
    unix: float = 0.0
    reservations: Reservations = field(default_factory=Reservations)
    queue: WaitQueue = field(default_factory=WaitQueue)
    earmarks: Earmarks = field(default_factory=Earmarks)
    starving: Timers = field(default_factory=Timers)
    claims: ClaimWork = field(default_factory=ClaimWork)
    pods: PodWork = field(default_factory=PodWork)
    gates: GateWork = field(default_factory=GateWork)
    avoidance: Avoidance = field(default_factory=Avoidance)
    devices: dict[str, None] = field(default_factory=dict)
    device_looks: DeviceLooks = field(default_factory=DeviceLooks)
    device_views: dict[str, DeviceView] = field(default_factory=dict)
    device_writes: dict[str, DeviceWrite] = field(default_factory=dict)
    registers: dict[str, None] = field(default_factory=dict)
    register_writes: dict[str, DeviceWrite] = field(default_factory=dict)
    registers_reported: dict[tuple[str, str], str] = field(default_factory=dict)
    links: dict[str, None] = field(default_factory=dict)
    links_reported: dict[str, list[str]] = field(default_factory=dict)
    out_of_service: dict[str, str] = field(default_factory=dict)
    crowded: set[str] = field(default_factory=set)
    agents: dict[str, AgentSeen] = field(default_factory=dict)
    evicts: bool = False
    evictions: Evictions = field(default_factory=Evictions)
    agent_gone_s: float = AGENT_GONE_S
    outbox: deque[Effect] = field(default_factory=deque)

    @contextmanager
    def deciding(
        self,
        key: ClaimKey,
        yielding: Yielding,
        *,
        priority: int = 0,
        kind: EquivalenceClass | None = None,
        ended: Collection[ClaimKey] = (),
    ) -> Iterator[KeptFrom]:
        """Free what a claim holds while it is decided, and return what is kept from it for others.

        Its own devices are not in a claim's way. A plan finds its reasons out when it is asked for
        them, so they must be read inside, too.

        Args:
            key: The claim, which need not exist yet.
            yielding: Which tentative places count.
            priority: Its pod's, or its own.
            kind: Its kind, if it waits.
            ended: Other claims that are to count as holding nothing.
        """
        with self.ledger.without(key, *ended):
            yield KeptFrom(
                key, kind, priority, yielding, self.ledger.columns, self.reservations, self.earmarks
            )
