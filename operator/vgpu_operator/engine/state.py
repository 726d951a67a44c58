"""The engine's state: everything that decisions are based on, and the only thing that changes.

`apply` records observations in it. The decisions in `scheduling` and `claims` record what they have
decided, so that the next decision takes it into account. No other module changes the state. Except
for tentative places, all of it can be rebuilt from a list of the objects.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from vgpu_api.config import ClusterConfig
from vgpu_api.names import AGENT_GONE_S
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_client.backoff import Backoff
from vgpu_operator.engine.cache import Cache
from vgpu_operator.engine.claims.refusal_limiter import RefusalLimiter
from vgpu_operator.engine.effects import Effect, WriteResourceClaim
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.preemption.open_preemptions import Preemptions
from vgpu_operator.engine.resource_claims.known import ResourceKey
from vgpu_operator.engine.scheduling.kept import Earmarks, KeptFrom, Yielding
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, WaitQueue
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation, Reservations
from vgpu_operator.ledger import Assumption, ClaimKey, Ledger
from vgpu_operator.placement import Plan

_K = TypeVar("_K", ClaimKey, str)


class Timers(Generic[_K]):
    """Times at which claims or nodes must be looked at again. Only the earliest of each counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, _K]] = []
        self._at: dict[_K, float] = {}

    def set(self, key: _K, at: float) -> None:
        """Set the time for looking at a key, in monotonic seconds, unless an earlier one is set."""
        if at < self._at.get(key, float("inf")):
            self._at[key] = at
            heappush(self._heap, (at, key))

    def pop(self, now: float, *, at_most: int = 1 << 30) -> list[_K]:
        """Remove and return the keys whose time has come, earliest first."""
        found: list[_K] = []
        while self._heap and self._heap[0][0] <= now and len(found) < at_most:
            at, key = heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                found.append(key)
        return found


@dataclass(slots=True)
class InFlight:
    """A claim's write whose outcome is not known yet.

    Attributes:
        allocation: The allocation in the written status, if any.
        spec: The claim's spec.
        assumption: The ledger's assumption for the write.
    """

    allocation: Allocation | None = None
    spec: VGPUClaimSpec | None = None
    assumption: Assumption | None = None


@dataclass(slots=True)
class Unsettled:
    """A write without a response, which may land only while the claim is at this version.

    A write tests the version on which it was decided, so it can no longer land once the claim has
    been observed at a later version.

    Attributes:
        assumption: The ledger's assumption for the write; None if it gives no devices.
        version: The version of the claim that the write tests.
    """

    assumption: Assumption | None
    version: int


@dataclass(slots=True)
class ReportedRefusal:
    """The last report of a claim's refusal. Times are monotonic seconds.

    Attributes:
        since: The time of the first refusal.
        reason: The reason in the last report; empty before the first.
        next: The time of the next report.
        interval_s: The time between the last report and the next.
    """

    since: float
    reason: str = ""
    next: float = 0.0
    interval_s: float = 0.0


@dataclass(slots=True)
class Evicted:
    """The evictions of a pod whose claim violates its limits.

    Attributes:
        backoff: The time between two tries.
        again: The time of the next try if the pod is still there, in monotonic seconds.
    """

    backoff: Backoff
    again: float = 0.0


@dataclass(slots=True)
class Evictions:
    """The next times at which pods of violating claims may be evicted, in monotonic seconds.

    Attributes:
        cluster_from: The time from which any pod may be evicted.
        nodes_from: The same by node; nodes without an entry need not wait.
    """

    cluster_from: float = 0.0
    nodes_from: dict[str, float] = field(default_factory=dict)

    def note(self, node: str, now: float, *, cluster_s: float, node_s: float) -> None:
        """Record an eviction on the node, and how long the next ones must wait."""
        self.cluster_from = now + cluster_s
        waiting = {name: until for name, until in self.nodes_from.items() if until > now}
        self.nodes_from = {**waiting, node: now + node_s}


