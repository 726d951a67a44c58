"""Pods that request parts of MetaX GPUs: their class, their policy, and links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders import a_container, a_pod
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.admission.rules.no_effect import without_effect
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read

CONFIG = ClusterConfig()
COUNT, CORES, MEMORY = "metax-tech.com/sgpu", "metax-tech.com/vcore", "metax-tech.com/vmemory"
CLASS, POLICY = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
LINKS = "metax-tech.com/sgpu-topology-aware"
PART: Mapping[str, str | int] = {COUNT: 1, CORES: 60, MEMORY: 4}


def pod_of(limits: Mapping[str, str | int], annotations: Mapping[str, str]) -> Pod:
    return a_pod(containers=[a_container(limits=limits)], annotations=annotations)


def request_of(limits: Mapping[str, str | int], annotations: Mapping[str, str]) -> VGPURequest:
    demand = read(pod_of(limits, annotations), CONFIG)
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


def test_a_pod_without_annotations_has_no_class_and_the_first_policy() -> None:
    asked = request_of(PART, {})
    assert (asked.vendor, asked.memory, asked.cores) == ("metax-sgpu", "4Gi", 60)
    assert (asked.app_class, asked.qos_policy, asked.links_first) == (None, "BestEffort", False)


def test_a_size_may_have_its_unit_and_without_amounts_it_is_a_whole_device() -> None:
    assert request_of({**PART, MEMORY: "2Gi"}, {}).memory == "2Gi"
    whole = request_of({COUNT: 2}, {LINKS: "true"})
    assert (whole.count, whole.memory_percent, whole.cores) == (2, 100, 100)
    assert whole.links_first
    assert not request_of({COUNT: 2}, {LINKS: "F"}).links_first


def test_an_online_pod_reserves_no_compute_and_has_no_policy() -> None:
    asked = request_of({COUNT: 1, MEMORY: 4}, {CLASS: "online"})
    assert (asked.app_class, asked.qos_policy, asked.cores) == ("Online", None, 0)
    offline = request_of(PART, {CLASS: "offline", POLICY: "burst-share"})
    assert (offline.app_class, offline.qos_policy, offline.cores) == ("Offline", "BurstShare", 60)


@pytest.mark.parametrize(
    ("limits", "annotations", "text"),
    [
        (
            PART,
            {CLASS: "both"},
            f'metadata.annotations[{CLASS}]: Unsupported value: "both": supported values: '
            '"offline", "online"',
        ),
        (
            {**PART, COUNT: 2},
            {CLASS: "offline"},
            f"spec.containers[0].resources.limits[{COUNT}]: Invalid value: 2: must be 1: the pod "
            f"has {CLASS}",
        ),
        (
            PART,
            {POLICY: "none"},
            f'metadata.annotations[{POLICY}]: Unsupported value: "none": supported values: '
            '"best-effort", "burst-share", "fixed-share"',
        ),
        (
            PART,
            {LINKS: "yes"},
            f'metadata.annotations[{LINKS}]: Invalid value: "yes": must be true or false',
        ),
        (
            {**PART, CORES: 120},
            {},
            f"spec.containers[0].resources.limits[{CORES}]: Invalid value: 120: must be a whole "
            "percentage, 0 to 100",
        ),
    ],
)
def test_what_hami_refuses_or_never_places_is_refused_by_name(
    limits: Mapping[str, str | int], annotations: Mapping[str, str], text: str
) -> None:
    with pytest.raises(BadInput) as refused:
        request_of(limits, annotations)
    assert str(refused.value) == text


def patched(annotations: Mapping[str, str]) -> dict[str, Any]:
    raw = pod_of(PART, annotations).to_wire()
    return {each["path"]: each.get("value") for each in mutate_pod(raw, CONFIG, None)}


def test_admission_writes_the_policy_that_a_pod_has_without_one() -> None:
    path = "/metadata/annotations"
    of_none = patched({})
    assert of_none.get(path) == {POLICY: "best-effort"} or (
        of_none.get(f"{path}/metax-tech.com~1sgpu-qos-policy") == "best-effort"
    )
    for said in ({POLICY: "fixed-share"}, {CLASS: "online"}):
        assert not any("sgpu-qos-policy" in key for key in patched(said))


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        ({CLASS: "online", POLICY: "fixed-share"}, (POLICY, CORES)),
        ({LINKS: "true"}, (LINKS,)),
        ({CLASS: "offline", POLICY: "fixed-share"}, ()),
    ],
)
def test_words_that_mean_nothing_to_such_a_pod_are_warned_of(
    annotations: Mapping[str, str], named: tuple[str, ...]
) -> None:
    found = without_effect(pod_of(PART, annotations).to_wire(), CONFIG)
    assert [next(word for word in named if f"[{word}]" in said) for said in found] == list(named)


def test_the_same_words_on_a_pod_that_asks_for_others_are_warned_of() -> None:
    pod = pod_of({"nvidia.com/gpu": 1}, {CLASS: "online"})
    (said,) = without_effect(pod.to_wire(), CONFIG)
    assert said == (f"metadata.annotations[{CLASS}]: has no effect: no container asks for {COUNT}")


def demand_of(limits: Mapping[str, str | int], annotations: Mapping[str, str]) -> Demand:
    found = read(pod_of(limits, annotations), CONFIG)
    assert found is not None
    assert found.spec is not None
    return Demand.of(found.spec, CONFIG)


@pytest.mark.parametrize(
    ("limits", "annotations", "choice", "rule"),
    [
        (PART, {}, None, None),
        ({COUNT: 1}, {}, "smallestGroups", None),
        ({COUNT: 1}, {LINKS: "true"}, "smallestGroups", "linksKept"),
        ({COUNT: 1}, {CLASS: "offline"}, None, None),
        ({COUNT: 1}, {CLASS: "online"}, "fewestOnline", "fewestOnline"),
        (PART, {LINKS: "true"}, None, None),
    ],
)
def test_rules_for_devices_and_nodes_follow_from_the_class(
    limits: Mapping[str, str | int],
    annotations: Mapping[str, str],
    choice: str | None,
    rule: str | None,
) -> None:
    demand = demand_of(limits, annotations)
    assert (demand.requests[0].choice, demand.node_rule) == (choice, rule)


def test_they_are_no_words_for_nvidias_devices() -> None:
    for word in ({"appClass": "Online"}, {"qosPolicy": "BestEffort"}, {"linksFirst": True}):
        with pytest.raises(ValueError, match="not for NVIDIA's devices"):
            VGPURequest.model_validate(word)
