"""Claims mode: ResourceClaims that users have made are allocated for one pod after the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import CLAIMS, ROOM, a_node, a_pod
from claims_world import bind, changed, node_of, recorded, release, replica, results, seen, stored
from replica import Replica
from vgpu_api import dra
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_POD_UID, FINALIZER_IN_USE
from vgpu_api.resources import PODS, RESOURCE_CLAIMS
from vgpu_operator.admission.rules import NamedObjects, ask_by_claims, mutate_pod
from vgpu_operator.admission.rules.json_patch import applied


def a_users_claim(world: Replica, name: str = "mine", uid: str = "", **exactly: Any) -> None:
    """Create a ResourceClaim as a user writes it; the operator sees it."""
    wanted = {"deviceClassName": "vgpu.dev", **exactly}
    metadata = {"name": name, "namespace": "default", **({"uid": uid} if uid else {})}
    claim = {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}},
    }
    changed(world, claim)


def naming(world: Replica, name: str = "pod-1", claim: str = "mine", **fields: Any) -> Pod:
    """Return a pod that names a user's ResourceClaim, as the webhook leaves it."""
    raw = a_pod(name, **fields).to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    there = world.api.objects[(RESOURCE_CLAIMS.plural, "default", claim)]
    found = NamedObjects({}, {"gpu": there})
    raw = applied(raw, ask_by_claims(raw, found, CLAIMS))
    return seen(world, applied(raw, mutate_pod(raw, CLAIMS, None, token="e" * 12)))


def capacity(**requests: Any) -> dict[str, Any]:
    return {"capacity": {"requests": requests}}


async def test_a_claim_that_a_user_made_is_allocated_for_the_pod_that_names_it() -> None:
    world = replica()
    a_users_claim(world, **capacity(memory="4Gi", cores=20))
    pod = naming(world)
    await world.settle()
    allocation = world.claim_of(pod).status.allocation
    found = stored(world, pod)
    assert allocation is not None
    assert found is not None
    assert results(world, pod) == [
        {
            "request": "gpu",
            "driver": "vgpu.dev",
            "pool": "node-1",
            "device": dra.device_name("GPU-0"),
            "shareID": dra.share_id(allocation.id, "main"),
            "consumedCapacity": {"memory": "4Gi", "cores": "20"},
        }
    ]
    assert found["metadata"]["finalizers"] == [FINALIZER_IN_USE]
    assert found["metadata"]["annotations"] == {
        ANNOTATION_CLAIM: world.claim_of(pod).metadata.name,
        ANNOTATION_POD_UID: pod.metadata.uid,
    }
    assert allocation.resource_claim_uid == found["metadata"]["uid"]


async def test_of_two_pods_that_name_one_claim_the_second_waits_for_the_end_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    a_users_claim(world, **capacity(memory="4Gi"))
    first = naming(world)
    second = naming(world, "pod-2")
    await world.told()
    assert world.claim_of(first).status.allocation is not None
    (event,) = (each for each in told if each["reason"] == "ClaimInUse")
    assert "ResourceClaim mine serves pod-1, and one pod at a time" in event["note"]
    bind(world, first)
    await world.settle()
    ended = copy.deepcopy(world.api.objects[(PODS.plural, "default", "pod-1")])
    ended["status"]["phase"] = "Succeeded"
    seen(world, ended)
    release(world, first)
    await world.settle()
    assert world.reservation(second) is None
    found = copy.deepcopy(stored(world, first))
    assert found is not None
    del found["status"]["reservedFor"]
    changed(world, found)
    await world.settle()
    found = stored(world, second)
    assert found is not None
    assert found["metadata"]["annotations"][ANNOTATION_POD_UID] == second.metadata.uid
    allocation = world.claim_of(second).status.allocation
    assert allocation is not None
    assert [each["shareID"] for each in results(world, second)] == [
        dra.share_id(allocation.id, "main")
    ]


async def test_the_next_pod_gets_the_claim_if_the_first_is_deleted_before_it_was_served() -> None:
    world = replica(cpu="0")
    a_users_claim(world)
    first = naming(world)
    second = naming(world, "pod-2")
    await world.settle()
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(first.metadata.uid)
    world.news.node_changed(a_node("node-1", allocatable=ROOM, resource_version=2))
    await world.settle()
    assert node_of(world, second) == "node-1"


