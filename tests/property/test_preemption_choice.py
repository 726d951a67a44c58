"""Own preemption selects the same victims, node and moment as a choice made by hand.

The oracle reads pods and claims from the API server and counts room by hand. It follows
kube-scheduler's documented rules. On a node, pods stay in order of importance as long as the
waiting pod still fits. The best node is the one whose most important victim has the lowest
priority, then the one with the smallest sum of priorities, then the one whose most important victim
started last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from replica import Replica
from room_by_hand import MIB, SLOTS, Ask, has_room, limits
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodDisruptionBudget
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.transport import Object
from vgpu_operator.engine import events
from vgpu_operator.engine.scheduling.reservation import Reservation

MOST_PODS_OF_A_NODE = 6
UNLIMITED = 30
"""A limit of evictions a minute above the number of pods."""


@dataclass(frozen=True)
class Low:
    """A pod that runs if there is room for it on its node."""

    node: int
    ask: Ask
    priority: int
    is_guarded: bool


@dataclass(frozen=True)
class Case:
    """A drawn case.

    Attributes:
        fleet: The number of devices of each node.
        lows: The pods that run.
        ask: The waiting pod's request.
        priority: Its priority.
        allowed: The number of guarded pods that a disruption budget allows to evict.
        per_minute: The limit of evictions.
    """

    fleet: list[int]
    lows: list[Low]
    ask: Ask
    priority: int
    allowed: int
    per_minute: int


cores = st.sampled_from((0, 30, 60, 100))
lows = st.builds(
    Low,
    node=st.integers(0, 2),
    ask=st.tuples(st.integers(1, 2), st.sampled_from((2000, 5000, 8000, 16300)), cores),
    priority=st.integers(-2, 3),
    is_guarded=st.sampled_from((False, False, True)),
)
cases = st.builds(
    Case,
    fleet=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    lows=st.lists(lows, min_size=4, max_size=14),
    ask=st.tuples(st.integers(1, 3), st.sampled_from((8000, 12000, 16300)), cores),
    priority=st.integers(1, 4),
    allowed=st.integers(0, 2),
    per_minute=st.sampled_from((1, UNLIMITED)),
)


@dataclass
class Oracle:
    """The choice of victims by an independent, simple algorithm.

    Attributes:
        devices: The UUIDs of each node's devices.
        pods: The running pods as the API server has them.
        claims: Their claims.
        case: What was drawn.
    """

    devices: dict[str, list[str]]
    pods: list[Object]
    claims: list[Object]
    case: Case

    def fits(self, node: str, gone: Iterable[Object]) -> bool:
        """Return True if the waiting pod fits on a node without these pods."""
        uids = {pod["metadata"]["uid"] for pod in gone}
        return has_room(self.case.ask, self.devices[node], self.claims, uids)

    def candidates(self, node: str) -> list[Object]:
        """Return the pods of a node that may be evicted, the most important first.

        The more important pods use up the disruption budget first.
        """
        below = [
            pod
            for pod in self.pods
            if pod["spec"]["nodeName"] == node and pod["spec"]["priority"] < self.case.priority
        ]
        found, left = [], self.case.allowed
        for pod in sorted(below, key=_importance):
            left -= _is_guarded(pod)
            if not _is_guarded(pod) or left >= 0:
                found.append(pod)
        return found

    def somebody_could_help(self) -> bool:
        """Return True if evicting some candidates of one node would make room."""
        return any(
            self.fits(node, some)
            for node in self.devices
            for there in (self.candidates(node),)
            for size in range(1, len(there) + 1)
            for some in combinations(there, size)
        )

    def victims(self) -> list[Object]:
        """Return the pods to evict; empty if no evictions make room."""
        found = [victims for node in self.devices if (victims := self._of_node(node))]
        return min(found, key=_cost, default=[])

    def _of_node(self, node: str) -> list[Object]:
        victims = self.candidates(node)
        if not self.fits(node, victims):
            return []
        for pod in list(victims):
            others = [each for each in victims if each is not pod]
            if self.fits(node, others):
                victims = others
        return victims


GUARDED = {"app": "guarded"}


def _is_guarded(pod: Object) -> bool:
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return GUARDED.items() <= labels.items()


def _importance(pod: Object) -> tuple[int, str]:
    return -pod["spec"]["priority"], pod["status"]["startTime"]


def _cost(victims: list[Object]) -> tuple[int, int, int]:
    priorities = [pod["spec"]["priority"] for pod in victims]
    since = min(victims, key=_importance)["status"]["startTime"]
    return max(priorities), sum(each + 2**31 for each in priorities), -int(since[-3:-1])


@dataclass
class Cluster:
    """A replica with preemption enabled, with its devices and pods."""

    case: Case
    devices: dict[str, list[str]] = field(init=False)
    replica: Replica = field(init=False)
    evictions: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = {"enabled": True, "perMinute": self.case.per_minute}
        config = ClusterConfig.model_validate({"scheduling": {"preemption": rules}})
        self.replica = Replica(config=config)
        self.devices = {
            f"node-{n}": [f"GPU-{n}-{d}" for d in range(has)]
            for n, has in enumerate(self.case.fleet)
        }
        for node, uuids in self.devices.items():
            for index, uuid in enumerate(uuids):
                self.replica.device(uuid=uuid, node=node, index=index, memory_mib=MIB, slots=SLOTS)
        budget = {
            "metadata": {"name": "budget", "namespace": "default"},
            "spec": {"selector": {"matchLabels": GUARDED}},
            "status": {"disruptionsAllowed": self.case.allowed},
        }
        observed = events.BudgetObserved(PodDisruptionBudget.model_validate(budget))
        self.replica.engine.observe(observed)
        self.replica.engine.observe(events.BudgetsListed())

    async def run_pods(self) -> Oracle:
        """Run the pods that fit, and return the oracle for the running pods."""
        for number, low in enumerate(self.case.lows):
            node = f"node-{low.node % len(self.case.fleet)}"
            if sum(pod["spec"]["nodeName"] == node for pod in self._pods()) < MOST_PODS_OF_A_NODE:
                await self._run(f"low-{number}", low, node, f"2023-11-01T00:00:{number:02}Z")
        return Oracle(self.devices, self._pods(), self.claims(), self.case)

    async def _run(self, name: str, low: Low, node: str, since: str) -> None:
        replica, labels = self.replica, GUARDED if low.is_guarded else {}
        pod = replica.pod(name, limits=limits(low.ask), priority=low.priority, labels=labels)
        if not isinstance(replica.offer(pod, node), Reservation):
            self._forget(name)
            return
        await replica.settle()
        wire = pod.to_wire()
        wire["spec"]["nodeName"] = node
        wire["status"] = {"phase": "Running", "startTime": since}
        replica.news.pod_changed(Pod.model_validate(replica.api.put(PODS, wire)))
        await replica.settle()

    def _forget(self, name: str) -> None:
        self.replica.api.vanish(PODS, name)
        self.replica.news.pod_gone(f"uid-of-{name}")

    def _stored(self, plural: str) -> list[Any]:
        return [obj for (kind, *_), obj in self.replica.api.objects.items() if kind == plural]

    def _pods(self) -> list[Object]:
        return [pod for pod in self._stored(PODS.plural) if pod["spec"].get("nodeName")]

    def claims(self) -> list[Object]:
        """Return the claims that have devices."""
        claims = self._stored(VGPU_CLAIMS.plural)
        return [claim for claim in claims if claim.get("status", {}).get("allocation")]

    async def goes_on(self, seconds: float) -> None:
        """Let time pass, note evictions, and report the deletions that the API server accepted."""
        end = self.replica.time + seconds
        while self.replica.time < end:
            before = len(self.replica.api.log)
            self.replica.time += 3.0
            await self.replica.settle()
            for verb, name in self.replica.api.log[before:]:
                if verb == "evict":
                    self.evictions.append((self.replica.time, name))
                    (pod,) = (p for p in self._pods() if p["metadata"]["name"] == name)
                    self.replica.news.pod_changed(Pod.model_validate(pod))

    async def ends(self, name: str) -> None:
        """End a pod: the agent releases its devices, and the pod is deleted."""
        (claim,) = (
            claim
            for claim in self.claims()
            if claim["status"]["reservedFor"]["podUID"] == f"uid-of-{name}"
        )
        claim["status"]["released"] = {"allocationID": claim["status"]["allocation"]["id"]}
        self.replica.news.claim_changed(VGPUClaim.read(self.replica.api.put(VGPU_CLAIMS, claim)))
        self._forget(name)
        await self.replica.bound()

    def node_given_to(self, name: str) -> str:
        """Return the node of the devices of a pod's claim; empty if it has none."""
        return next(
            (
                claim["status"]["allocation"]["nodeName"]
                for claim in self.claims()
                if claim["status"]["reservedFor"]["podUID"] == f"uid-of-{name}"
            ),
            "",
        )


