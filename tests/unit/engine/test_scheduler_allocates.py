"""Nodes whose devices kube-scheduler allocates: VGPUClaims repeat what its ResourceClaims say."""

from __future__ import annotations

import copy

import pytest

from builders import ROOM, a_node
from claims_world import admitted, recorded, release
from scheduler_world import a_world, allocated, allocation_of, asking, resource_claims
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.insight.explanation import Explanation, ask_nodes
from vgpu_operator.insight.live_cluster import EVERYTHING_READ


async def test_what_kube_scheduler_allocates_is_repeated_in_the_pods_vgpuclaim() -> None:
    world = a_world()
    pod = asking(world, memory="8Gi", cores=50)
    await world.settle()
    assert not allocation_of(world, pod)
    allocated(world, pod)
    (before,) = copy.deepcopy(resource_claims(world))
    await world.settle()
    claim = world.claim_of(pod)
    allocation = claim.status.allocation
    assert allocation is not None
    assert allocation.node_name == "node-1"
    assert [(d.request, d.uuid, d.memory, d.cores) for d in allocation.devices] == [
        ("main", "GPU-1", "8Gi", 50)
    ]
    assert allocation.resource_claim_uid == before["metadata"]["uid"]
    assert claim.status.reserved_for is not None
    assert claim.status.reserved_for.pod_uid == pod.metadata.uid
    assert resource_claims(world) == [before]  # kube-scheduler's own is left as it is


async def test_devices_are_free_again_when_the_agent_has_reported_it() -> None:
    world = a_world()
    pod = asking(world, memory="8Gi", cores=50)
    allocated(world, pod)
    await world.settle()
    release(world, pod)
    await world.settle()
    assert world.claim_of(pod).status.allocation is None


async def test_a_device_that_was_given_away_too_early_is_repeated_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-scheduler frees a device as soon as its pod is gone, also while containers run."""
    world = a_world()
    told = recorded(world, monkeypatch)
    first, second = (asking(world, name, memory="10Gi", cores=50) for name in ("pod-1", "pod-2"))
    allocated(world, first, memory="10Gi")
    await world.settle()
    allocated(world, second, memory="10Gi")
    await world.told()
    assert not allocation_of(world, second)
    assert "CardInsufficientMemory" in {event["reason"] for event in told}
    release(world, first)
    await world.settle()
    world.time += 2
    await world.settle()
    assert world.claim_of(second).status.allocation is not None


@pytest.mark.parametrize(
    ("label", "amounts", "reason"),
    [
        ("Ledger", {}, "NotAllocatedHere"),
        ("Scheduler", {"memory": "16Gi"}, "RequestMismatch"),
        ("Scheduler", {"memory": ""}, "AllocationUnusable"),
        ("Scheduler", {"device": "GPU-9"}, "AllocationUnusable"),
    ],
)
async def test_an_allocation_that_is_not_right_gives_the_pod_nothing(
    monkeypatch: pytest.MonkeyPatch, label: str, amounts: dict[str, str], reason: str
) -> None:
    world = a_world(label=label)
    told = recorded(world, monkeypatch)
    pod = asking(world, memory="8Gi", cores=50)
    allocated(world, pod, **amounts)
    await world.told()
    assert not allocation_of(world, pod)
    assert reason in {event["reason"] for event in told}


async def test_the_operator_places_nothing_on_a_node_of_kube_schedulers_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world()
    told = recorded(world, monkeypatch)
    pod = admitted(world)
    await world.told()
    assert not allocation_of(world, pod)
    assert any("NodeOfScheduler" in event["note"] for event in told)


async def test_a_label_that_changes_while_claims_are_held_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world()
    told = recorded(world, monkeypatch)
    pod = asking(world, memory="8Gi", cores=50)
    allocated(world, pod)
    await world.settle()
    world.news.node_changed(a_node("node-1", allocatable=ROOM, resource_version=2))
    await world.settle()
    (event,) = (each for each in told if each["reason"] == "AllocatorChanged")
    assert "claims that kube-scheduler allocated keep their devices (1)" in event["note"]
    assert world.claim_of(pod).status.allocation is not None
    other = admitted(world, "pod-2")  # 8 GiB of what is left
    await world.settle()
    found = world.claim_of(other).status.allocation
    assert found is not None
    assert found.node_name == "node-1"


async def test_explain_leaves_a_pod_that_kube_scheduler_serves_to_kube_scheduler() -> None:
    world = a_world()
    pod = asking(world, memory="8Gi", cores=50)
    await world.settle()
    said = Explanation("pod default/pod-1", "")
    known = world.cache.pod(pod.metadata.uid)
    ask_nodes(world.state, known, None, said, lambda _: True, EVERYTHING_READ)
    assert "kube-scheduler allocates its GPUs" in said.now
    assert said.nodes == []


async def test_a_new_leader_repeats_what_the_former_one_did_not() -> None:
    """The claim was created, and the leader ended before its status was written."""
    world = a_world()
    pod = asking(world, memory="8Gi", cores=50)
    allocated(world, pod)
    await world.settle()
    lost = world.claim_of(pod).to_wire()
    del lost["status"]["allocation"], lost["status"]["reservedFor"]
    lost["metadata"]["resourceVersion"] = "900"
    world.claim(VGPUClaim.read(lost))
    await world.settle()
    assert allocation_of(world, pod)["devices"][0]["uuid"] == "GPU-1"
