"""After its pod, a claim holds nothing, serves other pods, and is deleted or allocated again."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_device, a_node, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import Unknown
from vgpu_operator.engine.claims.lifecycle import UNUSABLE_S
from vgpu_operator.extender.wire import BindRequest


def a_user(name: str = "pod-1", **fields: Any) -> Any:
    annotations = {ANNOTATION_CLAIM: "mine", ANNOTATION_SLOTS_ADDED: "main"}
    return a_pod(name, annotations=annotations, **fields)


def exists(replica: Replica) -> bool:
    return (VGPU_CLAIMS.plural, "default", "mine") in replica.api.objects


def status(replica: Replica) -> dict[str, Any]:
    found: dict[str, Any] = replica.api.claim("mine")["status"]
    return found


async def used_and_released(replica: Replica, **spec: Any) -> None:
    """Make a user's claim whose pod has ended and which the agent has reported as released."""
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(memory="4Gi")], **spec))
    await runs_and_ends(replica, "pod-1")


async def runs_and_ends(replica: Replica, name: str) -> None:
    pod = a_user(name)
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    assert await replica.binder.bind(BindRequest("default", name, f"uid-of-{name}", "node-1")) == ""
    replica.news.pod_changed(a_user(name, node="node-1", resource_version=500, phase="Running"))
    replica.news.pod_changed(a_user(name, node="node-1", resource_version=501, phase="Succeeded"))
    await replica.settle()
    raw = replica.api.claim("mine")
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    replica.claim(VGPUClaim.read(raw))
    await replica.settle()