async def test_a_claim_of_a_user_stays_when_its_pod_has_ended() -> None:
    world = replica()
    a_users_claim(world)
    pod = naming(world)
    await world.settle()
    bind(world, pod)
    await world.settle()
    release(world, pod)
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(pod.metadata.uid)
    found = copy.deepcopy(stored(world, pod))
    assert found is not None
    del found["status"]["reservedFor"]
    changed(world, found)
    await world.settle()
    left = stored(world, pod)
    assert left is not None
    assert left["metadata"]["finalizers"] == []
    assert "allocation" not in left["status"]


async def test_a_claim_that_was_made_anew_is_not_taken_for_the_one_that_admission_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica(cpu="0")
    told = recorded(world, monkeypatch)
    a_users_claim(world, uid="former", **capacity(memory="1Gi"))
    naming(world)
    await world.told()
    world.api.vanish(RESOURCE_CLAIMS, "mine")
    world.news.resource_claim_gone("default", "mine", "former")
    a_users_claim(world, uid="new", **capacity(memory="16Gi"))
    await world.told()
    assert "RequestMismatch" in {each["reason"] for each in told}


async def test_a_pod_that_waits_for_a_claim_that_was_made_anew_does_not_stop_the_next() -> None:
    world = replica(cpu="0")
    a_users_claim(world, uid="former")
    naming(world)
    world.api.vanish(RESOURCE_CLAIMS, "mine")
    world.news.resource_claim_gone("default", "mine", "former")
    a_users_claim(world, uid="new")
    second = naming(world, "pod-2")
    await world.settle()
    world.news.node_changed(a_node("node-1", allocatable=ROOM, resource_version=2))
    await world.settle()
    assert node_of(world, second) == "node-1"


async def test_pods_behind_the_first_of_a_claim_are_not_judged_at_each_change_of_it() -> None:
    world = replica()
    a_users_claim(world)
    first = naming(world, "pod-0")
    for number in range(1, 200):
        naming(world, f"pod-{number}")
    await world.settle()
    assert node_of(world, first) == "node-1"
    changed(world, copy.deepcopy(stored(world, first) or {}))
    world.engine.observe_all()
    assert set(world.state.pods.due) <= {first.metadata.uid}


async def test_a_pod_that_was_made_before_its_claim_is_told_to_be_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    raw = a_pod("early").to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    seen(world, raw)
    await world.settle()
    assert told == []
    a_users_claim(world)
    await world.settle()
    (only,) = told
    assert only["reason"] == "ClaimNotOwned"
    assert "admission has not read this ResourceClaim for the pod" in only["note"]


@pytest.mark.parametrize(
    ("owners", "exactly", "sentence"),
    [
        (
            [],
            {"allocationMode": "All"},
            "resourceclaims/mine: spec.devices.requests[0].exactly.allocationMode: "
            'Unsupported value: "All": supported values: "ExactCount"',
        ),
        ([], {"adminAccess": True}, "exactly.adminAccess: Forbidden"),
        ([{"kind": "Pod", "uid": "of-a-pod"}], {}, "create the pod anew"),
    ],
)
async def test_a_claim_of_our_class_that_is_not_served_is_told_so_once(
    monkeypatch: pytest.MonkeyPatch,
    owners: list[dict[str, str]],
    exactly: dict[str, Any],
    sentence: str,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    wanted = {"exactly": {"deviceClassName": "vgpu.dev", **exactly}}
    claim = {
        "metadata": {"name": "mine", "namespace": "default", "ownerReferences": owners},
        "spec": {"devices": {"requests": [{"name": "gpu", **wanted}]}},
    }
    changed(world, claim)
    await world.settle()
    changed(world, claim)
    await world.settle()
    (only,) = told
    assert only["reason"] == "Unsupported"
    assert sentence in only["note"]


async def test_a_claim_that_can_be_served_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    a_users_claim(world, count=2)
    await world.settle()
    assert told == []
