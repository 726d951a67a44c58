"""What the former leader sent and what has not landed yet can never be carried out any more."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from builders import a_claim, a_container, a_pod, a_request, an_allocation
from vgpu_api.conditions import PREPARED
from vgpu_api.core import Pod
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import Condition, VGPUClaim, VGPUClaimStatus
from vgpu_client.errors import Unknown, Unreachable
from vgpu_client.object_writer import ObjectWriter
from vgpu_operator.engine.leader.fence import Fence
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation


class Line:
    """One replica's way to the API server, on which patches can be held back."""

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


def a_fence(replica: Any) -> Fence:
    async def no_sleep(_: float) -> None:
        await asyncio.sleep(0)

    return Fence(
        api=replica.api,
        writer=ObjectWriter(replica.api, sleep=no_sleep),
        clock=replica.clock,
        cache=replica.cache,
        learned=replica.news.claim_changed,
        decider="operator-1_5eed",
    )


def a_pod_asking(name: str, mib: int) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, containers=[a_container(limits=limits)])


def given(prepared: Literal["True", "False"]) -> VGPUClaimStatus:
    """A status with an allocation, and whether a container has it."""
    condition = Condition(type=PREPARED, status=prepared)
    return VGPUClaimStatus(allocation=an_allocation(), state="Allocated", conditions=[condition])


def stands(replica: Any, name: str) -> VGPUClaim:
    return VGPUClaim.read(replica.api.claim(name))


def allocated(replica: Any) -> list[str]:
    """The pods that the API server knows to have cards."""
    claims = [
        VGPUClaim.read(obj) for (kind, *_), obj in replica.api.objects.items() if "vg" in kind
    ]
    return [c.status.reserved_for.pod_name for c in claims if c.status.reserved_for is not None]


async def a_former_leader_with_a_decision_under_way(replica: Any) -> Any:
    """It has given most of the only card to `early`, and that has not reached the API server."""
    former = type(replica)(Line(replica.api))
    for each in (former, replica):
        each.card(memory_mib=16384)
    former.api.free.clear()
    pod = a_pod_asking("early", 10_000)
    found = former.news.pod_changed(pod)
    assert isinstance(former.offer(pod), Reservation)
    await former.api.held.wait()
    # What the successor lists; the pod itself has not come to its notice yet.
    replica.news.claim_changed(stands(replica, found.claim.name))
    return former


async def test_a_decision_of_the_former_leader_that_lands_late_is_refused(replica: Any) -> None:
    former = await a_former_leader_with_a_decision_under_way(replica)
    former.leading = False
    assert await a_fence(replica).close() == 1
    later = replica.news.pod_changed(a_pod_asking("later", 10_000))
    assert isinstance(replica.offer(later), Reservation)
    former.api.free.set()
    await former.effector.drain()
    await replica.settle()
    assert allocated(replica) == ["later"]


async def test_a_decision_that_landed_before_the_touch_is_counted(replica: Any) -> None:
    former = await a_former_leader_with_a_decision_under_way(replica)
    former.api.free.set()
    await former.effector.drain()
    await a_fence(replica).close()
    later = replica.news.pod_changed(a_pod_asking("later", 10_000))
    assert isinstance(replica.offer(later), Refusal)
    await replica.settle()
    assert allocated(replica) == ["early"]


async def test_claims_whose_cards_may_still_move_are_touched_and_those_in_use_are_not(
    replica: Any,
) -> None:
    moving = replica.claim(a_claim("moving", status=given("False")))
    in_use = replica.claim(a_claim("in-use", status=given("True")))
    empty = replica.claim(a_claim("empty"))
    assert await a_fence(replica).close() == 2
    for before, is_touched in ((moving, True), (in_use, False), (empty, True)):
        now = stands(replica, before.metadata.name)
        changed = now.metadata.resource_version != before.metadata.resource_version
        assert changed is is_touched
        assert now.status.allocation == before.status.allocation


async def test_a_claim_in_use_that_may_be_growing_is_touched(replica: Any) -> None:
    """A larger amount that the former leader sent must not land after its room was given away."""
    grows = a_claim("grows", requests=[a_request(memory="12Gi")], status=given("True"))
    edited = grows.metadata.model_copy(update={"generation": 2})
    replica.claim(grows.model_copy(update={"metadata": edited}))
    assert await a_fence(replica).close() == 1


async def test_a_touch_is_repeated_until_it_is_certain(replica: Any) -> None:
    replica.claim(a_claim("empty"))
    errors = [Unreachable("no time left to write in"), Unknown("no answer")]
    replica.api.before = lambda verb, name: errors.pop() if errors and "patch" in verb else None
    await a_fence(replica).close()
    assert stands(replica, "empty").status.decider == "operator-1_5eed"
    assert errors == []


async def test_a_claim_that_is_gone_needs_no_touch(replica: Any) -> None:
    replica.claim(a_claim("empty"))
    replica.api.vanish(VGPU_CLAIMS, "empty", namespace="default")
    await a_fence(replica).close()
