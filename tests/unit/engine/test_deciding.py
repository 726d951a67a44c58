"""Pods and claims get devices once, from capacity that is really free, and the claim shows them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from builders import a_claim, a_container, a_node, a_pod, a_request, an_allocation, use_of
from replica import Replica
from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, FINALIZER_IN_USE
from vgpu_api.reasons import Reason
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.errors import ApiError, Unknown
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.errors import NotLeading


async def test_a_pod_gets_a_claim_of_its_own_with_an_allocation(replica: Replica) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    claim = replica.claim_of(pod)
    assert claim.status.allocation.node_name == "node-1"
    assert claim.status.reserved_for.pod_uid == pod.metadata.uid
    assert claim.metadata.finalizers == [FINALIZER_IN_USE]
    assert claim.metadata.owner_references[0].uid == pod.metadata.uid
    assert (claim.status.state, claim.status.summary) == ("Allocated", "1 × 8Gi")


async def test_the_next_decision_sees_what_the_last_one_assumed(replica: Replica) -> None:
    """Two pods need more than half a device each, and both are decided before a write ends."""
    replica.device(memory_mib=16384)
    replica.api.gate.clear()
    first = replica.news.pod_changed(a_pod_asking("first", 10000))
    second = replica.news.pod_changed(a_pod_asking("second", 10000))
    assert isinstance(replica.offer(first), Reservation)
    refusal = replica.offer(second)
    assert isinstance(refusal, Refusal)
    assert refusal.message == "1/1 CardInsufficientMemory"
    replica.api.gate.set()
    await replica.effector.drain()


async def test_a_write_whose_answer_was_lost_is_found_done_and_not_done_twice(
    replica: Replica,
) -> None:
    replica.device()
    lost = [Unknown("no answer")]
    replica.api.after = lambda verb, _: lost.pop() if verb == "patch status" and lost else None
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    assert [verb for verb, _ in replica.api.log].count("patch status") == 1
    assert use_of(replica.ledger, "GPU-0").memory_mib == 8192


async def test_a_write_that_was_lost_before_it_was_done_is_done_again(replica: Replica) -> None:
    replica.device()
    lost = [Unknown("not sent")]
    replica.api.before = lambda verb, _: lost.pop() if verb == "patch status" and lost else None
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_claim_that_changed_since_it_was_read_is_not_written_over(replica: Replica) -> None:
    """A late write of the predecessor came first; our write tests the version it is based on."""
    replica.device()
    claim = replica.claim(a_claim("mine", requests=[a_request(memory="8Gi")]))
    theirs = an_allocation(number=99).to_wire()
    replica.api.put(VGPU_CLAIMS, {**claim.to_wire(), "status": {"allocation": theirs}})
    replica.news.pod_changed(native_pod("pod-1", "mine"))
    reservation = replica.offer(replica.cache.pod("uid-of-pod-1"))
    await replica.settle()
    assert not replica.state.reservations.is_current(reservation)
    assert replica.api.claim("mine")["status"]["allocation"] == theirs
    assert use_of(replica.ledger, "GPU-0").memory_mib == 1024


async def test_what_the_server_refuses_is_forgotten_and_the_device_is_free_again(
    replica: Replica,
) -> None:
    replica.device()
    replica.api.before = lambda verb, _: (
        ApiError("no", status=403) if verb == "patch status" else None
    )
    pod = replica.pod()
    assert isinstance(replica.offer(pod), Reservation)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    assert replica.reservation(pod) is None


async def test_what_the_server_refuses_every_time_is_tried_ever_less_often(
    replica: Replica,
) -> None:
    """A quota, a policy or a missing right refuses at once, so retries would never end."""
    replica.device()
    tries: list[float] = []  # the time of each write

    def refuse(verb: str, name: str) -> ApiError | None:
        if verb != "patch status":
            return None
        tries.append(replica.time)
        return ApiError("no", status=403)

    replica.api.before = refuse
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    for _ in range(200):
        await replica.settle()
        replica.time += 0.1
    waits = [later - sooner for sooner, later in pairwise(tries)]
    assert waits == sorted(waits)
    assert waits[0] < 0.2
    assert waits[-1] > 1
    replica.api.before = lambda verb, name: None
    replica.time += 10
    await replica.settle()
    assert replica.api.claim("now")["status"]["allocation"]["nodeName"] == "node-1"


async def test_a_pod_that_does_not_fit_says_why_in_its_claim_and_gets_its_turn(
    replica: Replica,
) -> None:
    replica.device(memory_mib=4096)
    pod = replica.offered()
    await replica.told()
    claim = replica.claim_of(pod)
    condition = find(claim.status.conditions, ALLOCATED)
    assert (condition.status, condition.reason) == ("False", "Impossible")
    assert condition.message == (
        "1/1 CardInsufficientMemory; asked 8,192 MiB; the largest device has 4,096 MiB "
        "(gpu-0 on node-1)"
    )
    replica.device(uuid="GPU-9", index=1, memory_mib=16384)
    await replica.settle()
    replica.offer(pod)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.devices[0].uuid == "GPU-9"


async def test_a_pod_is_not_placed_where_its_selector_forbids(replica: Replica) -> None:
    replica.device()
    replica.news.node_changed(a_node("node-1", labels={"zone": "a"}))
    pod = replica.offered(node_selector={"zone": "b"})
    await replica.told()
    message = find(replica.claim_of(pod).status.conditions, ALLOCATED).message
    assert message == "1/1 NodeSelectorMismatch"


async def test_a_claim_that_is_missing_is_waited_for(replica: Replica) -> None:
    replica.device()
    pod = native_pod("pod-1", "mine")
    replica.news.pod_changed(pod)
    await replica.settle()
    refusal = replica.offer(replica.cache.pod(pod.metadata.uid))
    assert refusal.reason == Reason.CLAIM_MISSING
    replica.claim(a_claim("mine", requests=[a_request(memory="8Gi")]))
    await replica.settle()
    assert isinstance(replica.offer(pod), Reservation)
    await replica.settle()
    assert replica.api.claim("mine")["status"]["reservedFor"]["podUID"] == pod.metadata.uid
    assert replica.api.claim("mine")["metadata"]["finalizers"] == [FINALIZER_IN_USE]


async def test_a_claim_serves_one_pod_and_a_namesake_is_another(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(memory="8Gi")]))
    replica.offer(replica.news.pod_changed(native_pod("pod-1", "mine", uid="the-first")))
    await replica.settle()
    replica.news.pod_changed(native_pod("pod-1", "mine", uid="the-second"))
    refusal = replica.offer(replica.cache.pod("the-second"))
    assert refusal.reason == Reason.CLAIM_IN_USE


async def test_a_claim_whose_requests_are_not_the_pods_containers_is_refused(
    replica: Replica,
) -> None:
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(name="other", memory="8Gi")]))
    replica.news.pod_changed(native_pod("pod-1", "mine"))
    refusal = replica.offer(replica.cache.pod("uid-of-pod-1"))
    assert refusal.reason == Reason.REQUEST_MISMATCH
    assert "other" in refusal.message


async def test_an_immediate_claim_is_decided_without_a_pod(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    await replica.settle()
    status = replica.api.claim("now")["status"]
    assert status["allocation"]["nodeName"] == "node-1"
    assert "reservedFor" not in status


async def test_immediate_claims_go_by_priority_then_age(replica: Replica) -> None:
    for name, priority in (("low", 0), ("high", 5)):
        replica.claim(
            a_claim(
                name,
                requests=[a_request()],
                binding_mode="Immediate",
                scheduling_priority=priority,
            )
        )
    replica.device()
    await replica.settle()
    assert "allocation" in replica.api.claim("high")["status"]
    assert "allocation" not in replica.api.claim("low")["status"]


async def test_a_claim_that_nobody_uses_yet_waits_for_its_pod(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("idle", requests=[a_request(memory="8Gi")]))
    await replica.settle()
    status = replica.api.claim("idle")["status"]
    assert (status["state"], status["conditions"][0]["reason"]) == ("Pending", "WaitingForPod")


async def test_a_replica_that_does_not_lead_takes_notes_only(replica: Replica) -> None:
    replica.leading = False
    replica.device()
    pod = replica.pod()
    with pytest.raises(NotLeading):
        replica.offer(pod)
    await replica.settle()
    assert replica.api.log == []
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


def a_pod_asking(name: str, mib: int) -> Any:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, containers=[a_container(limits=limits)])


def native_pod(name: str, claim: str, *, uid: str | None = None) -> Any:
    return a_pod(
        name,
        uid=uid,
        annotations={ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"},
    )