async def test_without_a_ttl_a_used_claim_is_kept_released_and_holds_nothing(
    replica: Replica,
) -> None:
    await used_and_released(replica)
    replica.time += 1e9
    await replica.settle()
    assert status(replica)["state"] == "Released"
    assert "allocation" not in status(replica)
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_a_released_claim_is_ready_because_nothing_is_left_to_do(replica: Replica) -> None:
    await used_and_released(replica)
    conditions = {each["type"]: each for each in status(replica)["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("True", "Released")
    assert conditions["Allocated"]["status"] == "False"


@pytest.mark.parametrize("mode", ["WaitForFirstConsumer", "Immediate"])
async def test_a_released_claim_serves_the_next_pod(replica: Replica, mode: str) -> None:
    await used_and_released(replica, binding_mode=mode)
    assert "allocation" not in status(replica)
    await runs_and_ends(replica, "pod-2")
    assert status(replica)["state"] == "Released"


async def test_a_claim_goes_its_ttl_after_its_pod_ended_and_not_before(replica: Replica) -> None:
    await used_and_released(replica, ttl_seconds_after_unused=60)
    replica.time += 59
    await replica.settle()
    assert exists(replica)
    replica.time += 1
    await replica.settle()
    assert not exists(replica)


async def test_a_ttl_of_nothing_deletes_at_once(replica: Replica) -> None:
    await used_and_released(replica, ttl_seconds_after_unused=0)
    assert not exists(replica)


async def test_the_time_of_a_ttl_goes_on_under_a_new_leader(replica: Replica) -> None:
    await used_and_released(replica, ttl_seconds_after_unused=60)
    successor = type(replica)()
    successor.api.objects = replica.api.objects
    successor.time = replica.time + 59
    successor.news.claim_changed(VGPUClaim.read(replica.api.claim("mine")))
    await successor.settle()
    assert exists(replica)
    successor.time += 1
    await successor.settle()
    assert not exists(replica)


async def test_a_claim_that_was_never_used_has_no_end(replica: Replica) -> None:
    replica.claim(a_claim("mine", requests=[a_request()], ttl_seconds_after_unused=0))
    await replica.settle()
    replica.time += 1e9
    await replica.settle()
    assert exists(replica)


async def test_a_claim_that_a_pod_waits_for_is_not_deleted(replica: Replica) -> None:
    await used_and_released(replica, ttl_seconds_after_unused=60)
    replica.news.node_changed(a_node("node-1", unschedulable=True, resource_version=700))
    replica.news.pod_changed(a_user("pod-2"))
    replica.time += 3600
    await replica.settle()
    assert exists(replica)
    replica.news.pod_gone("uid-of-pod-2")
    await replica.settle()
    assert not exists(replica)


async def test_a_claim_used_again_as_its_time_is_up_stays(replica: Replica) -> None:
    """The deletion names the version that it is based on."""
    await used_and_released(replica, ttl_seconds_after_unused=60)
    replica.api.put(VGPU_CLAIMS, replica.api.claim("mine"))  # changed, but not yet seen
    replica.time += 60
    await replica.settle()
    assert exists(replica)


async def test_a_deletion_without_an_answer_is_tried_again(replica: Replica) -> None:
    await used_and_released(replica, ttl_seconds_after_unused=60)
    lost = [Unknown("no answer")]
    replica.api.before = lambda verb, _: lost.pop() if verb == "delete" and lost else None
    replica.time += 60
    await replica.settle()
    assert not exists(replica)


async def test_a_pods_own_claim_is_not_deleted_by_a_ttl(replica: Replica) -> None:
    """Its pod owns it, so it is deleted with the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": "uid-of-pod-1"}
    replica.device()
    metadata = {"owner_references": [owner]}
    replica.claim(
        a_claim("mine", requests=[a_request()], ttl_seconds_after_unused=0, metadata=metadata)
    )
    await runs_and_ends(replica, "pod-1")
    replica.time += 3600
    await replica.settle()
    assert exists(replica)


async def an_immediate_claim(replica: Replica) -> None:
    replica.device(uuid="GPU-0", node="node-1")
    replica.claim(a_claim("mine", requests=[a_request(memory="4Gi")], binding_mode="Immediate"))
    await replica.settle()
    replica.device(uuid="GPU-1", node="node-2")
    assert status(replica)["allocation"]["nodeName"] == "node-1"


async def for_five_minutes(replica: Replica) -> None:
    replica.time += 1
    await replica.settle()
    replica.time += UNUSABLE_S - 1
    await replica.settle()
    assert status(replica)["allocation"]["nodeName"] == "node-1"
    replica.time += 2
    await replica.settle()


async def test_an_immediate_claim_whose_device_is_gone_is_decided_anew_after_five_minutes(
    replica: Replica,
) -> None:
    await an_immediate_claim(replica)
    replica.news.device_gone("gpu-0")
    await for_five_minutes(replica)
    assert status(replica)["allocation"]["nodeName"] == "node-2"
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_an_immediate_claim_whose_device_is_sick_is_decided_anew_after_five_minutes(
    replica: Replica,
) -> None:
    await an_immediate_claim(replica)
    replica.news.device_changed(a_device(healthy=False, resource_version=2))
    await for_five_minutes(replica)
    assert status(replica)["allocation"]["nodeName"] == "node-2"


async def test_an_immediate_claim_on_a_cordoned_node_is_decided_anew_after_five_minutes(
    replica: Replica,
) -> None:
    await an_immediate_claim(replica)
    replica.news.node_changed(a_node("node-1", unschedulable=True, resource_version=2))
    await for_five_minutes(replica)
    assert status(replica)["allocation"]["nodeName"] == "node-2"


async def test_an_immediate_claim_whose_node_is_gone_is_decided_anew_at_once(
    replica: Replica,
) -> None:
    await an_immediate_claim(replica)
    replica.news.node_gone("node-1")
    await replica.settle()
    assert status(replica)["allocation"]["nodeName"] == "node-2"


async def test_an_immediate_claim_on_a_cordoned_device_keeps_it(replica: Replica) -> None:
    await an_immediate_claim(replica)
    replica.news.device_changed(a_device(cordoned=True, resource_version=2))
    await replica.settle()
    replica.time += 10 * UNUSABLE_S
    await replica.settle()
    assert status(replica)["allocation"]["nodeName"] == "node-1"


async def test_a_device_that_recovers_in_time_keeps_its_immediate_claim(replica: Replica) -> None:
    await an_immediate_claim(replica)
    for version in range(2, 12):
        sick = version % 2 == 0
        replica.news.device_changed(a_device(healthy=not sick, resource_version=version))
        await replica.settle()
        replica.time += UNUSABLE_S / 2
        await replica.settle()
    assert status(replica)["allocation"]["nodeName"] == "node-1"


async def test_an_immediate_claim_that_a_pod_has_is_not_taken_away(replica: Replica) -> None:
    await an_immediate_claim(replica)
    pod = a_user()
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    assert (
        await replica.binder.bind(BindRequest("default", "pod-1", "uid-of-pod-1", "node-1")) == ""
    )
    replica.news.device_changed(a_device(healthy=False, resource_version=2))
    await replica.settle()
    replica.time += 10 * UNUSABLE_S
    await replica.settle()
    assert status(replica)["allocation"]["nodeName"] == "node-1"
