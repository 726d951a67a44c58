from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from vgpu_api.config import NvidiaConfig
from vgpu_api.core.pod import Pod
from vgpu_api.effective import Use
from vgpu_api.names import ANNOTATION_SLOTS_ADDED
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import GPUDeviceSpec, VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_nodeagent.discovery.drivers.base import MigInstance, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity, capacity_of
from vgpu_nodeagent.enforcement.abi import CorePolicy
from vgpu_nodeagent.enforcement.grants import ContainerGrant, container_grant
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.state.claim_instances import ClaimInstance

SLOT = "nvidia.com/gpu"
FULL_MIB = 16384


def terms(**changes: Any) -> Mapping[str, DeviceCapacity]:
    use = Use(FULL_MIB, 100, 10)
    return {uuid: DeviceCapacity(use, use, **changes) for uuid in ("GPU-0", "GPU-1")}


def grant(
    *,
    request: Mapping[str, Any] | None = None,
    memory_mib: int = 4096,
    cores: int = 0,
    container: str = "main",
    pod: Pod | None = None,
    devices: Mapping[str, DeviceCapacity] | None = None,
) -> ContainerGrant:
    wanted = a_request(**{"name": "main", **(request or {})})
    device = an_allocated_device(request=wanted.name, memory_mib=memory_mib, cores=cores)
    allocation = an_allocation(device)
    claim = a_claim(requests=[wanted], allocation=allocation)
    asking = a_pod(containers=[a_container(limits={SLOT: "1"})])
    return container_grant(
        claim,
        allocation,
        pod=pod or asking,
        container=container,
        slot_resource=SLOT,
        capacities=devices or terms(),
    )


def test_a_container_is_refused_as_long_as_its_instance_is_not_made() -> None:
    wanted = a_request(name="main")
    device = an_allocated_device(request="main").model_copy(
        update={"mig": MigAllocation(profile="1g.5gb", start=6, size=1)}
    )
    claim = a_claim(requests=[wanted], allocation=an_allocation(device))
    with pytest.raises(Refused, match="slice 6 of GPU GPU-0 is not made for claim") as refused:
        container_grant(
            claim,
            an_allocation(device),
            pod=a_pod(containers=[a_container(limits={SLOT: "1"})]),
            container="main",
            slot_resource=SLOT,
            capacities=terms(),
        )
    assert refused.value.reason is Why.MIG_PLACE_MISSING


def an_instance_grant(*, made_for: str) -> ContainerGrant:
    """Return the grant of a container with an instance of GPU-0 made for this claim."""
    device = an_allocated_device(request="main").model_copy(
        update={"mig": MigAllocation(profile="1g.5gb", start=6, size=1)}
    )
    claim = a_claim(requests=[a_request(name="main")], allocation=an_allocation(device))
    uid = claim.metadata.uid if made_for == "this" else made_for
    claim_instance = ClaimInstance("GPU-0", MigInstance("1g.5gb", 6, 1, "MIG-6"), uid, "")
    return container_grant(
        claim,
        an_allocation(device),
        pod=a_pod(containers=[a_container(limits={SLOT: "1"})]),
        container="main",
        slot_resource=SLOT,
        capacities=terms(in_mig_mode=True),
        instances={("GPU-0", 6): claim_instance},
    )


def test_an_instance_is_all_its_own_and_runs_without_the_library() -> None:
    made = an_instance_grant(made_for="this")
    assert not made.interposed
    assert made.env()["NVIDIA_VISIBLE_DEVICES"] == "MIG-6"
    assert "CUDA_DEVICE_SM_LIMIT" not in made.env()


def test_an_instance_of_another_claim_is_not_given() -> None:
    with pytest.raises(Refused, match="is not made for claim"):
        an_instance_grant(made_for="another")


def test_a_slice_is_interposed_and_its_limits_stand_in_the_environment() -> None:
    made = grant(cores=30)
    assert made.interposed
    assert made.env() == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096M",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "VGPU_LIMIT_PAGE": "/usr/local/vgpu/limits",
        "VGPU_USAGE_REGION": "/usr/local/vgpu/usage/region",
    }


def test_no_cores_means_no_sm_limit() -> None:
    assert "CUDA_DEVICE_SM_LIMIT" not in grant().env()


@pytest.mark.parametrize("of_request", ["Default", "Disable", "Force"])
def test_no_request_overrides_an_administrators_force(of_request: Any) -> None:
    made = grant(request={"core_policy": of_request}, devices=terms(core_policy="Force"))
    assert made.limits[0].policy is CorePolicy.FORCE


