"""Devices become free only when nothing can use them any more."""

from __future__ import annotations

from builders import a_claim, a_container, a_node, a_pod, a_request, allocation_id, use_of
from replica import Replica
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ApiError
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, Reservation

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


async def test_a_pod_that_went_before_it_had_a_node_frees_its_devices_at_once(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    claim = replica.api.claim(pod_claim_name("pod-1", pod.metadata.uid))
    assert "allocation" not in claim["status"]
    assert claim["metadata"]["finalizers"] == []
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_a_bound_pod_that_is_gone_keeps_its_devices_until_the_agent_says_so(
    replica: Replica,
) -> None:
    replica.device()
    name = await a_bound_pod_that_goes(replica)
    assert "allocation" in replica.api.claim(name)["status"]
    say_released(replica, name, replica.api.claim(name)["status"]["allocation"]["id"])
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_the_agents_word_about_an_earlier_allocation_frees_nothing(replica: Replica) -> None:
    replica.device()
    name = await a_bound_pod_that_goes(replica)
    say_released(replica, name, allocation_id(99))
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]


async def test_a_node_that_is_gone_frees_what_was_on_it(replica: Replica) -> None:
    replica.device()
    name = await a_bound_pod_that_goes(replica)
    replica.news.node_gone("node-1")
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]


async def test_a_pod_that_no_filter_asks_about_holds_nothing(replica: Replica) -> None:
    """kube-scheduler may be unable to place it for reasons of its own."""
    replica.device()
    pod = replica.pod()
    await replica.told()
    assert replica.reservation(pod) is None
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    assert replica.api.log == []


async def test_a_reservation_that_was_offered_and_not_bound_lapses(replica: Replica) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.time += OFFERED_S - 1
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    replica.time += 1
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    # Only a Bind leads to a new decision.
    replica.offer(pod)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert isinstance(replica.engine.begin_bind(replica.engine.pod(pod.metadata.uid), "node-1"),
                      Reservation)  # fmt: skip
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_filters_alone_keep_no_devices(replica: Replica) -> None:
    """kube-scheduler retries, and a step after Filter fails each time."""
    replica.device()
    pod = replica.offered()
    for _ in range(3):
        await replica.settle()
        replica.time += OFFERED_S - 1
        replica.offer(pod)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_a_pod_whose_volumes_may_take_minutes_holds_nothing_until_its_bind(
    replica: Replica,
) -> None:
    replica.device(memory_mib=8192)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "never-bound"}}
    pod = a_pod(containers=[a_container(limits=LIMITS)])
    pod = pod.model_copy(update={"spec": pod.spec.model_copy(update={"volumes": [volume]})})
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    offered = replica.offer(pod)
    assert isinstance(offered, Reservation)
    assert offered.node == "node-1"
    await replica.settle()
    assert replica.api.log == []
    other = replica.offered("pod-2", limits=LIMITS)
    assert replica.reservation(other) is not None
    refused = replica.engine.begin_bind(replica.engine.pod(pod.metadata.uid), "node-1")
    assert isinstance(refused, Refusal)


async def test_expiry_never_touches_an_immediate_claim(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("now", requests=[a_request()], binding_mode="Immediate"))
    await replica.settle()
    replica.time += 10 * OFFERED_S
    await replica.settle()
    assert "allocation" in replica.api.claim("now")["status"]


async def test_a_deleted_claim_that_holds_nothing_is_let_go(replica: Replica) -> None:
    replica.claim(
        a_claim(
            "going",
            requests=[a_request()],
            metadata={
                "finalizers": ["other/one", "vgpu.dev/in-use"],
                "deletion_timestamp": "2026-01-01T00:00:00Z",
            },
        )
    )
    await replica.settle()
    assert replica.api.claim("going")["metadata"]["finalizers"] == ["other/one"]


async def test_a_claim_deleted_while_a_refusal_is_written_is_let_go(replica: Replica) -> None:
    """The deletion is seen while a write is in flight, and that write then fails."""
    replica.device(memory_mib=64)
    pod = replica.offered()
    await replica.told()
    name = replica.claim_of(pod).metadata.name
    replica.device(memory_mib=64, cordoned=True, resource_version=2)  # another reason
    replica.time += 10
    replica.api.gate.clear()
    replica.submit()
    raw = replica.api.claim(name)
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))
    replica.submit()
    refused = [ApiError("not allowed", status=403)]
    replica.api.before = lambda verb, _: refused.pop() if refused else None
    replica.api.gate.set()
    await replica.settle()
    assert replica.api.claim(name)["metadata"]["finalizers"] == []


async def test_a_claim_written_after_its_deletion_was_seen_holds_nothing(replica: Replica) -> None:
    """The answer to a write may come after the watch delivered the deletion."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    claim = replica.claim_of(pod)
    replica.news.claim_gone(("default", claim.metadata.name), claim.metadata.uid)
    replica.news.claim_changed(claim)
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def a_bound_pod_that_goes(replica: Replica) -> str:
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    bound = a_pod(
        "pod-1",
        node="node-1",
        resource_version=500,
        containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192})],
    )
    replica.news.pod_changed(bound)
    replica.news.pod_gone(bound.metadata.uid)
    replica.news.node_changed(a_node("node-1", resource_version=2))
    await replica.settle()
    return str(name)


def say_released(replica: Replica, name: str, allocation_id: str) -> None:
    raw = replica.api.claim(name)
    raw["status"]["released"] = {"allocationID": allocation_id}
    stored = replica.api.put(VGPU_CLAIMS, raw)
    replica.news.claim_changed(VGPUClaim.read(stored))
