"""HAMi's resources: the meaning of each spelling, and requests that are refused, not overlooked."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig, NvidiaConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.dialects import read


def a_pod(limits: dict[str, Any], **container: Any) -> Pod:
    resources = {"limits": {f"nvidia.com/{name}": value for name, value in limits.items()}}
    return Pod.model_validate(
        {"spec": {"containers": [{"name": "main", "resources": resources, **container}]}}
    )


def request_of(pod: Pod, **nvidia: Any) -> VGPURequest:
    demand = read(pod, ClusterConfig(nvidia=NvidiaConfig(**nvidia)))
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (4000, "4000Mi"),
        ("4000", "4000Mi"),
        ("4k", "4000Mi"),
        ("10M", "10000000Mi"),
        ("16Gi", "16Gi"),
        ("16384Mi", "16Gi"),
        ("1048576Ki", "1Gi"),
        (8192, "8Gi"),
    ],
)
def test_memory_is_bytes_with_a_binary_suffix_and_a_number_of_mib_without(
    written: str | int, meant: str
) -> None:
    assert request_of(a_pod({"gpu": 1, "gpumem": written})).memory == meant


def test_the_memory_factor_multiplies_plain_numbers_and_leaves_bytes_alone() -> None:
    assert request_of(a_pod({"gpumem": 4}), memory_factor=1024).memory == "4Gi"
    assert request_of(a_pod({"gpumem": "4Gi"}), memory_factor=1024).memory == "4Gi"


@pytest.mark.parametrize("written", ["8 GiB", "8gb", "0.5Mi", "-1", "1.5", "500m", "", "1Ei"])
def test_memory_that_is_no_size_is_refused_with_its_field_and_value(written: str) -> None:
    with pytest.raises(BadInput) as refusal:
        request_of(a_pod({"gpu": 1, "gpumem": written}))
    assert refusal.value.field == "spec.containers[0].resources.limits[nvidia.com/gpumem]"
    assert refusal.value.value == written
    assert "MiB" in refusal.value.detail


def test_memory_wins_over_percentage() -> None:
    request = request_of(a_pod({"gpu": 1, "gpumem": 4096, "gpumem-percentage": 50}))
    assert (request.memory, request.memory_percent) == ("4Gi", None)


@pytest.mark.parametrize(
    ("written", "meant"), [(30, 30), ("100", 100), (250, 100), (0, None), ("-5", None)]
)
def test_a_percentage_is_clamped_at_100_and_not_given_at_0_or_less(
    written: str | int, meant: int | None
) -> None:
    request = request_of(a_pod({"gpu": 1, "gpumem-percentage": written}))
    assert request.memory_percent == meant


@pytest.mark.parametrize("name", ["gpu", "gpumem-percentage", "gpucores", "priority"])
@pytest.mark.parametrize("written", ["half", "0.5", "1m"])
def test_an_amount_that_is_no_whole_number_is_refused(name: str, written: str) -> None:
    with pytest.raises(BadInput) as refusal:
        request_of(a_pod({"gpu": 1, name: written}))
    assert refusal.value.field == f"spec.containers[0].resources.limits[nvidia.com/{name}]"


@pytest.mark.parametrize("written", [-1, 65, "4k"])
def test_a_count_that_no_claim_can_hold_is_refused(written: str | int) -> None:
    with pytest.raises(BadInput, match=r"limits\[nvidia.com/gpu\].*1 to 64"):
        request_of(a_pod({"gpu": written}))


def test_without_memory_the_default_holds_and_without_a_default_all_of_it() -> None:
    assert request_of(a_pod({"gpu": 1}), default_memory=2048).memory == "2Gi"
    whole = request_of(a_pod({"gpu": 1}))
    assert (whole.memory, whole.memory_percent) == (None, None)


def test_memory_or_cores_without_a_count_get_the_default_number_of_devices() -> None:
    for limits in ({"gpumem": 1024}, {"gpucores": 10}, {"gpumem-percentage": 10}):
        assert request_of(a_pod(limits)).count == 1
        assert request_of(a_pod(limits), default_gpu_num=2).count == 2


@pytest.mark.parametrize("limits", [{"gpu": 1}, {"gpu": 1, "gpumem-percentage": 100}])
def test_a_whole_device_without_cores_is_exclusive(limits: dict[str, Any]) -> None:
    assert request_of(a_pod(limits)).cores == 100
    assert request_of(a_pod(limits), default_cores=30).cores == 100


def test_a_whole_device_that_names_its_cores_gets_those() -> None:
    assert request_of(a_pod({"gpu": 1, "gpucores": 0})).cores == 0


def test_a_slice_without_cores_gets_the_default_cores() -> None:
    assert request_of(a_pod({"gpu": 1, "gpumem": 1024})).cores == 0
    assert request_of(a_pod({"gpu": 1, "gpumem": 1024}), default_cores=30).cores == 30
    assert request_of(a_pod({"gpu": 1, "gpumem-percentage": 99})).cores == 0


def test_a_default_memory_leaves_an_ask_without_memory_alone_on_its_device() -> None:
    request = request_of(a_pod({"gpu": 1}), default_memory=2048)
    assert (request.memory, request.cores) == ("2Gi", 100)


@pytest.mark.parametrize(
    "limits",
    [
        {"gpu": 1, "gpumem": 0},
        {"gpu": 1, "gpumem-percentage": 0},
        {"gpu": 1, "gpumem": 0, "gpumem-percentage": 0},
    ],
)
def test_all_of_the_memory_by_an_amount_of_0_is_shared_as_in_hami(limits: dict[str, Any]) -> None:
    request = request_of(a_pod(limits))
    assert (request.memory, request.memory_percent, request.cores) == (None, None, 0)
    assert request_of(a_pod(limits), default_cores=30).cores == 30


def test_a_percentage_of_100_beside_a_size_wants_the_device_alone_as_in_hami() -> None:
    request = request_of(a_pod({"gpu": 1, "gpumem": 4096, "gpumem-percentage": 100}))
    assert (request.memory, request.cores) == ("4Gi", 100)


def test_cores_above_100_count_as_100_and_below_0_are_refused() -> None:
    assert request_of(a_pod({"gpu": 1, "gpucores": 130})).cores == 100
    with pytest.raises(BadInput, match=r"limits\[nvidia.com/gpucores\]"):
        request_of(a_pod({"gpu": 1, "gpucores": -1}))


def test_limits_win_and_requests_stand_in() -> None:
    both = {
        "limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096},
        "requests": {"nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 20},
    }
    pod = Pod.model_validate({"spec": {"containers": [{"name": "main", "resources": both}]}})
    request = request_of(pod)
    assert (request.memory, request.cores) == ("4Gi", 20)


def test_an_error_in_a_request_that_stands_in_names_the_request() -> None:
    resources = {"requests": {"nvidia.com/gpumem": "much"}}
    pod = Pod.model_validate({"spec": {"containers": [{"name": "m", "resources": resources}]}})
    with pytest.raises(BadInput, match=r"spec.containers\[0\].resources.requests\[nvidia.com/gpum"):
        request_of(pod)


def test_priority_becomes_the_compute_priority() -> None:
    assert request_of(a_pod({"gpu": 1, "priority": 1})).compute_priority == 1
    assert request_of(a_pod({"gpu": 1})).compute_priority is None
    with pytest.raises(BadInput, match=r"nvidia.com/priority"):
        request_of(a_pod({"gpu": 1, "priority": 11}))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("default", "Default"), ("force", "Force"), ("Disable", "Disable"), ("", "Default")],
)
def test_the_core_policy_comes_from_the_containers_environment(written: str, meant: str) -> None:
    env = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": written}]
    assert request_of(a_pod({"gpu": 1}, env=env)).core_policy == meant


def test_an_unknown_core_policy_is_refused_with_the_variable() -> None:
    env = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "always"}]
    with pytest.raises(BadInput) as refusal:
        request_of(a_pod({"gpu": 1}, env=env))
    assert str(refusal.value) == (
        "spec.containers[0].env[GPU_CORE_UTILIZATION_POLICY]: "
        'Unsupported value: "always": supported values: "default", "force", "disable"'
    )


@pytest.mark.parametrize("limits", [{}, {"gpu": 0}, {"gpu": "0", "gpumem": 4096}, {"priority": 1}])
def test_no_device_asked_is_no_ask(limits: dict[str, Any]) -> None:
    assert read(a_pod(limits), ClusterConfig()) is None


def test_resource_names_come_from_the_configuration() -> None:
    pod = Pod.model_validate(
        {
            "spec": {
                "containers": [
                    {"name": "main", "resources": {"limits": {"example.com/g": 2, "cpu": "1"}}}
                ]
            }
        }
    )
    assert read(pod, ClusterConfig()) is None
    assert request_of(pod, resource_count_name="example.com/g").count == 2


@pytest.mark.parametrize(
    ("configured", "written", "meant"),
    [
        ({"gpuCorePolicy": "force"}, None, "Force"),
        ({"gpuCorePolicy": "force"}, "", "Force"),
        ({"gpuCorePolicy": "force"}, "disable", "Disable"),
        ({"gpuCorePolicy": "force"}, "default", "Default"),
        ({"gpuCorePolicy": "force", "disableCoreLimit": True}, None, "Disable"),
        ({}, None, "Default"),
    ],
)
def test_the_configured_core_policy_holds_for_containers_without_one_of_their_own(
    configured: dict[str, Any], written: str | None, meant: str
) -> None:
    env = [] if written is None else [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": written}]
    config = ClusterConfig(nvidia=NvidiaConfig.model_validate(configured))
    for name in ("nvidia.com/gpu", "aliyun.com/gpu-mem", "volcano.sh/vgpu-number"):
        container = {"name": "main", "env": env, "resources": {"limits": {name: 1}}}
        demand = read(Pod.model_validate({"spec": {"containers": [container]}}), config)
        assert demand is not None
        assert demand.spec is not None
        assert demand.spec.requests[0].core_policy == meant