@dataclass(slots=True)
class ClaimWork:
    """Pending work on claims. Times are monotonic seconds.

    Attributes:
        due: Claims to reconcile in the next round.
        writing: Writes in flight.
        unsettled: Writes without a response that may still land.
        backoffs: The back-off of claims whose last write failed.
        not_before: The times before which such claims are not written again.
        expired: Ids of allocations whose pods were not bound in time.
        unusable: Idle Immediate claims whose devices no pod could use: the id of the allocation,
            and since when.
        without_devices: Claims of live pods whose node was registered again but has not published
            their devices, and since when.
        orphaned: Claims whose pod has ended and whose agent is silent: the id of the allocation,
            and since when.
        marked: Resized claims whose pods do not show the mark yet: the mark, and when to write it
            again.
        going: Claims that are being deleted and have no running pod, and since when.
        evicted: Evictions of pods of violating claims.
        init_refused: Refused plans of init containers that must run again.
        reported: Refusals that have been or will be reported.
        violated: The transition time of the violation that was last announced.
        turns: The rate limiter for reports of refusals.
        timers: Claims to look at later.
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
    marked: dict[ClaimKey, tuple[str, float]] = field(default_factory=dict)
    going: dict[ClaimKey, float] = field(default_factory=dict)
    evicted: dict[ClaimKey, Evicted] = field(default_factory=dict)
    init_refused: dict[ClaimKey, Plan] = field(default_factory=dict)
    reported: dict[ClaimKey, ReportedRefusal] = field(default_factory=dict)
    violated: dict[ClaimKey, str] = field(default_factory=dict)
    turns: RefusalLimiter = field(default_factory=RefusalLimiter)
    timers: Timers[ClaimKey] = field(default_factory=Timers)

    def look_at(self, key: ClaimKey) -> None:
        """Reconcile the claim in the next round."""
        self.due[key] = None

    def is_settled(self, key: ClaimKey) -> bool:
        """Return True if none of our writes can still change the claim."""
        return key not in self.writing and key not in self.unsettled


@dataclass(frozen=True, slots=True)
class AgentPod:
    """A pod in which a node's agent runs; during an update a node has two.

    Attributes:
        name: The pod's name.
        is_ready: True if its kubelet finds it ready.
        mark: The mark of the node's devices that the pod shows.
    """

    name: str
    is_ready: bool
    mark: str


@dataclass(slots=True)
class NodeAgent:
    """The agent of a node, as far as its pods and its node show it.

    Attributes:
        pods: Its pods by UID.
        lost_at: The time at which none of them was found ready any more, in monotonic seconds; None
            while one is.
        reported: True if its silence has been reported on the pods that wait for it.
        marked_at: The time of the last mark on one of its pods.
    """

    pods: dict[str, AgentPod] = field(default_factory=dict)
    lost_at: float | None = None
    reported: bool = False
    marked_at: float = -math.inf


@dataclass(slots=True)
class PodWork:
    """Pending work on pods, by UID.

    Attributes:
        due: Pods to judge in the next round: bound pods without an allocation, and waiting pods
            whose claim has changed.
        blocked: Pods that were refused for a reason that no free device can cure, such as a claim
            that is missing or serves another pod. They are judged again when the claim changes.
        requeued: The time of each pod's last requeue, in monotonic seconds.
        nominated: Pods that have a nomination of ours.
        slow: Pods that were offered a node and were not bound in time.
        owed: Bound pods without devices that had devices on their node before, or were offered them
            there in a Filter. They are served first.
        ended: Pods that still exist, though the agent has reported that they use nothing any more.
        listed: The resourceVersion of the last list of pods.
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
    """A node that rejected a controller's pod.

    Attributes:
        until: The time from which the controller's pods may go there again, in monotonic seconds.
        times: How many times in a row the node rejected a pod after such a wait.
        rejection: The kubelet's message; empty if kube-scheduler found no room there.
        is_told: True if an event has been recorded about it.
    """

    until: float
    times: int
    rejection: str
    is_told: bool = False


@dataclass(slots=True)
class Avoidance:
    """Nodes that the pods of a controller avoid for some time. Times are monotonic seconds.

    Attributes:
        of: The avoided nodes by the controller's UID and the node's name. A pod without a
            controller has its own UID as the key.
        waiting: Pods that avoid a node, and the first time at which they may use one again.
        review_at: The time of the next review.
    """

    of: dict[str, dict[str, Avoided]] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    review_at: float = 0.0


