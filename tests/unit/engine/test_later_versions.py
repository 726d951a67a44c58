"""Fields that a replica of a later version added to a claim survive and are not interpreted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import a_claim, a_container, a_device, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.effective import Use
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED
from vgpu_api.reasons import Reason
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.object_writer import ObjectWriter
from vgpu_operator.engine.leader.fence import Fence
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

ADDED = ("partOfLater", {"any": ["value", 1]})


async def a_claim_with_added_fields(replica: Replica) -> tuple[Pod, str]:
    """Return a running pod's claim with an unknown field at each level of its status."""
    replica.device(memory_mib=16_384)
    pod = a_pod(
        "pod-1",
        node="node-1",
        containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000})],
    )
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    raw = replica.api.claim(name)
    raw["status"]["conditions"].append({"type": "Later", "status": "True"})
    for place in places(raw):
        place.update([ADDED])
    observe(replica, raw)
    return pod, name


def places(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all objects in a claim's status to which a later version may add a field."""
    status = raw["status"]
    allocation = [status["allocation"]] if "allocation" in status else []
    devices = [device for each in allocation for device in each["devices"]]
    return [status, *allocation, *devices, *status["conditions"]]


def observe(replica: Replica, raw: dict[str, Any]) -> VGPUClaim:
    claim = VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw))
    replica.news.claim_changed(claim)
    return claim


async def test_a_resize_leaves_fields_that_are_not_known(replica: Replica) -> None:
    _, name = await a_claim_with_added_fields(replica)
    raw = replica.api.claim(name)
    raw["spec"]["requests"][0]["memory"] = "8000Mi"
    raw["metadata"]["generation"] = 2
    observe(replica, raw)
    await replica.settle()
    raw = replica.api.claim(name)
    assert VGPUClaim.read(raw).status.allocation.devices[0].memory_mib == 8000
    assert all(ADDED in place.items() for place in places(raw))


async def test_a_release_leaves_fields_that_are_not_about_the_allocation(replica: Replica) -> None:
    pod, name = await a_claim_with_added_fields(replica)
    raw = replica.api.claim(name)
    raw["metadata"]["ownerReferences"] = []
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    observe(replica, raw)
    replica.news.pod_changed(
        a_pod(
            "pod-1",
            node="node-1",
            phase="Succeeded",
            containers=pod.spec.containers,
            resource_version=9,
        )
    )
    await replica.settle()
    raw = replica.api.claim(name)
    assert "allocation" not in raw["status"]
    assert [place.get("type", "status") for place in places(raw) if ADDED in place.items()] == [
        "status",
        "Allocated",
        "Ready",
        "Later",
    ]


async def test_the_touch_of_a_new_leader_leaves_fields_that_are_not_known(
    replica: Replica,
) -> None:
    raw = a_claim("open", requests=[a_request(memory="4Gi")]).to_wire()
    raw["status"] = {
        "observedGeneration": -1,
        "conditions": [{"type": "Later", "status": "True", **dict([ADDED])}],
        **dict([ADDED]),
    }
    observe(replica, raw)

    class Follows:
        async def reach(self, version: int) -> None:
            pass

        relist = reach

    fence = Fence(
        api=replica.api,
        writer=ObjectWriter(replica.api),
        clock=replica.clock,
        cache=replica.cache,
        claims=Follows(),
        pods=Follows(),
        others=[],
        engine=replica.engine,
    )
    before = copy.deepcopy(replica.api.claim("open")["status"])
    assert await fence.close("operator-1_5eed") == 1
    assert replica.api.claim("open")["status"] == {**before, "decider": "operator-1_5eed"}


LATER = [
    pytest.param(("spec", "bindingMode"), "Deferred", id="bindingMode"),
    pytest.param(("spec", "requests", 0, "mode"), "Fractional", id="mode"),
    pytest.param(("spec", "requests", 0, "phase"), "Sidecar", id="phase"),
    pytest.param(("spec", "requests", 0, "corePolicy"), "Lend", id="corePolicy"),
    pytest.param(("spec", "placement"), {"device": ["Binpack", "Random"]}, id="placement"),
    pytest.param(("status", "state"), "Parked", id="state"),
    pytest.param(("status", "conditions", 0, "status"), "Maybe", id="condition"),
]


