"""HAMi's annotations: selectors and policies in its form, and refusals that name the key."""

from __future__ import annotations

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Placement, VGPUClaimSpec, Weights
from vgpu_operator.dialects import read


def spec_of(annotations: dict[str, str]) -> VGPUClaimSpec:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    pod = Pod.model_validate(
        {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
    )
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    return demand.spec


def placement_of(annotations: dict[str, str]) -> Placement:
    placement = spec_of(annotations).placement
    assert placement is not None
    return placement


def test_a_pod_without_annotations_leaves_everything_to_the_configuration() -> None:
    spec = spec_of({})
    assert spec.placement is None
    assert spec.requests[0].selector is None
    assert spec.requests[0].mode == "Any"


def test_lists_are_trimmed_and_empty_items_overlooked() -> None:
    selector = (
        spec_of(
            {
                "nvidia.com/use-gputype": " A100 , H100,,",
                "nvidia.com/nouse-gputype": "A100-SXM",
                "nvidia.com/use-gpuuuid": "GPU-1, GPU-2",
                "nvidia.com/nouse-gpuuuid": "GPU-2",
            }
        )
        .requests[0]
        .selector
    )
    assert selector is not None
    assert selector.models == ["A100", "H100"]
    assert selector.exclude_models == ["A100-SXM"]
    assert selector.uuids == ["GPU-1", "GPU-2"]
    assert selector.exclude_uuids == ["GPU-2"]


@pytest.mark.parametrize("text", [",".join("x" * 33), "y" * 129])
def test_a_list_too_long_for_a_claim_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"annotations\[nvidia.com/use-gputype\]"):
        spec_of({"nvidia.com/use-gputype": text})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("shared", "Shared"),
        ("hami-core", "Shared"),
        ("mig", "MIG"),
        ("", "Any"),
        ("hami-core,mig", "Any"),
        ("MIG, ,", "MIG"),
        ("hami-core,shared", "Shared"),
        ("mps,hami-core", "Shared"),
        (",", "Any"),
    ],
)
def test_the_mode_annotation_chooses_how_the_device_is_divided(written: str, meant: str) -> None:
    assert spec_of({"nvidia.com/vgpu-mode": written}).requests[0].mode == meant


@pytest.mark.parametrize("written", [",", " , ,"])
@pytest.mark.parametrize("key", ["use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid"])
def test_a_list_of_nothing_is_refused(key: str, written: str) -> None:
    with pytest.raises(BadInput, match=rf"nvidia.com/{key}\].*at least one item: leave"):
        spec_of({f"nvidia.com/{key}": written})


def numa_of(**annotations: str) -> str | None:
    keys = {"ack": "scheduling.alibabacloud.com/numa-topology-spec", "hami": "nvidia.com/numa-bind"}
    placement = spec_of({keys[name]: text for name, text in annotations.items()}).placement
    return None if placement is None else placement.numa


def test_alibabas_numa_annotation_holds_for_hamis_words_too_and_the_stricter_wins() -> None:
    best = '{"numaTopologyPolicy": "BestEffort"}'
    assert numa_of(ack=best) == "Prefer"
    assert numa_of(ack='{"numaTopologyPolicy": "SingleNUMANode",}') == "Require"
    assert numa_of(ack=best, hami="true") == "Require"
    assert numa_of(ack=best, hami="false") == "Prefer"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("binpack", "Binpack"), ("Spread", "Spread"), ("numa-first", "NUMAFirst")],
)
def test_the_node_policy_is_one_of_hamis_words(written: str, meant: str) -> None:
    assert placement_of({"hami.io/node-scheduler-policy": written}).node == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("binpack", ["Binpack"]),
        ("spread", ["Spread"]),
        ("numa", ["NUMA"]),
        ("numa-first", ["NUMAFirst"]),
        ("best-fit", ["BestFit"]),
        ("idle-first", ["IdleFirst"]),
        ("mutex", ["Mutex"]),
        ("topology", ["Topology"]),
        ("topology-aware", ["Topology"]),
        ("numa, binpack,,numa", ["NUMA", "Binpack"]),
    ],
)
def test_device_policies_keep_their_written_order(written: str, meant: list[str]) -> None:
    assert placement_of({"hami.io/gpu-scheduler-policy": written}).device == meant


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("hami.io/gpu-scheduler-policy", "packed"),
        ("hami.io/gpu-scheduler-policy", "binpack,packed"),
        ("hami.io/node-scheduler-policy", "numa"),
        ("hami.io/node-scheduler-policy", "binpack,spread"),
        ("nvidia.com/vgpu-mode", "exclusive"),
    ],
)
def test_an_unknown_word_is_refused_with_key_value_and_the_words_there_are(
    key: str, written: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        spec_of({key: written})
    assert refusal.value.field == f"metadata.annotations[{key}]"
    assert refusal.value.value in written.split(",") or refusal.value.value == written
    assert refusal.value.detail.startswith("supported values: ")


@pytest.mark.parametrize("written", ["true", "True", "1", "t"])
def test_numa_bind_requires_one_numa_node(written: str) -> None:
    assert placement_of({"nvidia.com/numa-bind": written}).numa == "Require"


@pytest.mark.parametrize("written", ["false", "0", "F", ""])
def test_a_numa_bind_that_is_off_places_nothing(written: str) -> None:
    assert spec_of({"nvidia.com/numa-bind": written}).placement is None


@pytest.mark.parametrize("written", ["yes", "maybe", "on", "tRUE"])
def test_a_numa_bind_that_cannot_be_read_is_refused(written: str) -> None:
    """HAMi reads it as off, which would place the pod where its author does not want it."""
    with pytest.raises(BadInput, match=r"annotations\[nvidia.com/numa-bind\]: Unsupported value"):
        spec_of({"nvidia.com/numa-bind": written})


def test_weights_name_all_three_terms_in_any_order() -> None:
    weights = placement_of({"hami.io/device-scoring-weights": "memory=3, slot=1,core=0"}).weights
    assert weights == Weights(slots=1, cores=0, memory=3)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "slot=1",
        "slot=1,core=1",
        "slot=1,core=1,memory=-1",
        "slot=1,core=1,memory=1.5",
        "slot=0,core=0,memory=0",
        "slot=1,core=1,memory=1,memory=1",
        "slot=1,slot=1,memory=1",
        "slot=1,core=1,memory=1001",
        "slot=1,core=1,power=1",
    ],
)
def test_weights_that_are_not_three_whole_numbers_are_refused(written: str) -> None:
    with pytest.raises(BadInput, match=r"annotations\[hami.io/device-scoring-weights\]"):
        spec_of({"hami.io/device-scoring-weights": written})
