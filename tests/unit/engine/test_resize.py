"""On a resize in place, the ledger grows before the container and shrinks after it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_container, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.effective import Use
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_REQUEUE, ANNOTATION_SLOTS_ADDED
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claims.lifecycle import REFIT_S

DEVICE_MIB = 16_384


def a_quota(mib: int) -> ResourceQuota:
    return ResourceQuota.model_validate(
        {
            "metadata": {"name": "q", "namespace": "default", "resourceVersion": "1"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": str(mib)}},
        }
    )


async def a_running_pod(replica: Replica, name: str = "pod-1", **limits: Any) -> Pod:
    pod = a_pod(
        name,
        node="node-1",
        containers=[a_container(limits={f"nvidia.com/{k}": v for k, v in limits.items()})],
    )
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    report(replica, pod, "Prepared", "True")
    await replica.settle()
    return pod


def raw_of(replica: Replica, pod: Pod) -> dict[str, Any]:
    return replica.api.claim(replica.claim_of(pod).metadata.name)


def observed(replica: Replica, raw: dict[str, Any]) -> None:
    replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))


def report(replica: Replica, pod: Pod, type_: str, status: str) -> None:
    """Set a condition as the agent would, for the claim's current generation."""
    raw = raw_of(replica, pod)
    kept = [c for c in raw["status"]["conditions"] if c["type"] != type_]
    generation = raw["metadata"].get("generation", 1)
    new = {"type": type_, "status": status, "observedGeneration": generation}
    raw["status"]["conditions"] = [*kept, new]
    observed(replica, raw)


async def change(replica: Replica, pod: Pod, **request: Any) -> None:
    raw = raw_of(replica, pod)
    raw["spec"]["requests"][0].update(request)
    raw["metadata"]["generation"] = raw["metadata"].get("generation", 1) + 1
    observed(replica, raw)
    await replica.settle()


def device_of(replica: Replica, pod: Pod) -> tuple[int, int]:
    (device,) = replica.claim_of(pod).status.allocation.devices
    return device.memory_mib, device.cores


@pytest.fixture
async def pod(replica: Replica) -> Pod:
    replica.device(memory_mib=DEVICE_MIB)
    return await a_running_pod(replica, gpu=1, gpumem=4000, gpucores=30)


async def test_more_is_in_the_ledger_and_in_the_allocation_where_there_is_room(
    replica: Replica, pod: Pod
) -> None:
    before = replica.claim_of(pod).status
    await change(replica, pod, memory="8000Mi", cores=50)
    assert device_of(replica, pod) == (8000, 50)
    assert use_of(replica.ledger, "GPU-0") == Use(8000, 50, 1)
    after = replica.claim_of(pod).status
    assert after.allocation.id == before.allocation.id
    assert (after.state, after.reserved_for) == (before.state, before.reserved_for)


@pytest.mark.parametrize(
    "amounts", [{"memory": "13000Mi"}, {"cores": 80}, {"memory": "5000Mi", "cores": 100}]
)
async def test_more_than_is_free_is_given_when_it_is(
    replica: Replica, pod: Pod, amounts: dict[str, Any]
) -> None:
    other = await a_running_pod(replica, "pod-2", gpu=1, gpumem=4000, gpucores=30)
    await change(replica, pod, **amounts)
    assert device_of(replica, pod) == (4000, 30)
    ended = a_pod(
        "pod-2",
        node="node-1",
        phase="Succeeded",
        containers=other.spec.containers,
        resource_version=9,
    )
    raw = raw_of(replica, other)
    allocation = raw["status"]["allocation"]["id"]
    raw["status"]["released"] = {"allocationID": allocation, "time": "2026-01-01T00:00:00Z"}
    observed(replica, raw)
    replica.api.put(PODS, ended.to_wire())
    replica.news.pod_changed(ended)
    await replica.settle()
    replica.time += REFIT_S
    await replica.settle()
    memory = int(amounts.get("memory", "4000Mi")[:-2])
    assert device_of(replica, pod) == (memory, amounts.get("cores", 30))