@dataclass(slots=True)
class GateWork:
    """Pending work on pods, by UID, and on groups in Gate mode. Times are monotonic seconds.

    Attributes:
        lifting: Pods whose gate is being lifted.
        backoffs: The back-off of pods whose gate could not be lifted.
        not_before: The times before which lifting is not retried.
        stuck: Pods whose gate was lifted but for which kube-scheduler finds no room, and since
            when.
        reported: The times from which stuck pods without a controller may be reported again.
        waiting: Pods that are judged again every second, because their claim's devices are on a
            node that they cannot use yet.
        with_volumes: Gated pods with volumes, which are judged again when any volume changes.
        volumes_version: The version of the volumes that they were last judged with.
        review_at: The time of the next review.
        alone: Pods that need not wait for their group, or not any more.
        passed: Pods whose groups are ready, so that their gates are lifted whatever happens.
        starting: The groups with devices whose gates are not lifted yet, and until when their
            claims must be written.
        resting: The times before which a group is not planned again.
        setbacks: The back-off of groups whose claims were not written in time.
        woken: Groups that are planned in the next pass, whatever has become free.
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
    alone: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    starting: dict[GroupKey, float] = field(default_factory=dict)
    resting: dict[GroupKey, float] = field(default_factory=dict)
    setbacks: dict[GroupKey, Backoff] = field(default_factory=dict)
    woken: set[GroupKey] = field(default_factory=set)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or bound."""
        for uids in (self.lifting, self.alone, self.passed):
            uids.discard(uid)
        self.backoffs.pop(uid, None)
        self.waiting.pop(uid, None)
        self.with_volumes.pop(uid, None)
        for times in (self.not_before, self.stuck, self.reported):
            times.pop(uid, None)

    def forget_group(self, key: GroupKey) -> None:
        """Forget a group that has started, or has no pods left."""
        for of_group in (self.starting, self.resting, self.setbacks):
            of_group.pop(key, None)
        self.woken.discard(key)


@dataclass(slots=True)
class ResourceClaimWork:
    """Pending work on ResourceClaims. Times are monotonic seconds.

    Attributes:
        due: ResourceClaims to look at.
        writing: ResourceClaims with a write in flight.
        backoffs: The back-off of ResourceClaims whose writes fail.
        not_before: The times before which they are not written again.
        told: The UIDs of ResourceClaims of our classes that are not served and have an event.
        users_due: Pods to look at that name ResourceClaims which are not for them, by UID.
        users_told: The ResourceClaims about which such a pod has an event.
    """

    due: dict[ResourceKey, None] = field(default_factory=dict)
    writing: dict[ResourceKey, WriteResourceClaim] = field(default_factory=dict)
    backoffs: dict[ResourceKey, Backoff] = field(default_factory=dict)
    not_before: dict[ResourceKey, float] = field(default_factory=dict)
    told: dict[ResourceKey, str] = field(default_factory=dict)
    users_due: dict[str, None] = field(default_factory=dict)
    users_told: dict[str, set[ResourceKey]] = field(default_factory=dict)


@dataclass(slots=True)
class GroupTry:
    """One try of kube-scheduler to place the pods of a group. Times are monotonic seconds.

    First come Filters, which may all be a simulation. If enough pods have found a node, their Binds
    come, all at once. Pods are named by UID.

    Attributes:
        since: The time since when the group has been tried again and again without a Bind.
        last: The time of the last Filter or Bind.
        offered: The nodes that Filters were answered with; an empty name for a refusal.
        reason: The reason of the last refusal.
        asked: The nodes that Binds have asked for.
        until: The time by which enough pods must have asked.
        made: The reservations made for them.
        is_doomed: True if so many pods were refused that the group cannot start.
        has_passed: True once enough pods have asked and their claims are written.
        failure: Why all Binds of this try fail; None while they may succeed.
    """

    since: float
    last: float
    offered: dict[str, str] = field(default_factory=dict)
    reason: Reason | None = None
    asked: dict[str, str] = field(default_factory=dict)
    until: float = float("inf")
    made: dict[str, Reservation] = field(default_factory=dict)
    is_doomed: bool = False
    has_passed: bool = False
    failure: Refusal | None = None

    @property
    def is_over(self) -> bool:
        """True once the Binds of this try have passed or failed."""
        return self.has_passed or self.failure is not None

    @property
    def refused(self) -> set[str]:
        """Return the pods that were refused."""
        return {uid for uid, node in self.offered.items() if not node}


@dataclass(slots=True)
class DeviceView:
    """The status that a device should have, while it is still changing.

    Attributes:
        status: The status as of the last look.
        since: The last time at which it was equal to the written status.
    """

    status: dict[str, Any]
    since: float


