"""Claims mode: devices are reserved and written before a ResourceClaim hands them over."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import CLAIMS, ROOM, a_claim, a_device, a_node, a_pod, a_request, use_of
from claims_world import (
    LIMITS,
    admitted,
    bind,
    changed,
    kube_scheduler_takes_away,
    name_of,
    node_of,
    recorded,
    release,
    replica,
    results,
    seen,
    stored,
    unschedulable,
)
from memory_api import MemoryApi
from replica import Replica
from vgpu_api import dra
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, ResourceClaim
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    FINALIZER_IN_USE,
)
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import Forbidden, Unknown
from vgpu_operator.admission.rules import mutate_pod
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.engine import events
from vgpu_operator.engine.pod_reading import PodReader
from vgpu_operator.engine.scheduling.gate import STUCK_S
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, Phase


async def test_a_pod_gets_its_claim_first_and_then_an_allocated_resource_claim() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    allocation = world.claim_of(pod).status.allocation
    assert allocation is not None
    found = stored(world, pod)
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER_IN_USE]
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["uid"] == pod.metadata.uid
    assert found["metadata"]["annotations"]["vgpu.dev/pod-uid"] == pod.metadata.uid
    assert found["spec"]["devices"]["requests"] == [
        {"name": "main", "exactly": {"deviceClassName": "vgpu.dev", "count": 1}}
    ]
    assert results(world, pod) == [
        {
            "request": "main",
            "driver": "vgpu.dev",
            "pool": "node-1",
            "device": dra.device_name("GPU-0"),
            "shareID": dra.share_id(allocation.id, "main"),
            "consumedCapacity": {"memory": "8Gi", "cores": "30"},
        }
    ]
    (term,) = found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    }
    assert found["status"]["allocation"]["allocationTimestamp"]
    verbs = [verb for verb, name in world.api.log if name != "pod-1"]
    assert verbs == [
        "create vgpuclaims",
        "patch status",
        "create resourceclaims",
        "patch status",
        "patch status",
    ]
    assert allocation.resource_claim_uid == found["metadata"]["uid"]


async def test_a_claim_whose_only_request_has_no_name_goes_to_the_container_that_uses_it() -> None:
    """The API server refuses a request of a ResourceClaim that has no name."""
    world = replica()
    claim = world.claim(a_claim("mine", requests=[a_request(memory="1Gi", count=1)]))
    raw = a_pod(annotations={ANNOTATION_CLAIM: "mine"}).to_wire()
    raw["spec"]["containers"] = [{"name": "app"}, {"name": "beside"}]
    pod = seen(world, applied(raw, mutate_pod(raw, CLAIMS, claim, token="0" * 12)))
    await world.settle()
    found, allocation = stored(world, pod), world.claim_of(pod).status.allocation
    assert found is not None
    assert allocation is not None
    exactly = {"deviceClassName": "vgpu.dev", "count": 1}
    assert found["spec"]["devices"]["requests"] == [{"name": "app", "exactly": exactly}]
    (result,) = results(world, pod)
    assert result["request"] == "app"
    assert result["shareID"] == dra.share_id(allocation.id, "app")
    before = found["metadata"]["resourceVersion"]
    await world.settle()
    after = stored(world, pod)
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before, "it shows what it should"


async def test_the_node_is_nominated_so_that_kube_scheduler_looks_at_no_other() -> None:
    world = replica()
    admitted(world)
    await world.settle()
    raw = world.api.objects[(PODS.plural, "default", "pod-1")]
    assert raw["status"]["nominatedNodeName"] == "node-1"


async def test_the_node_is_nominated_before_the_resource_claim_is_allocated() -> None:
    """kube-scheduler tries the pod as soon as it is, and would look at every node."""
    world = replica()
    written: list[tuple[str, str]] = []
    world.api.before = lambda verb, name: written.append((verb, name))
    pod = admitted(world)
    await world.settle()
    (nominated,) = [at for at, (verb, name) in enumerate(written) if name == "pod-1"]
    made = [
        at
        for at, (_, name) in enumerate(written)
        if name == pod.spec.resource_claims[0].resource_claim_name
    ]
    assert nominated < min(made)


async def test_nothing_is_allocated_before_the_claim_is_written() -> None:
    world = replica()
    world.api.before = lambda verb, name: (
        Forbidden("no", status=403) if name.startswith("pod-1-") and "status" in verb else None
    )
    pod = admitted(world)
    await world.settle()
    assert stored(world, pod) is None


async def test_a_pod_that_fits_nowhere_gets_no_resource_claim_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica(cpu="0")
    told = recorded(world, monkeypatch)
    pod = admitted(world)
    seen(world, {**pod.to_wire(), "metadata": {**pod.to_wire()["metadata"]}})
    world.news.device_gone("gpu-0")
    await world.told()
    assert stored(world, pod) is None
    assert told


async def test_a_handed_over_pod_keeps_its_devices_however_long_it_waits() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    world.time += 3600.0
    await world.settle()
    assert world.claim_of(pod).status.allocation is not None
    held = world.reservation(pod)
    assert held is not None
    assert held.phase is Phase.BOUND


async def test_a_bound_pod_ends_the_reservation_and_a_released_claim_frees_everything() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    bind(world, pod)
    await world.settle()
    assert world.reservation(pod) is None
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192
    raw = copy.deepcopy(world.api.objects[(PODS.plural, "default", "pod-1")])
    raw["status"]["phase"] = "Succeeded"
    seen(world, raw)
    release(world, pod)
    await world.settle()
    assert use_of(world.ledger, "GPU-0").memory_mib == 0
    assert results(world, pod) != [], "it is still reserved for the pod, so it stays"
    found = copy.deepcopy(stored(world, pod))
    assert found is not None
    del found["status"]["reservedFor"]
    changed(world, found)
    await world.settle()
    assert results(world, pod) == []
    left = stored(world, pod)
    assert left is not None
    assert left["metadata"]["finalizers"] == []


async def test_devices_in_use_are_kept_with_the_resource_claim_of_a_deleted_pod() -> None:
    """After a forced deletion the pod is gone, but its containers may still run."""
    world = replica()
    pod = admitted(world)
    await world.settle()
    bind(world, pod)
    await world.settle()
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(pod.metadata.uid)
    going = copy.deepcopy(stored(world, pod))
    assert going is not None
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    going["status"].pop("reservedFor")
    changed(world, going)
    await world.settle()
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192
    assert results(world, pod) != []
    claim = next(iter(world.cache.claims())).to_wire()
    claim["status"]["released"] = {"allocationID": claim["status"]["allocation"]["id"]}
    world.claim(VGPUClaim.read(claim))
    await world.settle()
    assert use_of(world.ledger, "GPU-0").memory_mib == 0
    assert stored(world, pod) is None


async def test_a_pod_deleted_before_it_is_bound_leaves_nothing() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(pod.metadata.uid)
    going = copy.deepcopy(stored(world, pod))
    assert going is not None
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    changed(world, going)
    await world.settle()
    assert use_of(world.ledger, "GPU-0").memory_mib == 0
    assert stored(world, pod) is None


async def test_another_node_is_chosen_when_kube_scheduler_takes_the_allocation_away() -> None:
    world = replica("node-1", "node-2")
    pod = admitted(world)
    await world.settle()
    first = node_of(world, pod)
    kube_scheduler_takes_away(world, pod)
    await world.settle()
    second = node_of(world, pod)
    found = stored(world, pod)
    assert found is not None
    assert {first, second} == {"node-1", "node-2"}
    allocation = world.claim_of(pod).status.allocation
    assert allocation is not None
    assert allocation.node_name == second
    assert allocation.resource_claim_uid == found["metadata"]["uid"]
    assert use_of(world.ledger, f"GPU-{int(first[-1]) - 1}").memory_mib == 0


async def test_the_same_node_is_tried_again_after_longer_and_longer_waits() -> None:
    """kube-scheduler rejects the node at once, thirty times a second."""
    world = replica()
    pod = admitted(world)
    await world.settle()
    waits = []
    for _ in range(8):
        kube_scheduler_takes_away(world, pod)
        await world.settle()
        since = world.time
        while not node_of(world, pod):
            assert use_of(world.ledger, "GPU-0").memory_mib == 0
            world.time += 1.0
            await world.settle()
        waits.append(world.time - since)
    assert all(1.0 <= wait <= 31.0 for wait in waits)
    assert waits[:5] == sorted(waits[:5])
    assert waits[-1] >= 30.0


async def test_a_pod_that_fits_on_no_node_gives_its_devices_back_after_a_while() -> None:
    """kube-scheduler deallocates nothing if no other node fits."""
    world = replica()
    pod = admitted(world)
    await world.settle()
    unschedulable(world, pod)
    await world.settle()
    assert node_of(world, pod) == "node-1"
    world.time += STUCK_S
    await world.settle()
    assert (node_of(world, pod), use_of(world.ledger, "GPU-0").memory_mib) == ("", 0)
    assert stored(world, pod) is not None
    assert ("delete", "pod-1") not in world.api.log


async def test_a_claim_that_is_reserved_is_not_taken_back() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    found = copy.deepcopy(stored(world, pod))
    assert found is not None
    found["status"]["reservedFor"] = [{"resource": "pods", "uid": pod.metadata.uid}]
    changed(world, found)
    unschedulable(world, pod)
    world.time += STUCK_S * 3
    await world.settle()
    assert node_of(world, pod) == "node-1"
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192


async def test_a_resource_claim_that_somebody_deletes_is_made_again_for_the_same_devices() -> None:
    world = replica("node-1", "node-2")
    pod = admitted(world)
    await world.settle()
    before = results(world, pod)
    going = copy.deepcopy(stored(world, pod))
    assert going is not None
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    changed(world, going)
    await world.settle()
    assert results(world, pod) == before
    assert stored(world, pod) != going


async def test_a_forged_allocation_is_replaced() -> None:
    world = replica("node-1", "node-2")
    pod = admitted(world)
    await world.settle()
    before = results(world, pod)
    forged = copy.deepcopy(stored(world, pod))
    assert forged is not None
    (result,) = forged["status"]["allocation"]["devices"]["results"]
    result["shareID"] = "00000000-0000-0000-0000-000000000009"
    changed(world, forged)
    await world.settle()
    assert results(world, pod) == before
    assert use_of(world.ledger, f"GPU-{int(before[0]['pool'][-1]) - 1}").memory_mib == 8192


@pytest.mark.parametrize("is_made", [False, True])
async def test_a_successor_goes_on_from_either_side_of_the_writes(*, is_made: bool) -> None:
    api = MemoryApi()
    world = replica(api=api)
    api.before = lambda verb, name: (
        Forbidden("no", status=403)
        if name.startswith("vgpu-")
        and verb == ("patch status" if is_made else "create resourceclaims")
        else None
    )
    pod = admitted(world)
    await world.settle()
    allocation = world.claim_of(pod).status.allocation
    assert allocation is not None
    assert (stored(world, pod) is not None) == is_made
    api.before = lambda verb, name: None
    successor = replica(api=api)
    successor.news.claim_changed(world.claim_of(pod))
    successor.news.pod_changed(pod)
    found = stored(world, pod)
    if found is not None:
        successor.news.resource_claim_changed(ResourceClaim.model_validate(found))
    successor.engine.lead()
    await successor.settle()
    again = successor.claim_of(pod).status.allocation
    assert again is not None
    assert again.id == allocation.id
    assert [each["shareID"] for each in results(successor, pod)] == [
        dra.share_id(allocation.id, "main")
    ]


async def test_a_lost_answer_is_read_from_the_resource_claim() -> None:
    world = replica()
    world.api.after = lambda verb, name: (
        Unknown("lost") if name.startswith("vgpu-") and verb == "patch status" else None
    )
    pod = admitted(world)
    await world.settle()
    held = world.reservation(pod)
    assert held is not None
    assert held.phase is Phase.BOUND
    assert node_of(world, pod) == "node-1"


async def test_a_refused_write_is_tried_again_and_its_devices_are_not_kept_for_ever() -> None:
    world = replica()
    world.api.before = lambda verb, name: (
        Forbidden("no", status=403) if name.startswith("vgpu-") else None
    )
    pod = admitted(world)
    await world.settle()
    world.api.before = lambda verb, name: None
    world.time += OFFERED_S
    for _ in range(4):
        await world.settle()
        world.time += 6.0
    assert node_of(world, pod) == "node-1"


async def test_two_pods_of_one_copied_manifest_do_not_share_a_resource_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    first = admitted(world, token="a" * 12)
    await world.settle()
    second = admitted(world, "pod-2", token="a" * 12)
    await world.told()
    assert name_of(first) == name_of(second)
    (owner,) = (stored(world, first) or {})["metadata"]["ownerReferences"]
    assert owner["uid"] == first.metadata.uid
    assert "ClaimNotOwned" in {each["reason"] for each in told}
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192


async def test_of_two_pods_decided_at_once_for_one_resource_claim_the_second_gives_back() -> None:
    """Neither is refused before one of them has its ResourceClaim."""
    world = replica("node-1", "node-2")
    pods = [admitted(world, name, token="a" * 12) for name in ("pod-1", "pod-2")]
    await world.settle()
    for _ in range(3):
        world.time += OFFERED_S
        await world.settle()
    (owner,) = (stored(world, pods[0]) or {})["metadata"]["ownerReferences"]
    (there,) = results(world, pods[0])
    served = next(pod for pod in pods if pod.metadata.uid == owner["uid"])
    allocation = world.claim_of(served).status.allocation
    assert allocation is not None
    assert there["shareID"] == dra.share_id(allocation.id, "main")
    used = [use_of(world.ledger, f"GPU-{number}").memory_mib for number in range(2)]
    assert sorted(used) == [0, 8192]


@pytest.mark.parametrize("entry", ["gpu", "vgpu"])
async def test_a_pod_that_asks_for_nothing_and_names_the_claim_of_another_is_told_once(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    first = admitted(world)
    await world.settle()
    raw = a_pod("thief").to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": entry}]}}]
    raw["spec"]["resourceClaims"] = [{"name": entry, "resourceClaimName": name_of(first)}]
    reader = PodReader(CLAIMS, has_room=True)
    for _ in range(2):
        world.news.pod_changed(reader.read(world.api.put(PODS, raw)))
        await world.settle()
    (only,) = (each for each in told if each["reason"] == "ClaimNotOwned")
    assert only["note"].startswith(f'spec.resourceClaims: Invalid value: "{name_of(first)}"')
    assert "ask by resources" in only["note"]
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192


async def test_the_claim_of_another_beside_the_own_is_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    first = admitted(world)
    raw = a_pod("thief").to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"limits": dict(LIMITS)}}]
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name_of(first)}]
    seen(world, applied(raw, mutate_pod(raw, CLAIMS, None, token="d" * 12)))
    await world.settle()
    assert [each["reason"] for each in told] == ["ClaimNotOwned"]


async def test_a_new_leader_tells_what_it_saw_before_it_led(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    world.engine.follow()
    raw = a_pod("thief").to_wire()
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"vgpu-{'a' * 12}"}]
    seen(world, raw)
    told = recorded(world, monkeypatch)
    world.engine.lead()
    await world.settle()
    assert [each["reason"] for each in told] == ["ClaimNotOwned"]


async def test_a_pod_bound_by_hand_gets_its_resource_claim_on_its_node() -> None:
    world = replica("node-1", "node-2")
    raw = a_pod("pod-1").to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"limits": dict(LIMITS)}}]
    raw = applied(raw, mutate_pod(raw, CLAIMS, None, token="b" * 12))
    raw["spec"]["nodeName"] = "node-2"
    pod = seen(world, raw)
    await world.settle()
    assert node_of(world, pod) == "node-2"


async def test_in_another_mode_nothing_is_allocated_and_the_pod_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Replica()
    told = recorded(world, monkeypatch)
    world.device(uuid="GPU-0", node="node-1")
    pod = admitted(world)
    await world.told()
    assert stored(world, pod) is None
    assert [each["reason"] for each in told] == ["Gated"]


async def test_the_resource_claim_names_the_claim_that_it_shows() -> None:
    world = replica()
    pod = admitted(world)
    await world.settle()
    found = stored(world, pod)
    assert found is not None
    name = found["metadata"]["annotations"][ANNOTATION_CLAIM]
    assert (VGPU_CLAIMS.plural, "default", name) in world.api.objects


async def test_claims_of_other_classes_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    exactly = {"exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", **exactly}]}},
    }
    changed(world, claim)
    await world.settle()
    assert told == []
    assert list(world.cache.resource_claims) == []


WHOLE = {"nvidia.com/gpu": 1}


def of_gang(world: Replica, name: str, least: int, **fields: Any) -> Pod:
    words = {ANNOTATION_GROUP: "gang", ANNOTATION_GROUP_MIN: str(least)}
    raw = a_pod(name, annotations=words, **fields).to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"limits": dict(WHOLE)}}]
    token = f"{int(name[-1]):012x}"
    return seen(world, applied(raw, mutate_pod(raw, CLAIMS, None, token=token)))


async def test_the_pods_of_a_gang_are_handed_over_together() -> None:
    world = replica("node-1", "node-2")
    first = of_gang(world, "gang-1", 2)
    await world.settle()
    assert stored(world, first) is None
    second = of_gang(world, "gang-2", 2)
    await world.settle()
    assert {node_of(world, first), node_of(world, second)} == {"node-1", "node-2"}


async def test_a_gang_without_room_holds_nothing_and_a_pod_beside_it_is_handed_over() -> None:
    world = replica("node-1", "node-2")
    gang = [of_gang(world, f"gang-{number}", 3) for number in range(3)]
    await world.settle()
    lone = admitted(world)
    await world.settle()
    assert [stored(world, pod) for pod in gang] == [None] * 3
    assert node_of(world, lone)


async def test_a_more_important_pod_takes_the_devices_of_one_that_runs() -> None:
    scheduling = {"mode": "Claims", "preemption": {"enabled": True}}
    config = ClusterConfig.model_validate({"scheduling": scheduling})
    world = Replica(config=config)
    world.news.node_changed(a_node("node-1", allocatable=ROOM))
    world.news.device_changed(a_device(uuid="GPU-0", node="node-1", memory_mib=8192))
    world.engine.observe(events.BudgetsListed())
    small = admitted(world, priority=0)
    await world.settle()
    bind(world, small)
    await world.settle()
    large = admitted(world, "large", token="c" * 12, priority=1000)
    await world.settle()
    world.time += 1.0
    await world.settle()
    assert ("evict", "pod-1") in world.api.log
    assert stored(world, large) is None, "not before the devices are free"
