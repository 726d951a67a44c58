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