async def test_all_of_the_compute_is_for_who_has_the_device_alone(
    replica: Replica, pod: Pod
) -> None:
    await a_running_pod(replica, "pod-2", gpu=1, gpumem=1000, gpucores=0)
    await change(replica, pod, cores=100)
    assert device_of(replica, pod) == (4000, 30)


async def test_less_is_free_for_others_only_when_the_agent_has_it_in_place(
    replica: Replica, pod: Pod
) -> None:
    await change(replica, pod, memory="1000Mi", cores=10)
    assert device_of(replica, pod) == (4000, 30)
    report(replica, pod, "Resized", "False")
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0") == Use(4000, 30, 1)
    report(replica, pod, "Resized", "True")
    await replica.settle()
    assert device_of(replica, pod) == (1000, 10)
    assert use_of(replica.ledger, "GPU-0") == Use(1000, 10, 1)


async def test_a_report_about_an_earlier_version_frees_nothing(replica: Replica, pod: Pod) -> None:
    report(replica, pod, "Resized", "True")
    await change(replica, pod, memory="1000Mi")
    assert device_of(replica, pod) == (4000, 30)


async def test_more_of_one_and_less_of_the_other_holds_the_larger_of_both_meanwhile(
    replica: Replica, pod: Pod
) -> None:
    await change(replica, pod, memory="8000Mi", cores=10)
    assert device_of(replica, pod) == (8000, 30)
    report(replica, pod, "Resized", "True")
    await replica.settle()
    assert device_of(replica, pod) == (8000, 10)


async def test_a_changed_percentage_is_in_the_ledger_as_bytes_are(replica: Replica) -> None:
    replica.device(memory_mib=DEVICE_MIB)
    pod = await a_running_pod(replica, gpu=1, **{"gpumem-percentage": 25}, gpucores=30)
    await a_running_pod(replica, "pod-2", gpu=1, gpumem=4096, gpucores=0)
    await change(replica, pod, memoryPercent=75)
    assert device_of(replica, pod) == (12_288, 30)
    assert use_of(replica.ledger, "GPU-0") == Use(DEVICE_MIB, 30, 2)
    await change(replica, pod, memoryPercent=76)
    assert device_of(replica, pod) == (12_288, 30)  # no room
    await change(replica, pod, memoryPercent=10)
    assert device_of(replica, pod) == (12_288, 30)
    report(replica, pod, "Resized", "True")
    await replica.settle()
    assert device_of(replica, pod) == (1638, 30)
    assert use_of(replica.ledger, "GPU-0") == Use(1638 + 4096, 30, 2)


