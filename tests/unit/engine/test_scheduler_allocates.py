"""Nodes whose devices kube-scheduler allocates: VGPUClaims repeat what its ResourceClaims say."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import CLAIMS, ROOM, a_device, a_node, a_pod
from claims_world import admitted, changed, recorded, release, seen
from replica import Replica
from vgpu_api import dra
from vgpu_api.core import Pod
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.admission.rules import NamedObjects, ask_by_claims, mutate_pod
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.insight.explanation import Explanation, ask_nodes
from vgpu_operator.insight.live_cluster import EVERYTHING_READ

SHARE = "7b2f0c1e-0000-4000-8000-000000000001"


def a_world(*, label: str = "Scheduler") -> Replica:
    """Return an operator with a node of kube-scheduler's and its device of 16 GiB."""
    world = Replica(config=CLAIMS)
    world.news.node_changed(
        a_node("node-1", allocatable=ROOM, labels={"vgpu.dev/allocator": label})
    )
    world.news.device_changed(a_device(uuid="GPU-1", node="node-1", memory_mib=16384))
    return world


def a_template(**capacity: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "scheduler.vgpu.dev", "capacity": {"requests": capacity}}
    request = {"name": "gpu", "exactly": exactly}
    return {
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def asking(world: Replica, name: str = "pod-1", **capacity: Any) -> Pod:
    """Return a pod that names a template, as the webhook leaves it."""
    raw = a_pod(name).to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    found = NamedObjects({"gpu": a_template(**capacity)}, {})
    raw = applied(raw, ask_by_claims(raw, found, CLAIMS))
    return seen(world, applied(raw, mutate_pod(raw, CLAIMS, None, token="e" * 12)))


def allocated(
    world: Replica,
    pod: Pod,
    node: str = "node-1",
    device: str = "GPU-1",
    *,
    memory: str = "8Gi",
    cores: str = "50",
    **status: Any,
) -> None:
    """Let Kubernetes make the pod's ResourceClaim from its template, and allocate and bind it."""
    name = f"{pod.metadata.name}-gpu-x1"
    request = a_template()["spec"]["spec"]["devices"]["requests"][0]
    result = {
        "request": "gpu",
        "driver": "vgpu.dev",
        "pool": node,
        "device": dra.device_name(device),
        "shareID": SHARE,
        "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
    }
    if not memory:
        del result["consumedCapacity"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    changed(
        world,
        {
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
            "spec": {"devices": {"requests": [request]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [consumer],
                **status,
            },
        },
    )
    raw = copy.deepcopy(world.api.objects[(PODS.plural, "default", pod.metadata.name)])
    raw["spec"]["nodeName"] = node
    raw["status"] = {
        "phase": "Pending",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}],
    }
    seen(world, raw)


def allocation_of(world: Replica, pod: Pod) -> dict[str, Any]:
    """Return the allocation of the pod's VGPUClaim in the API server; empty without any."""
    key = (VGPU_CLAIMS.plural, "default", pod_claim_name(pod.metadata.name, pod.metadata.uid))
    found: dict[str, Any] = world.api.objects.get(key, {}).get("status", {}).get("allocation") or {}
    return found


def resource_claims(world: Replica) -> list[dict[str, Any]]:
    return [
        each for (kind, _, _), each in world.api.objects.items() if kind == RESOURCE_CLAIMS.plural
    ]


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
