"""Late writes of a former leader are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from builders import a_claim, a_container, a_pod, a_request, an_allocation, use_of
from replica import Replica
from set_clock import SetClock
from vgpu_api.core import Pod
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_client.errors import Unknown, Unreachable
from vgpu_client.object_writer import ObjectWriter
from vgpu_operator.engine.events import ClaimObserved, PodObserved
from vgpu_operator.engine.leader.fence import Fence
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

DECIDER = "operator-1_5eed"


class Line:
    """A replica's connection to the API server, which can delay patches."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.free = asyncio.Event()
        self.free.set()
        self.held = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def json_patch(self, *args: Any, **options: Any) -> Any:
        self.held.set()
        await self.free.wait()
        return await self._api.json_patch(*args, **options)


class Watch:
    """An informer of claims whose events arrive after the response to the fence's first touch.

    Attributes:
        is_behind: It delivers nothing until it lists.
    """

    def __init__(self) -> None:
        self.is_behind = False
        self.news: list[Callable[[], object]] = []
        self.asked: list[int] = []
        self.lists = 0

    async def reach(self, version: int) -> None:
        self.asked.append(version)
        if self.is_behind:
            await asyncio.Event().wait()
        self._tell()

    async def relist(self) -> None:
        self.lists += 1
        self._tell()

    def _tell(self) -> None:
        news, self.news = self.news, []
        for each in news:
            each()


def a_fence(
    replica: Replica,
    watch: Watch | None = None,
    other: Watch | None = None,
    pods: Watch | None = None,
) -> Fence:
    return Fence(
        api=replica.api,
        writer=ObjectWriter(replica.api, clock=SetClock()),
        clock=replica.clock,
        cache=replica.cache,
        claims=watch or Watch(),
        pods=pods or Watch(),
        others=[other or Watch()],
        engine=replica.engine,
    )


def a_pod_asking(name: str, mib: int) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, containers=[a_container(limits=limits)])


def given(pod: Pod | None = None) -> VGPUClaimStatus:
    """Return a status with an allocation, for a pod if one is given."""
    reserved = None
    if pod is not None:
        reserved = ReservedFor(pod_name=pod.metadata.name, pod_uid=pod.metadata.uid)
    return VGPUClaimStatus(
        allocation=an_allocation(), reserved_for=reserved, state="Allocated", conditions=[]
    )


def stands(replica: Replica, name: str) -> VGPUClaim:
    return VGPUClaim.read(replica.api.claim(name))


def allocated(replica: Replica) -> list[str]:
    """Return the pods that have devices according to the API server."""
    claims = [
        VGPUClaim.read(obj) for (kind, *_), obj in replica.api.objects.items() if "vg" in kind
    ]
    return [c.status.reserved_for.pod_name for c in claims if c.status.reserved_for is not None]


async def a_former_leader_with_a_decision_under_way(replica: Replica) -> Any:
    """Return a leader that allocated most of the only device to `early` but has not written it."""
    former = type(replica)(Line(replica.api))
    for each in (former, replica):
        each.device(memory_mib=16384)
    former.api.free.clear()
    pod = a_pod_asking("early", 10_000)
    found = former.news.pod_changed(pod)
    assert isinstance(former.offer(pod), Reservation)
    await former.api.held.wait()
    # The successor's list; it does not know the pod yet.
    replica.news.claim_changed(stands(replica, found.claim.name))
    return former


async def test_a_decision_of_the_former_leader_that_lands_late_is_refused(replica: Replica) -> None:
    former = await a_former_leader_with_a_decision_under_way(replica)
    former.leading = False
    assert await a_fence(replica).close(DECIDER) == 1
    later = replica.news.pod_changed(a_pod_asking("later", 10_000))
    assert isinstance(replica.offer(later), Reservation)
    former.api.free.set()
    await former.effector.drain()
    await replica.settle()
    assert allocated(replica) == ["later"]


async def test_a_decision_that_landed_before_the_touch_is_counted(replica: Replica) -> None:
    former = await a_former_leader_with_a_decision_under_way(replica)
    former.api.free.set()
    await former.effector.drain()
    await a_fence(replica).close(DECIDER)
    later = replica.news.pod_changed(a_pod_asking("later", 10_000))
    assert isinstance(replica.offer(later), Refusal)
    await replica.settle()
    assert allocated(replica) == ["early"]


@pytest.mark.parametrize(("node", "is_touched"), [("node-1", False), ("", True), ("node-2", True)])
async def test_a_claim_is_touched_unless_its_pod_is_bound_where_its_devices_are(
    replica: Replica, node: str, is_touched: bool
) -> None:
    """The agent's report does not matter, because a Binding follows the claim's write."""
    replica.claim(a_claim("empty"))
    pod = replica.pod(node=node)
    before = replica.claim(a_claim("its", status=given(pod)))
    assert await a_fence(replica).close(DECIDER) == 1 + is_touched
    now = stands(replica, "its")
    changed = now.metadata.resource_version != before.metadata.resource_version
    assert changed is is_touched
    assert now.status.allocation == before.status.allocation