async def test_a_percentage_means_the_memory_that_the_device_had_when_it_was_given(
    replica: Replica,
) -> None:
    """The agent does the same; with the current memory, the operator would free more."""
    replica.device(memory_mib=DEVICE_MIB)
    pod = await a_running_pod(replica, gpu=1, **{"gpumem-percentage": 50})
    replica.device(memory_mib=DEVICE_MIB // 2)
    await replica.settle()
    await change(replica, pod, memoryPercent=25)
    report(replica, pod, "Resized", "True")
    await replica.settle()
    assert device_of(replica, pod) == (DEVICE_MIB // 4, 0)


async def test_a_quota_holds_for_what_is_added(replica: Replica, pod: Pod) -> None:
    replica.news.quota_changed(a_quota(6000))
    await replica.settle()
    await change(replica, pod, memory="6001Mi")
    assert device_of(replica, pod) == (4000, 30)
    await change(replica, pod, memory="6000Mi")
    assert device_of(replica, pod) == (6000, 30)


def generations(replica: Replica, pod: Pod) -> set[int]:
    """Return the generation of the spec, and the generations that the operator has read."""
    raw = raw_of(replica, pod)
    told = [c for c in raw["status"]["conditions"] if c["type"] in ("Allocated", "Ready")]
    return {
        raw["metadata"]["generation"],
        raw["status"]["observedGeneration"],
        *(condition["observedGeneration"] for condition in told),
    }


async def test_a_change_that_asks_for_no_other_amounts_is_marked_as_read(
    replica: Replica, pod: Pod
) -> None:
    raw = raw_of(replica, pod)
    raw["spec"]["ttlSecondsAfterUnused"] = 60
    raw["metadata"]["generation"] = 2
    observed(replica, raw)
    await replica.settle()
    assert generations(replica, pod) == {2}
    written = len(replica.api.log)
    await replica.settle()
    assert len(replica.api.log) == written


async def test_a_change_that_finds_no_room_is_not_marked_as_read_until_it_has(
    replica: Replica, pod: Pod
) -> None:
    await change(replica, pod, memory="900Gi")
    assert generations(replica, pod) == {1, 2}
    await change(replica, pod, memory="5000Mi")
    assert generations(replica, pod) == {3}


async def test_a_resize_that_a_filter_overtakes_is_given_back_with_its_claim(
    replica: Replica,
) -> None:
    """Filter adopts the allocation while the larger one with the same id is being written."""
    replica.device(memory_mib=DEVICE_MIB)
    request = a_request(memory="2Gi", cores=10)
    replica.claim(a_claim("now", requests=[request], binding_mode="Immediate"))
    await replica.settle()
    raw = replica.api.claim("now")
    raw["spec"]["requests"][0].update(memory="12Gi", cores=100)
    raw["metadata"]["generation"] = 2
    replica.api.gate.clear()
    observed(replica, raw)
    replica.submit()
    pod = a_pod("user", annotations={ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"})
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    replica.offer(pod, "node-1")
    replica.api.gate.set()
    await replica.settle()
    replica.api.vanish(PODS, "user")
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    uid = replica.api.claim("now")["metadata"]["uid"]
    replica.api.vanish(VGPU_CLAIMS, "now")
    replica.news.claim_gone(("default", "now"), uid)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0") == Use()


def mark_of(replica: Replica, pod: Pod) -> str:
    metadata = replica.api.objects[("pods", "default", pod.metadata.name)]["metadata"]
    return str(metadata.get("annotations", {}).get(ANNOTATION_REQUEUE, ""))


async def test_each_step_of_a_resize_marks_the_pod_for_its_agent(
    replica: Replica, pod: Pod
) -> None:
    """The agent watches pods and no claims, so it reads the claim when its pod changes."""
    assert mark_of(replica, pod) == ""
    await change(replica, pod, memory="8000Mi")
    grown = mark_of(replica, pod)
    assert grown.startswith("generation 2:")
    await change(replica, pod, memory="2000Mi")
    asked = mark_of(replica, pod)
    assert asked.startswith("generation 3:")
    report(replica, pod, "Resized", "True")
    await replica.settle()
    assert device_of(replica, pod) == (2000, 30)
    assert mark_of(replica, pod) not in {grown, asked}


async def test_a_mark_that_the_pod_shows_is_not_written_again(replica: Replica, pod: Pod) -> None:
    await change(replica, pod, memory="8000Mi")
    raw = replica.api.objects[("pods", "default", pod.metadata.name)]
    replica.news.pod_changed(Pod.model_validate(raw))
    before = len(replica.api.log)
    replica.time += 10
    await replica.settle()
    assert replica.api.log[before:] == []


async def test_a_mark_that_was_overwritten_is_written_again(replica: Replica, pod: Pod) -> None:
    await change(replica, pod, memory="8000Mi")
    mark = mark_of(replica, pod)
    raw = replica.api.objects[("pods", "default", pod.metadata.name)]
    raw["metadata"]["annotations"][ANNOTATION_REQUEUE] = "the agent's own"
    replica.news.pod_changed(Pod.model_validate(replica.api.put(PODS, raw)))
    replica.time += 2
    await replica.settle()
    assert mark_of(replica, pod) == mark


async def test_a_pod_whose_claim_never_changed_is_not_marked(replica: Replica, pod: Pod) -> None:
    replica.time += 10
    report(replica, pod, "Prepared", "True")
    await replica.settle()
    assert mark_of(replica, pod) == ""