@given(cases)
def test_those_make_way_whose_loss_costs_least(case: Case) -> None:
    asyncio.run(_judge(case))


async def _judge(case: Case) -> None:
    cluster = Cluster(case)
    oracle = await cluster.run_pods()
    fits = any(oracle.fits(node, ()) for node in cluster.devices)
    wanted = [] if fits else oracle.victims()
    event("it fits" if fits else f"victims: {len(wanted)}")
    replica = cluster.replica
    important = replica.pod("important", limits=limits(case.ask), priority=case.priority)
    assert isinstance(replica.offer(important), Reservation) == fits
    await cluster.goes_on(15.0 + 60.0 * (max(len(wanted) - 1, 0) // case.per_minute))

    names = [name for _, name in cluster.evictions]
    gone = [pod for pod in oracle.pods if pod["metadata"]["name"] in names]
    assert len(names) == len(gone), "each is evicted once"
    assert all(pod["spec"]["priority"] < case.priority for pod in gone)
    assert sum(_is_guarded(pod) for pod in gone) <= case.allowed
    for at, _ in cluster.evictions:
        in_a_minute = [each for each, _ in cluster.evictions if at <= each < at + 60.0]
        assert len(in_a_minute) <= case.per_minute
    if not gone:
        assert fits or not oracle.somebody_could_help()
        return
    (node,) = {pod["spec"]["nodeName"] for pod in gone}
    assert not fits
    assert oracle.fits(node, gone)
    assert not any(oracle.fits(node, some) for some in combinations(gone, len(gone) - 1))
    assert set(names) == {pod["metadata"]["name"] for pod in wanted}

    for name in names:
        assert not cluster.node_given_to("important")
        assert not isinstance(replica.offer(important), Reservation)
        await cluster.ends(name)
    assert cluster.node_given_to("important") == node