def set_at(raw: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    *parents, last = path
    place: Any = raw
    for step in parents:
        place = place[step]
    place[last] = value


@pytest.mark.parametrize(("path", "value"), LATER)
async def test_a_claim_with_an_unknown_value_holds_what_it_was_given_and_is_left_alone(
    replica: Replica, path: tuple[Any, ...], value: Any
) -> None:
    replica.device(memory_mib=16_384)
    pod = replica.offered(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000})
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    raw = replica.api.claim(name)
    set_at(raw, path, value)
    observe(replica, raw)
    written = list(replica.api.log)
    replica.news.pod_gone(pod.metadata.uid)
    replica.time += 3600.0
    await replica.settle()
    assert replica.api.log == written
    assert use_of(replica.ledger, "GPU-0") == Use(4000, 0, 1)
    other = replica.pod("other", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 12_000})
    assert isinstance(replica.offer(other), Reservation)


async def test_a_pod_whose_claim_has_an_unknown_value_is_refused_with_the_field_and_the_value(
    replica: Replica,
) -> None:
    replica.device()
    raw = a_claim("mine", requests=[a_request(memory="4Gi")]).to_wire()
    raw["spec"]["bindingMode"] = "Deferred"
    raw["spec"]["placement"] = {"device": ["Binpack", "Random"]}
    observe(replica, raw)
    pod = a_pod(
        "pod-1",
        annotations={ANNOTATION_CLAIM: "mine", ANNOTATION_SLOTS_ADDED: "main"},
        containers=[a_container(limits={"nvidia.com/gpu": 1})],
    )
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    refusal = replica.offer(pod)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CLAIM_UNREADABLE
    assert 'spec.bindingMode: "Deferred"' in refusal.message
    assert 'spec.placement.device[1]: "Random"' in refusal.message


async def test_an_immediate_claim_with_an_unknown_value_is_not_decided(replica: Replica) -> None:
    replica.device()
    raw = a_claim("mine", requests=[a_request(memory="4Gi")], binding_mode="Immediate").to_wire()
    raw["spec"]["requests"][0]["mode"] = "Fractional"
    observe(replica, raw)
    await replica.settle()
    assert replica.api.log == []
    assert use_of(replica.ledger, "GPU-0") == Use()


async def test_what_is_wrong_besides_an_unknown_value_still_makes_a_claim_unreadable() -> None:
    raw = a_claim("mine", requests=[a_request(memory="4Gi")]).to_wire()
    raw["spec"]["bindingMode"] = "Deferred"
    raw["spec"]["requests"][0]["count"] = "many"
    with pytest.raises(ValueError, match="count"):
        VGPUClaim.read(raw)


async def test_nothing_new_is_given_of_a_device_that_is_divided_in_an_unknown_way(
    replica: Replica,
) -> None:
    replica.device(memory_mib=16_384)
    pod = replica.offered(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000})
    await replica.settle()
    raw = a_device(memory_mib=16_384, resource_version=900).to_wire()
    raw["spec"]["mode"] = "TimeSliced"
    replica.news.device_changed(GPUDevice.read(raw))
    assert use_of(replica.ledger, "GPU-0") == Use(4000, 0, 1)
    assert replica.claim_of(pod).status.allocation is not None
    other = replica.pod("other", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
    assert isinstance(replica.offer(other), Refusal)


@pytest.mark.parametrize("age", [0, 1])
async def test_late_news_that_a_claim_was_unreadable_does_not_keep_it_from_going(
    replica: Replica, age: int
) -> None:
    """The claim was readable at this or a newer version, and no other event will come."""
    replica.device()
    raw = a_claim("mine", requests=[a_request(memory="4Gi")], binding_mode="Immediate").to_wire()
    observe(replica, raw)
    await replica.settle()
    raw = copy.deepcopy(replica.api.claim("mine"))
    assert raw["metadata"]["finalizers"]
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    observe(replica, raw)
    late = copy.deepcopy(replica.api.claim("mine"))
    late["metadata"]["resourceVersion"] = str(int(late["metadata"]["resourceVersion"]) - age)
    replica.news.claim_unreadable(late)
    await replica.settle()
    assert not replica.api.claim("mine")["metadata"].get("finalizers")
