"""Volcano's resource names mean the same as HAMi's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import ClusterConfig, VolcanoConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_operator.dialects import PodDemand, read

EXAMPLE = Path(__file__).parents[3] / "examples" / "dialects" / "volcano.yaml"
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
PERCENT, CORES = "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
SAME = {
    NUMBER: "nvidia.com/gpu",
    MEMORY: "nvidia.com/gpumem",
    PERCENT: "nvidia.com/gpumem-percentage",
    CORES: "nvidia.com/gpucores",
}


def ask_of(limits: dict[str, Any], config: ClusterConfig | None = None) -> PodDemand | None:
    annotations = {"nvidia.com/use-gputype": "A100", "hami.io/gpu-scheduler-policy": "binpack"}
    container = {"name": "main", "resources": {"limits": limits}}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return read(Pod.model_validate(pod), config or ClusterConfig())


@pytest.mark.parametrize(
    "limits",
    [
        {NUMBER: 1},
        {NUMBER: 2, MEMORY: 4096},
        {MEMORY: "16Gi"},
        {PERCENT: 30, CORES: 40},
        {NUMBER: 1, PERCENT: 250},
        {CORES: 100},
        {NUMBER: 1, MEMORY: 4096, PERCENT: 30, CORES: 40},
    ],
)
def test_each_word_means_what_hamis_does_annotations_included(limits: dict[str, Any]) -> None:
    here = ask_of(limits)
    there = ask_of({SAME[name]: amount for name, amount in limits.items()})
    assert here is not None
    assert there is not None
    assert here.spec == there.spec
    assert (here.slotless, there.slotless) == (("main",), ())


def test_a_container_that_admission_gave_a_slot_is_read_as_before() -> None:
    container = {"name": "main", "resources": {"limits": {NUMBER: 1}}}
    pod = {"spec": {"containers": [container]}}
    before = read(Pod.model_validate(pod), ClusterConfig())
    recorded = {"metadata": {"annotations": {"vgpu.dev/slots-added": "main"}}, **pod}
    assert read(Pod.model_validate(recorded), ClusterConfig()) == before


def test_a_number_of_0_asks_for_nothing() -> None:
    assert ask_of({NUMBER: 0, MEMORY: 4096}) is None


def test_a_unit_of_memory_may_stand_for_more_mib() -> None:
    demand = ask_of({MEMORY: 8}, ClusterConfig(volcano=VolcanoConfig(memory_factor=1024)))
    assert demand is not None
    assert demand.spec is not None
    assert demand.spec.requests[0].memory == "8Gi"


def test_what_cannot_be_read_is_refused_by_volcanos_field() -> None:
    with pytest.raises(BadInput, match=r"limits\[volcano.sh/vgpu-cores\]"):
        ask_of({NUMBER: 1, CORES: "half"})


def test_a_slot_of_ours_beside_it_is_not_read_as_a_request_for_a_whole_device() -> None:
    demand = ask_of({NUMBER: 2, MEMORY: 1024, "nvidia.com/gpu": 1})
    assert demand is not None
    assert demand.spec is not None
    assert demand.spec.requests[0].count == 2


def test_the_example_asks_for_what_it_says() -> None:
    (pod,) = yaml.safe_load_all(EXAMPLE.read_text())
    demand = read(Pod.model_validate(pod), ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert (request.count, request.memory, request.cores) == (1, "4Gi", 30)


def mode_of(limits: dict[str, Any], **annotations: str) -> str:
    named = {f"{key.replace('_', '.')}/vgpu-mode": word for key, word in annotations.items()}
    container = {"name": "main", "resources": {"limits": limits}}
    pod = {"metadata": {"annotations": named}, "spec": {"containers": [container]}}
    demand = read(Pod.model_validate(pod), ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0].mode


def test_volcanos_annotation_says_how_the_device_is_divided() -> None:
    assert mode_of({NUMBER: 1}, volcano_sh="mig") == "MIG"
    assert mode_of({NUMBER: 1}, volcano_sh="hami-core") == "Shared"
    assert mode_of({NUMBER: 1}, volcano_sh="hami-core,mig") == "Any"
    assert mode_of({NUMBER: 1}, nvidia_com="mig") == "MIG"
    assert mode_of({NUMBER: 1}, nvidia_com="mig", volcano_sh="mig") == "MIG"


def test_it_means_nothing_to_a_container_in_hamis_words() -> None:
    assert mode_of({"nvidia.com/gpu": 1}, volcano_sh="mig") == "Any"


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"volcano_sh": "timeslice"}, 'supported values: "shared", "hami-core", "mig"'),
        ({"volcano_sh": "mps"}, "no MPS daemon runs here"),
        (
            {"volcano_sh": "mig", "nvidia_com": "shared"},
            "nvidia.com/vgpu-mode is shared; write one of the two",
        ),
    ],
)
def test_a_mode_that_cannot_be_served_is_refused(annotations: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput) as refusal:
        mode_of({NUMBER: 1}, **annotations)
    assert refusal.value.field == "metadata.annotations[volcano.sh/vgpu-mode]"
    assert said in str(refusal.value)