@dataclass(slots=True)
class DeviceLooks:
    """The times at which devices were compared with their statuses.

    Attributes:
        last: The time of the current or last comparison; None before the first.
        before: The time of the comparison before that.
        zeros: Devices whose first write, which has zeros only, is in flight.
        unwritten: Nodes with devices that wait for such a write.
    """

    last: float | None = None
    before: float = 0.0
    zeros: set[str] = field(default_factory=set)
    unwritten: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceWrite:
    """The operator's last write of a device.

    Attributes:
        status: All fields of our field manager.
        at: The time of the decision, in monotonic seconds.
        version: The resourceVersion that the write produced; None while it is in flight.
    """

    status: dict[str, Any]
    at: float
    version: int | None = None


@dataclass(slots=True)
class State:
    """The whole state of the engine.

    Attributes:
        config: The cluster's configuration.
        ledger: The devices and who holds them.
        cache: The cache of pods, claims and nodes.
        new_id: Returns a new UUID.
        now: The monotonic time of the last drain of events, in seconds.
        unix: The same time as Unix time.
        reservations: Decisions whose pods do not run yet.
        queue: The pods and claims that wait.
        earmarks: Devices that are kept for starving requests.
        starving: The times at which waiters have waited long enough for an earmark.
        preempting: The times at which waiters may take devices from less important pods.
        preemptions: The preemptions under way.
        claims: Work on claims.
        pods: Work on pods.
        gates: Work on pods behind our gate.
        resource_claims: Work on ResourceClaims, in Claims mode.
        groups: The current try of each group that kube-scheduler is placing.
        shortfalls: The last try of each group in which a pod was refused, to explain why it waits.
        avoidance: The nodes that the pods of a controller avoid.
        devices: Nodes whose devices must be compared with their statuses.
        device_looks: The times of these comparisons.
        device_views: By device, the status to write once it no longer changes.
        device_writes: By device, the last write of its holders.
        registers: Nodes whose registers of other vendors' devices must be read.
        register_writes: By device, the last write of what its node registers.
        registers_reported: By node and kind, the last report about a register that cannot be read;
            with an empty kind, the one about other values of the node that are not understood.
        links: Nodes whose devices' links must be compared.
        links_reported: By node, the contradictory links that were last reported.
        out_of_service: By device, why it was last reported as out of service; empty if in service.
        crowded: Nodes that were reported for having too many devices.
        agents: The agent of each node that has or had a pod of one.
        agents_back_at: The time from which agents count as lost, if the watch of pods had a gap.
        agent_nodes: The node of each agent's pod, by UID.
        unmarked: Nodes whose agent may have to read its devices again.
        evicts: True if pods are evicted when their claims violate limits.
        evictions: The times from which pods may be evicted.
        agent_gone_s: Seconds after which the claims of ended pods no longer wait for an agent that
            is silent.
        outbox: Effects of event handlers and of steps, submitted after claims were reconciled.
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
    starving: Timers[ClaimKey] = field(default_factory=Timers)
    preempting: Timers[ClaimKey] = field(default_factory=Timers)
    preemptions: Preemptions = field(default_factory=Preemptions)
    claims: ClaimWork = field(default_factory=ClaimWork)
    pods: PodWork = field(default_factory=PodWork)
    gates: GateWork = field(default_factory=GateWork)
    resource_claims: ResourceClaimWork = field(default_factory=ResourceClaimWork)
    groups: dict[GroupKey, GroupTry] = field(default_factory=dict)
    shortfalls: dict[GroupKey, GroupTry] = field(default_factory=dict)
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
    agents: dict[str, NodeAgent] = field(default_factory=dict)
    agents_back_at: float = 0.0
    agent_nodes: dict[str, str] = field(default_factory=dict)
    unmarked: Timers[str] = field(default_factory=Timers)
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
        group: GroupKey | None = None,
        ended: Collection[ClaimKey] = (),
    ) -> Iterator[KeptFrom]:
        """Count a claim's own devices as free while deciding it. Yield the capacity kept from it.

        A plan computes its reasons only when they are read, so read them inside the context, too.

        Args:
            key: The claim, which may not exist yet.
            yielding: The rule for tentative places.
            priority: The priority of its pod, or of an Immediate claim itself.
            kind: Its class, if it waits.
            group: The group of its pod.
            ended: Other claims whose devices count as free, too.
        """
        with self.ledger.without(key, *ended):
            yield KeptFrom(
                key,
                kind,
                priority,
                yielding,
                self.ledger.columns,
                self.reservations,
                self.earmarks,
                group,
            )