async def test_a_claim_whose_pod_is_gone_is_touched(replica: Replica) -> None:
    replica.claim(a_claim("its", status=given(a_pod_asking("gone", 1))))
    assert await a_fence(replica).close(DECIDER) == 1


@pytest.mark.parametrize(("mode", "count"), [("Immediate", 0), ("WaitForFirstConsumer", 1)])
async def test_an_immediate_claim_with_devices_is_not_touched(
    replica: Replica, mode: str, count: int
) -> None:
    """It is decided again only after it is seen without devices."""
    replica.claim(a_claim("empty"))
    replica.claim(a_claim("its", binding_mode=mode, status=given()))
    assert await a_fence(replica).close(DECIDER) == 1 + count


async def test_a_claim_without_devices_is_touched(replica: Replica) -> None:
    replica.claim(a_claim("empty"))
    replica.claim(a_claim("immediate", binding_mode="Immediate"))
    assert await a_fence(replica).close(DECIDER) == 2


async def test_a_claim_in_use_that_may_be_growing_is_touched(replica: Replica) -> None:
    """A larger amount from the former leader must not take effect once that room is reallocated."""
    status = given(replica.pod(node="node-1"))
    grows = a_claim("grows", requests=[a_request(memory="12Gi")], status=status)
    edited = grows.metadata.model_copy(update={"generation": 2})
    replica.claim(a_claim("empty"))
    replica.claim(grows.model_copy(update={"metadata": edited}))
    assert await a_fence(replica).close(DECIDER) == 2


async def test_what_the_former_leader_wrote_is_observed_before_the_first_decision(
    replica: Replica,
) -> None:
    """Its last write succeeded, and the watch delivers it after the fence's first touch."""
    replica.device(memory_mib=16384)
    replica.claim(a_claim("empty"))
    watch, other = Watch(), Watch()
    taken = a_claim("taken", status=given(a_pod_asking("early", 10_000)))
    stored = VGPUClaim.read(replica.api.put(VGPU_CLAIMS, taken.to_wire()))
    watch.news.append(lambda: replica.engine.observe(ClaimObserved(stored)))
    assert await a_fence(replica, watch, other).close(DECIDER) == 2
    assert watch.asked == [int(stands(replica, "empty").metadata.resource_version)]
    assert (watch.lists, other.lists) == (0, 0)
    assert use_of(replica.ledger, "GPU-0").slots == 1
    decided = stands(replica, "taken")
    assert decided.status.decider == DECIDER


async def test_what_the_former_leader_bound_is_observed_before_claims_are_touched(
    replica: Replica,
) -> None:
    replica.claim(a_claim("empty"))
    pod = replica.pod()
    before = replica.claim(a_claim("its", status=given(pod)))
    bound = a_pod("pod-1", node="node-1", resource_version=9, containers=pod.spec.containers)
    pods = Watch()
    pods.news.append(lambda: replica.engine.observe(PodObserved(bound)))
    assert await a_fence(replica, pods=pods).close(DECIDER) == 1
    assert stands(replica, "its") == before
    assert replica.cache.pod(pod.metadata.uid).pod.spec.node_name == "node-1"


@pytest.mark.parametrize("why", ["no event comes", "the version is not known"])
async def test_where_the_watch_of_pods_is_behind_they_are_listed_anew(
    replica: Replica, why: str
) -> None:
    replica.claim(a_claim("empty"))
    pods, other = Watch(), Watch()
    pods.is_behind = why == "no event comes"
    if not pods.is_behind:
        failing = Unreachable("no connection")
        replica.api.before = lambda verb, name: (
            failing if (verb, name) == ("list", "pods") else None
        )
    assert await a_fence(replica, other=other, pods=pods).close(DECIDER) == 1
    assert (pods.lists, other.lists) == (1, 0)


async def test_where_the_watch_is_behind_everything_is_listed_anew(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.claim(a_claim("empty"))
    watch, other = Watch(), Watch()
    watch.is_behind = True
    taken = VGPUClaim.read(replica.api.put(VGPU_CLAIMS, a_claim("taken", status=given()).to_wire()))
    watch.news.append(lambda: replica.engine.observe(ClaimObserved(taken)))
    assert await a_fence(replica, watch, other).close(DECIDER) == 2
    assert (watch.lists, other.lists) == (1, 1)
    assert use_of(replica.ledger, "GPU-0").slots == 1


async def test_where_no_claim_is_known_they_are_listed(replica: Replica) -> None:
    watch = Watch()
    assert await a_fence(replica, watch).close(DECIDER) == 0
    assert watch.lists == 1


async def test_a_touch_is_repeated_until_it_is_certain(replica: Replica) -> None:
    replica.claim(a_claim("empty"))
    errors = [Unreachable("no time left to write"), Unknown("no answer")]
    replica.api.before = lambda verb, name: errors.pop() if errors and "patch" in verb else None
    await a_fence(replica).close(DECIDER)
    assert stands(replica, "empty").status.decider == DECIDER
    assert errors == []


async def test_a_claim_that_is_gone_needs_no_touch(replica: Replica) -> None:
    replica.claim(a_claim("empty"))
    replica.api.vanish(VGPU_CLAIMS, "empty", namespace="default")
    await a_fence(replica).close(DECIDER)
