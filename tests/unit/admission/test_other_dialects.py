"""Admission of pods that use Alibaba's or Volcano's resource names."""

from __future__ import annotations

import re
from typing import Any

import jsonpatch
import pytest

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules import Denied, mutate_pod

GIB, NUMBER = "aliyun.com/gpu-mem", "volcano.sh/vgpu-number"


def a_pod(*containers: dict[str, Any]) -> dict[str, Any]:
    named = [
        {"name": f"c{number}", "resources": {"limits": limits}}
        for number, limits in enumerate(containers)
    ]
    return {"metadata": {"name": "p"}, "spec": {"containers": named}}


def admitted(pod: dict[str, Any]) -> dict[str, Any]:
    """Send the pod through the webhook twice."""
    config = ClusterConfig()
    once = jsonpatch.apply_patch(pod, mutate_pod(pod, config, None))
    assert mutate_pod(once, config, None) == []
    return dict(once)


@pytest.mark.parametrize("limits", [{GIB: 3}, {NUMBER: 2, "volcano.sh/vgpu-memory": 1024}])
def test_each_container_gets_one_slot_which_is_recorded(limits: dict[str, Any]) -> None:
    pod = admitted(a_pod(limits, {"cpu": 1}))
    asking, other = pod["spec"]["containers"]
    assert asking["resources"]["limits"] == {**limits, "nvidia.com/gpu": "1"}
    assert asking["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert other["resources"] == {"limits": {"cpu": 1}}
    assert pod["metadata"]["annotations"][names.ANNOTATION_SLOTS_ADDED] == "c0"
    assert pod["spec"]["schedulerName"] == "vgpu-scheduler"


def test_containers_of_one_pod_may_speak_different_dialects() -> None:
    pod = admitted(a_pod({GIB: 3}, {"nvidia.com/gpumem": 4096}))
    first, second = (c["resources"]["limits"] for c in pod["spec"]["containers"])
    assert first["nvidia.com/gpu"] == second["nvidia.com/gpu"] == "1"
    assert pod["metadata"]["annotations"][names.ANNOTATION_SLOTS_ADDED] == "c0"


def test_requests_stand_in_for_limits_and_both_are_equal_afterwards() -> None:
    pod = a_pod({})
    pod["spec"]["containers"][0]["resources"] = {"requests": {GIB: 3}}
    resources = admitted(pod)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {GIB: "3", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({GIB: 3, NUMBER: 1}, NUMBER),
        ({GIB: 3, "nvidia.com/gpumem": 1024}, "nvidia.com/gpumem"),
        ({GIB: 3, "nvidia.com/gpu": 2}, "nvidia.com/gpu"),
        ({NUMBER: 1, "nvidia.com/gpucores": 10}, "nvidia.com/gpucores"),
    ],
)
def test_a_container_speaks_one_dialect(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(Denied, match=rf"limits\[{field}\]: Forbidden: the container asks by"):
        admitted(a_pod(limits))


def test_an_amount_that_cannot_be_read_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(Denied, match=r"limits\[aliyun.com/gpu-mem\].*whole number of GiB"):
        admitted(a_pod({GIB: "3.5"}))


@pytest.mark.parametrize("name", ["volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory-percentage"])
def test_a_percentage_in_volcanos_words_is_refused_as_in_hamis(name: str) -> None:
    """Before and after the pod has its slot: another webhook may write between the two."""
    config, bad = ClusterConfig(), f"{name}]: Invalid value: 150: must be a whole percentage"
    with pytest.raises(Denied, match=re.escape(bad)):
        mutate_pod(a_pod({NUMBER: 1, name: 150}), config, None)
    pod = admitted(a_pod({NUMBER: 1, name: 50}))
    pod["spec"]["containers"][0]["resources"]["limits"][name] = 150
    with pytest.raises(Denied, match=re.escape(bad)):
        mutate_pod(pod, config, None)


def test_nobody_claims_slots_for_a_container_that_asks_for_nothing() -> None:
    pod = a_pod({GIB: 3}, {"cpu": 1})
    pod["metadata"]["annotations"] = {names.ANNOTATION_SLOTS_ADDED: "c0,c1"}
    with pytest.raises(Denied, match="slots-added"):
        admitted(pod)
