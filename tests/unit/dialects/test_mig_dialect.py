"""Existing MIG instances, requested with the resource names of NVIDIA's device plugin."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig, NvidiaConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.dialects import PodDemand, read

SMALL, MEDIA, HALF = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-3g.40gb"
GPU = "nvidia.com/gpu"


def ask_of(
    limits: dict[str, Any], strategy: str = "mixed", *, mode: str | None = None
) -> PodDemand | None:
    nvidia = NvidiaConfig.model_validate({"migStrategy": strategy})
    annotations = {"nvidia.com/use-gputype": "H100"}
    if mode is not None:
        annotations["nvidia.com/vgpu-mode"] = mode
    container = {"name": "main", "resources": {"limits": limits}}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return read(Pod.model_validate(pod), ClusterConfig(nvidia=nvidia))


def the_request(demand: PodDemand | None) -> VGPURequest:
    assert demand is not None
    assert demand.spec is not None
    (found,) = demand.spec.requests
    return found


@pytest.mark.parametrize(
    ("word", "profile"), [(SMALL, "1g.10gb"), (MEDIA, "1g.10gb+me"), (HALF, "3g.40gb")]
)
def test_a_word_names_a_profile_and_a_number_of_instances(word: str, profile: str) -> None:
    demand = ask_of({word: 2})
    found = the_request(demand)
    assert (found.mode, found.mig_profile, found.count) == ("MIG", profile, 2)
    assert (found.memory, found.memory_percent, found.cores) == (None, None, None)
    assert found.selector is not None
    assert found.selector.models == ["H100"]
    assert demand is not None
    assert demand.slotless == ("main",)  # the kubelet counts a slot, which admission adds


def test_a_slot_that_admission_added_is_no_second_request() -> None:
    assert the_request(ask_of({SMALL: 2, GPU: 1})) == the_request(ask_of({SMALL: 2}))


@pytest.mark.parametrize("strategy", ["none", "single"])
def test_the_words_are_another_plugins_under_other_strategies(strategy: str) -> None:
    assert ask_of({SMALL: 1}, strategy) is None


@pytest.mark.parametrize("limits", [{SMALL: 0}, {"nvidia.com/mig-9g.999gb": 1}])
def test_no_instance_and_an_unknown_profile_ask_for_nothing(limits: dict[str, Any]) -> None:
    assert ask_of(limits) is None


@pytest.mark.parametrize("number", ["1500m", -1, 65, "many"])
def test_a_number_that_is_none_is_refused_by_its_field(number: Any) -> None:
    with pytest.raises(BadInput, match="a number of instances, 1 to 64") as refused:
        ask_of({SMALL: number})
    assert refused.value.field == f"spec.containers[0].resources.limits[{SMALL}]"


def test_two_profiles_in_one_container_are_refused() -> None:
    with pytest.raises(BadInput, match="a container has instances of one profile"):
        ask_of({SMALL: 1, HALF: 1})


def test_under_single_the_count_alone_asks_for_any_instance() -> None:
    found = the_request(ask_of({GPU: 2}, "single"))
    assert (found.mode, found.mig_profile, found.count) == ("MIG", "any", 2)


@pytest.mark.parametrize(
    ("limits", "mode"),
    [
        ({GPU: 1, "nvidia.com/gpumem": 4000}, None),
        ({GPU: 1, "nvidia.com/gpumem-percentage": 100}, None),
        ({GPU: 1, "nvidia.com/gpucores": 30}, None),
        ({GPU: 1}, "hami-core"),
        ({"volcano.sh/vgpu-number": 1}, None),
    ],
)
def test_under_single_an_amount_or_another_word_means_what_it_always_does(
    limits: dict[str, Any], mode: str | None
) -> None:
    assert the_request(ask_of(limits, "single", mode=mode)) == the_request(
        ask_of(limits, "none", mode=mode)
    )
