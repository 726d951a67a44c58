from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_operator.admission import without_effect
from vgpu_operator.admission.variables import WITHOUT_EFFECT

HAMI_READS = (
    "ACTIVE_OOM_KILLER",
    "CUDA_REDIRECT",
    "CUDA_TASK_PRIORITY",
    "LIBCUDA_LOG_LEVEL",
    "RECORD_KERNEL_INTERVAL",
)
"""What HAMi-core's sources read by getenv, but what is refused or honoured here."""


def a_pod(*variables: str, gpu: int = 1, **metadata: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpu} if gpu else {}
    env = [{"name": name, "value": "1"} for name in variables]
    container = {"name": "main", "env": env, "resources": {"limits": limits}}
    return {"metadata": {"name": "p", **metadata}, "spec": {"containers": [container]}}


@pytest.mark.parametrize("name", [*HAMI_READS, "CUDA_OVERSUBSCRIBE"])
def test_a_variable_that_hami_reads_and_we_do_not_is_named_in_a_warning(name: str) -> None:
    (warning,) = without_effect(a_pod(name), ClusterConfig())
    assert warning.startswith(f"spec.containers[0].env[{name}]: has no effect: ")


def test_no_warning_is_cut_by_the_api_server() -> None:
    for name in WITHOUT_EFFECT:
        (warning,) = without_effect(a_pod(name), ClusterConfig())
        assert len(warning) <= 256


def test_init_containers_are_warned_of_too() -> None:
    pod = a_pod()
    env = [{"name": "CUDA_OVERSUBSCRIBE", "value": "true"}]
    pod["spec"]["initContainers"] = [{"name": "first", "env": env}]
    (warning,) = without_effect(pod, ClusterConfig())
    assert warning.startswith("spec.initContainers[0].env[CUDA_OVERSUBSCRIBE]")


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("GPU_CORE_UTILIZATION_POLICY", "CUDA_VISIBLE_DEVICES", "VGPU_LOG_LEVEL"),
        a_pod("CUDA_TASK_PRIORITY", gpu=0),
        a_pod("CUDA_TASK_PRIORITY", labels={"hami.io/webhook": "ignore"}),
        {"spec": "nonsense"},
    ],
)
def test_what_acts_or_is_none_of_ours_gets_no_warning(pod: dict[str, Any]) -> None:
    assert without_effect(pod, ClusterConfig()) == []


ACK_LABEL = "aliyun.com/gpu-count"
NUMA_SPEC = "scheduling.alibabacloud.com/numa-topology-spec"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"annotations": {"cpuset-scheduler": "required"}},
            "metadata.annotations[cpuset-scheduler]: has no effect: the kubelet pins CPUs, with "
            "cpuManagerPolicy static and whole CPUs as requests and limits",
        ),
        (
            {"annotations": {"volcano.sh/vgpu-mode": "mig"}},
            "metadata.annotations[volcano.sh/vgpu-mode]: has no effect: no container asks for "
            "volcano.sh/vgpu-number; write nvidia.com/vgpu-mode",
        ),
        (
            {"labels": {ACK_LABEL: "2"}},
            "metadata.labels[aliyun.com/gpu-count]: has no effect: it spreads aliyun.com/gpu-mem "
            "over several GPUs, and no container asks for that",
        ),
    ],
)
def test_words_of_other_schedulers_without_effect_are_named(
    metadata: dict[str, Any], said: str
) -> None:
    assert without_effect(a_pod(**metadata), ClusterConfig()) == [said]
    assert len(said) <= 256


def in_words(limits: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    pod = a_pod(**metadata)
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    return pod


def test_the_same_words_get_no_warning_where_they_act() -> None:
    config = ClusterConfig()
    volcanos = in_words(
        {"volcano.sh/vgpu-number": 1}, annotations={"volcano.sh/vgpu-mode": "hami-core"}
    )
    assert without_effect(volcanos, config) == []
    acks = in_words({"aliyun.com/gpu-mem": 8}, labels={ACK_LABEL: "2"})
    assert without_effect(acks, config) == []
    whole = in_words({"aliyun.com/gpu-count": 2}, labels={ACK_LABEL: "2"})
    assert len(without_effect(whole, config)) == 1


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "hami.io/gpu-scheduler-policy"])
def test_annotations_that_choose_devices_say_nothing_beside_a_claim(key: str) -> None:
    annotations = {"vgpu.dev/claim": "small", key: "spread"}
    (warning,) = without_effect(a_pod(gpu=0, annotations=annotations), ClusterConfig())
    assert warning.startswith(f"metadata.annotations[{key}]: has no effect: the pod names a claim")