def test_the_core_policy_is_the_requests_before_the_devices() -> None:
    made = grant(request={"core_policy": "Disable"}, devices=terms(core_policy="Default"))
    assert made.limits[0].policy is CorePolicy.DISABLE
    assert made.env()["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert grant(devices=terms(core_policy="Disable")).limits[0].policy is CorePolicy.DISABLE


@pytest.mark.parametrize(
    ("memory_mib", "cores", "request_fields", "interposed"),
    [
        (FULL_MIB, 100, {}, False),
        (FULL_MIB, 99, {}, True),
        (FULL_MIB - 1, 100, {}, True),
        (FULL_MIB, 100, {"core_policy": "Force"}, True),
        (4096, 0, {"mode": "Exclusive"}, False),
    ],
)
def test_only_a_whole_device_runs_without_the_library(
    memory_mib: int, cores: int, request_fields: dict[str, Any], interposed: bool
) -> None:
    made = grant(memory_mib=memory_mib, cores=cores, request=request_fields)
    assert made.interposed is interposed


def test_a_slice_of_an_oversubscribed_device_has_its_part_of_what_there_is() -> None:
    device = DeviceCapacity(Use(FULL_MIB, 100, 10), Use(2 * FULL_MIB, 100, 10))
    made = grant(memory_mib=FULL_MIB, cores=100, devices={"GPU-0": device})
    assert made.interposed, "another claim may have the other half"
    assert made.limits[0].memory_bytes == FULL_MIB * MIB
    assert made.limits[0].physical_bytes == FULL_MIB * MIB // 2
    assert grant().limits[0].physical_bytes == 0


def test_a_priority_arrives_on_the_page_and_is_shown() -> None:
    made = grant(request={"compute_priority": 3})
    assert made.limits[0].priority == 3
    assert made.env()["CUDA_TASK_PRIORITY"] == "3"
    assert "CUDA_TASK_PRIORITY" not in grant(request={"compute_priority": 0}).env()


def test_a_request_without_a_name_is_the_first_asking_containers() -> None:
    pod = a_pod(
        containers=[
            a_container("sidecar"),
            a_container("worker", limits={SLOT: "1"}),
            a_container("other", limits={SLOT: "1"}),
        ]
    )
    assert grant(request={"name": ""}, container="worker", pod=pod).limits
    with pytest.raises(Refused, match="no request named 'other'"):
        grant(request={"name": ""}, container="other", pod=pod)


def test_the_containers_that_admission_recorded_come_before_those_that_are_seen() -> None:
    pod = a_pod(
        annotations={ANNOTATION_SLOTS_ADDED: "worker"},
        containers=[
            a_container("injected", limits={SLOT: "1"}),
            a_container("worker", limits={SLOT: "1"}),
        ],
    )
    assert grant(request={"name": ""}, container="worker", pod=pod).limits
    with pytest.raises(Refused):
        grant(request={"name": ""}, container="injected", pod=pod)


def a_pod_that_came_before_its_claim() -> Pod:
    """Return a pod whose containers all have a slot, because admission did not know the claim."""
    names = ("fetch", "app", "web")
    asking = [a_container(name, limits={SLOT: "1"}) for name in names]
    return a_pod(
        annotations={ANNOTATION_SLOTS_ADDED: ",".join(names)},
        init_containers=asking[:1],
        containers=asking[1:],
    )


@pytest.mark.parametrize("asked", ["web", ""])
def test_of_several_containers_with_a_slot_only_those_of_the_claim_see_a_device(asked: str) -> None:
    pod, meant = a_pod_that_came_before_its_claim(), asked or "app"
    for container in ("fetch", "app", "web"):
        made = grant(request={"name": asked}, container=container, pod=pod)
        assert bool(made.limits) == (container == meant)
        if container != meant:
            assert made.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
            assert not made.interposed


@pytest.mark.parametrize("asked", ["fetch", ""])
def test_a_claim_that_came_later_may_be_for_an_init_container(asked: str) -> None:
    pod = a_pod_that_came_before_its_claim()
    request = {"name": asked, "phase": "Init"}
    shown = [
        c for c in ("fetch", "app", "web") if grant(request=request, container=c, pod=pod).limits
    ]
    assert shown == ["fetch"]


def test_a_container_without_a_slot_of_ours_is_still_refused() -> None:
    with pytest.raises(Refused, match="no request named 'mesh'"):
        grant(request={"name": "app"}, container="mesh", pod=a_pod_that_came_before_its_claim())


def test_a_sidecar_is_an_app_container() -> None:
    sidecar = a_container(limits={SLOT: "1"}, restart_policy="Always")
    assert grant(pod=a_pod(containers=[], init_containers=[sidecar])).limits


@pytest.mark.parametrize(("phase", "restart_policy"), [("App", None), ("Init", "Always")])
def test_a_container_of_the_other_phase_than_its_request_does_not_start(
    phase: str, restart_policy: str | None
) -> None:
    """The claim's use was computed for the other phase."""
    started = a_container(limits={SLOT: "1"}, restart_policy=restart_policy)
    pod = a_pod(containers=[], init_containers=[started])
    with pytest.raises(Refused, match=f"has phase {phase}") as refused:
        grant(request={"phase": phase}, pod=pod)
    assert refused.value.reason is Why.REQUEST_MISMATCH


def test_an_init_container_that_its_sidecar_was_not_added_to_does_not_start() -> None:
    pod = a_pod(
        init_containers=[
            a_container("side", limits={SLOT: "1"}, restart_policy="Always"),
            a_container("prepare", limits={SLOT: "1"}),
        ],
    )
    side, prepare = a_request(name="side"), a_request(name="prepare", phase="Init")
    devices = [an_allocated_device(request=name) for name in ("side", "prepare")]

    def start(container: str, *requests: VGPURequest) -> ContainerGrant:
        claim = a_claim(requests=requests, allocation=an_allocation(*devices))
        assert claim.status.allocation is not None
        return container_grant(
            claim,
            claim.status.allocation,
            pod=pod,
            container=container,
            slot_resource=SLOT,
            capacities=terms(),
        )

    assert start("prepare", side, prepare).limits
    with pytest.raises(Refused, match="side starts before container prepare") as refused:
        start("prepare", prepare, side)
    assert refused.value.reason is Why.REQUEST_MISMATCH
    assert start("side", prepare, side).limits


def test_a_claim_for_another_device_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        grant(devices={"GPU-9": terms()["GPU-0"]})
    assert refused.value.reason is Why.UNKNOWN_DEVICE


def test_a_request_without_a_device_is_refused() -> None:
    claim = a_claim(requests=[a_request(name="main")], allocation=an_allocation())
    assert claim.status.allocation is not None
    with pytest.raises(Refused, match="has no GPU for container main"):
        container_grant(
            claim,
            claim.status.allocation,
            pod=a_pod(),
            container="main",
            slot_resource=SLOT,
            capacities=terms(),
        )


def test_scaling_is_the_administrators_before_the_configurations() -> None:
    device = PhysicalDevice(index=0, uuid="GPU-0", model="m", memory_mib=1000, minor=0)
    config = NvidiaConfig(device_memory_scaling=2.0, device_split_count=5)
    assert capacity_of(device, None, config).allocatable == Use(2000, 100, 5)
    spec = GPUDeviceSpec(node_name="n", memory_scaling="1.5", core_scaling="0.5", slots=3)
    made = capacity_of(device, spec, config)
    assert (made.capacity, made.allocatable) == (Use(1000, 100, 3), Use(1500, 50, 3))


def in_acks_words(**changed: str) -> Pod:
    records = {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        **changed,
    }
    return a_pod(containers=[a_container(limits={SLOT: "1"})], annotations=records)


def test_a_container_in_acks_words_sees_acks_variables() -> None:
    env = grant(pod=in_acks_words()).env()
    assert {name: value for name, value in env.items() if name.startswith("ALIYUN")} == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
    }


@pytest.mark.parametrize("written", ["", "6 GiB", "1\n2", "-1"])
def test_records_that_are_no_numbers_are_not_shown(written: str) -> None:
    env = grant(pod=in_acks_words(ALIYUN_COM_GPU_MEM_POD=written)).env()
    assert not any(name.startswith("ALIYUN") for name in env)


@pytest.mark.parametrize(("written", "interposed"), [("true", False), ("1", False), ("yes", True)])
def test_a_container_that_was_admitted_without_control_is_not_interposed(
    written: str, interposed: bool
) -> None:
    """Its environment shows its limits, and its request is charged."""
    env = [{"name": "CUDA_DISABLE_CONTROL", "value": written}]
    pod = a_pod(containers=[a_container(limits={SLOT: "1"}, env=env)])
    assert grant(pod=pod).interposed is interposed
    assert grant(pod=pod).env()["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096M"


def test_without_the_mark_of_admission_nothing_switches_limits_off() -> None:
    """Admission did not read such a pod, so nobody checked its namespace."""
    env = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    pod = a_pod(containers=[a_container(limits={SLOT: "1"}, env=env)], admitted=False)
    assert grant(pod=pod).interposed
