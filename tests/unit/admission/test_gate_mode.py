"""Gate mode at admission: a gate, a scheduler that runs, and amounts moved to an annotation."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest

from builders import GATE
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_RESOURCES, SCHEDULING_GATE
from vgpu_operator.admission.rules import Denied, mutate_pod
from vgpu_operator.dialects import read


def a_pod(limits: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pod-1"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **spec},
    }


def mutated(pod: dict[str, Any], config: ClusterConfig = GATE) -> Any:
    return jsonpatch.apply_patch(copy.deepcopy(pod), mutate_pod(pod, config, None))


def put_away(pod: dict[str, Any]) -> Any:
    return json.loads(pod["metadata"]["annotations"][ANNOTATION_RESOURCES])


REQUESTS_DEVICE: list[dict[str, Any]] = [
    {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "16Gi", "nvidia.com/gpucores": 30},
    {"nvidia.com/gpumem-percentage": 25},
    {"nvidia.com/gpu": 1},
    {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 20},
    {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2048},
    {"huawei.com/Ascend910A": 1, "huawei.com/Ascend910A-memory": 4096},
]


@pytest.mark.parametrize("limits", REQUESTS_DEVICE)
def test_a_pod_asks_for_the_same_as_without_the_gate(limits: dict[str, Any]) -> None:
    gated, plain = mutated(a_pod(limits)), mutated(a_pod(limits), ClusterConfig())
    assert mutate_pod(gated, GATE, None) == []
    asks = read(Pod.model_validate(gated), GATE)
    assert asks is not None
    assert asks == read(Pod.model_validate(plain), ClusterConfig())


@pytest.mark.parametrize("limits", REQUESTS_DEVICE)
def test_what_is_left_in_the_containers_is_what_device_plugins_count(
    limits: dict[str, Any],
) -> None:
    (container,) = mutated(a_pod(limits))["spec"]["containers"]
    counted = {"nvidia.com/gpu", "huawei.com/Ascend910A"}
    assert len(container["resources"]["limits"]) == 1
    for amounts in container["resources"].values():
        assert set(amounts) <= counted


def test_the_amounts_are_put_away_by_container() -> None:
    pod = mutated(a_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}))
    assert put_away(pod) == {"main": {"nvidia.com/gpumem": 4096}}


def test_a_pod_is_gated_once_and_gates_of_others_stay() -> None:
    pod = a_pod({"nvidia.com/gpu": 1}, schedulingGates=[{"name": "example.com/quota"}])
    gated = mutated(pod)
    names = [gate["name"] for gate in gated["spec"]["schedulingGates"]]
    assert names == ["example.com/quota", SCHEDULING_GATE]
    assert mutate_pod(gated, GATE, None) == []


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ("vgpu-scheduler", "default-scheduler"),
        ("hami-scheduler", "default-scheduler"),
        ("default-scheduler", "default-scheduler"),
        ("volcano", "volcano"),
    ],
)
def test_a_scheduler_of_ours_does_not_run_and_any_other_is_left(chosen: str, left: str) -> None:
    assert mutated(a_pod({"nvidia.com/gpu": 1}, schedulerName=chosen))["spec"]["schedulerName"] == (
        left
    )


def test_a_pod_that_asks_for_no_gpu_is_not_gated() -> None:
    assert mutate_pod(a_pod({"cpu": 1}), GATE, None) == []


def test_without_the_mode_there_is_no_gate_and_nothing_is_put_away() -> None:
    pod = mutated(a_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}), ClusterConfig())
    assert "schedulingGates" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("{", "amounts by container, as JSON"),
        ("[]", "amounts by container, as JSON"),
        ('{"main": {"nvidia.com/gpumem": true}}', "amounts by container, as JSON"),
        ('{"side": {"nvidia.com/gpumem": 1}}', "Unsupported value"),
        ('{"main": {"cpu": 1}}', "Unsupported value"),
        ('{"main": {"nvidia.com/gpumem": 1}}', "container 'main' asks for 4096 itself"),
    ],
)
def test_what_somebody_else_wrote_there_is_read_or_refused(written: str, sentence: str) -> None:
    pod = a_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096})
    pod["metadata"]["annotations"] = {ANNOTATION_RESOURCES: written}
    for config in (GATE, ClusterConfig()):
        with pytest.raises(Denied) as denied:
            mutate_pod(pod, config, None)
        assert ANNOTATION_RESOURCES in denied.value.message
        assert sentence in denied.value.message
