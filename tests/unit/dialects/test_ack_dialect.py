"""A pod's request with Alibaba ACK's resource names and annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import a_node
from vgpu_api import names
from vgpu_api.config import AliyunConfig, ClusterConfig
from vgpu_api.core import Node, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Allocation, Placement, VGPURequest
from vgpu_operator.dialects import read
from vgpu_operator.dialects.ack import bind_records, node_kinds
from vgpu_operator.node_filter.node_rules import NodeFilters, NodeRules

DEVICES = ClusterConfig(aliyun=AliyunConfig(gpu_count_means="cards"))
SHARED = {"cgpu", "share", "mig", "mps"}
EXAMPLES = Path(__file__).parents[3] / "examples" / "dialects"


def a_pod(limits: dict[str, Any], **annotations: str) -> Pod:
    container = {"name": "main", "resources": {"limits": limits}}
    return Pod.model_validate(
        {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    )


def words(**amounts: Any) -> dict[str, Any]:
    keys = {
        "mem": "aliyun.com/gpu-mem",
        "core": "aliyun.com/gpu-core.percentage",
        "count": "aliyun.com/gpu-count",
    }
    return {keys[name]: amount for name, amount in amounts.items()}


def request_of(limits: dict[str, Any], config: ClusterConfig | None = None) -> VGPURequest:
    demand = read(a_pod(limits), config or ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert demand.slotless == ("main",)
    return request


def amounts(request: VGPURequest) -> tuple[int, str | None, int | None]:
    return request.count, request.memory, request.cores


@pytest.mark.parametrize(
    ("limits", "meant"),
    [
        (words(mem=3), (1, "3Gi", 0)),
        (words(mem="16Gi"), (1, "16Gi", 0)),
        (words(mem=8, core=40), (1, "8Gi", 40)),
        (words(mem=8, count=40), (1, "8Gi", 40)),
        (words(count=2), (2, None, 100)),
        (words(mem=0, count="3"), (3, None, 100)),
    ],
)
def test_memory_is_gib_the_count_beside_it_percent_and_alone_whole_devices(
    limits: dict[str, Any], meant: tuple[int, str | None, int]
) -> None:
    assert amounts(request_of(limits)) == meant


def test_where_the_count_means_devices_they_share_memory_and_compute_evenly() -> None:
    assert amounts(request_of(words(mem=8, count=2), DEVICES)) == (2, "4Gi", 0)
    assert amounts(request_of(words(mem=8, core=60, count=2), DEVICES)) == (2, "4Gi", 30)
    assert amounts(request_of(words(mem=1, count=3), DEVICES)) == (3, "341Mi", 0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (words(mem="half"), "a whole number of GiB"),
        (words(mem="500m"), "a whole number of GiB"),
        (words(mem="1000Mi"), "a whole number of GiB"),
        (words(mem=-1), "a whole number of GiB"),
        (words(mem=8, core=101), "a whole percentage"),
        (words(mem=8, count=101), "a percentage of a GPU"),
        (words(mem=8, count=30, core=30), "same meaning"),
        (words(core=30), "requires aliyun.com/gpu-mem"),
        (words(count=65), "1 to 64"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(
    limits: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BadInput, match=r"spec.containers\[0\].resources.limits\[aliyun") as refusal:
        request_of(limits)
    assert expected in refusal.value.detail


def labelled(
    count: str, limits: dict[str, Any], config: ClusterConfig | None = None
) -> VGPURequest:
    written = a_pod(limits).to_wire()
    written["metadata"]["labels"] = {"aliyun.com/gpu-count": count}
    demand = read(Pod.model_validate(written), config or ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


def test_the_pods_label_spreads_memory_and_compute_evenly_over_several_devices() -> None:
    assert amounts(labelled("2", words(mem=8))) == (2, "4Gi", 0)
    assert amounts(labelled("2", words(mem=8, core=60))) == (2, "4Gi", 30)
    assert amounts(labelled("2", words(mem=8, count=60))) == (2, "4Gi", 30)
    assert amounts(labelled("1", words(mem=8))) == (1, "8Gi", 0)
    assert amounts(labelled("2", words(mem=8, count=2), DEVICES)) == (2, "4Gi", 0)


def test_the_pods_label_says_nothing_of_whole_devices() -> None:
    assert amounts(labelled("4", words(count=2))) == (2, None, 100)


@pytest.mark.parametrize("count", ["", "0", "65", "two", "-1", "1.0", "\u0662"])
def test_a_label_that_is_no_number_of_devices_is_refused(count: str) -> None:
    with pytest.raises(BadInput) as refusal:
        labelled(count, words(mem=8))
    assert str(refusal.value) == (
        f'metadata.labels[aliyun.com/gpu-count]: Invalid value: "{count}": must be a number '
        "of GPUs, "
        "1 to 64"
    )


def test_a_label_and_a_count_of_devices_that_differ_are_refused() -> None:
    with pytest.raises(BadInput, match=r"must be 3, the value of the label aliyun.com/gpu-count"):
        labelled("3", words(mem=8, count=2), DEVICES)


def test_less_than_a_percent_for_each_device_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 1 %"):
        request_of(words(mem=8, core=1, count=2), DEVICES)


def test_an_amount_of_0_asks_for_nothing() -> None:
    assert read(a_pod(words(mem=0, count="0")), ClusterConfig()) is None


def test_a_slot_of_ours_beside_it_is_not_read_as_a_request_for_a_whole_device() -> None:
    request = request_of({**words(mem=3), "nvidia.com/gpu": 1})
    assert amounts(request) == (1, "3Gi", 0)


def placement_of(**annotations: str) -> Placement | None:
    demand = read(a_pod(words(mem=3), **annotations), ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.placement


def test_devices_are_filled_one_after_the_other_unless_the_pod_says_otherwise() -> None:
    assert placement_of() == Placement(device=["Binpack"])
    assert placement_of(**{names.HAMI_DEVICE_POLICY: "spread"}) == Placement(device=["Spread"])


@pytest.mark.parametrize(
    ("policy", "meant"),
    [("SingleNUMANode", "Require"), ("Restricted", "Prefer"), ("BestEffort", "Prefer")],
)
def test_the_numa_annotation_is_json_in_which_trailing_commas_are_overlooked(
    policy: str, meant: str
) -> None:
    written = f'{{ "numaTopologyPolicy": "{policy}", "singleNUMANodeExclusive": "Preferred", }}'
    placement = placement_of(**{names.ACK_NUMA_SPEC: written})
    assert placement is not None
    assert placement.numa == meant


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "[]",
        "{}",
        '{"numaTopologyPolicy": "Nearby"}',
        '{"numaTopologyPolicy": 1}',
        '{"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": "Maybe"}',
        "[" * 3000,
        "[" * 5000,
    ],
)
def test_a_numa_annotation_that_says_nothing_is_refused(written: str) -> None:
    with pytest.raises(BadInput, match=r"numa-topology-spec.*SingleNUMANode"):
        placement_of(**{names.ACK_NUMA_SPEC: written})


@pytest.mark.parametrize(
    ("limits", "takes"),
    [
        (words(mem=3), {"cgpu", "share", "mig", "mps"}),
        (words(mem=3, core=30), {"core_mem", "mig", "mps"}),
        (words(mem=3, count=30), {"core_mem", "mig", "mps"}),
        (words(count=1), {"default", "topology"}),
    ],
)
def test_a_labelled_node_takes_pods_of_its_kind_only_and_one_without_a_label_all(
    limits: dict[str, Any], takes: set[str]
) -> None:
    pod = a_pod(limits)
    kinds = node_kinds(pod, ClusterConfig())
    for label in ("default", "cgpu", "core_mem", "share", "topology", "mig", "mps"):
        node = a_node(labels={names.ACK_NODE_SCHEDULE: label})
        assert takes_pods(node, NodeRules.of(pod, kinds=kinds)) == (label in takes)
    assert takes_pods(a_node(), NodeRules.of(pod, kinds=kinds))


def takes_pods(node: Node, rules: NodeRules) -> bool:
    filters = NodeFilters()
    filters.put(0, node)
    return 0 in filters.of(rules)


def test_the_label_means_nothing_to_pods_in_other_words() -> None:
    assert node_kinds(a_pod({"nvidia.com/gpu": 1}), ClusterConfig()) is None


def kinds_of(*containers: dict[str, Any], config: ClusterConfig | None = None) -> set[str] | None:
    pod = Pod.model_validate(
        {
            "spec": {
                "containers": [
                    {"name": f"c{number}", "resources": {"limits": limits}}
                    for number, limits in enumerate(containers)
                ]
            }
        }
    )
    kinds = node_kinds(pod, config or ClusterConfig())
    return None if kinds is None else set(kinds)


def test_containers_that_ask_for_nothing_do_not_hide_those_that_do() -> None:
    assert kinds_of({}, words(mem=1), {"cpu": "1"}) == SHARED


def test_a_node_must_suit_every_container_of_the_pod() -> None:
    assert kinds_of(words(mem=1), words(mem=2)) == SHARED
    assert kinds_of(words(mem=1), words(mem=1, core=10)) == {"mig", "mps"}
    assert kinds_of(words(count=1), words(mem=1)) == set()


def test_whether_a_count_is_a_share_of_compute_is_the_configurations_to_say() -> None:
    assert kinds_of(words(mem=1, count=50)) == {"core_mem", "mig", "mps"}
    assert kinds_of(words(mem=1, count=2), config=DEVICES) == SHARED


@pytest.mark.parametrize(
    ("limits", "config", "said"),
    [
        (
            words(mem=1, core=10, count=20),
            ClusterConfig(),
            "gpu-count]: Forbidden: aliyun.com/gpu-core.percentage has the same meaning",
        ),
        (
            words(core=10),
            ClusterConfig(),
            "gpu-core.percentage]: Invalid value: 10: requires aliyun.com/gpu-mem",
        ),
        (
            words(mem=4, core=1, count=2),
            DEVICES,
            "gpu-core.percentage]: Invalid value: 1: must be at least 1 % for each of 2 GPUs",
        ),
        (words(mem="x"), DEVICES, 'gpu-mem]: Invalid value: "x": must be a whole number of GiB'),
        (
            words(mem=1, core=101),
            DEVICES,
            "gpu-core.percentage]: Invalid value: 101: must be a whole percentage, 1 to 100",
        ),
        (
            words(mem=1, count=65),
            DEVICES,
            "gpu-count]: Invalid value: 65: must be a number of GPUs, 1 to 64",
        ),
        (
            words(mem=1, count=101),
            ClusterConfig(),
            "gpu-count]: Invalid value: 101: must be a percentage of a GPU, 1 to 100",
        ),
    ],
)
def test_amounts_are_refused_in_these_words(
    limits: dict[str, Any], config: ClusterConfig, said: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        request_of(limits, config)
    assert str(refusal.value) == f"spec.containers[0].resources.limits[aliyun.com/{said}"


def test_hamis_annotations_hold_for_these_words_too() -> None:
    annotations = {
        "nvidia.com/vgpu-mode": "mig",
        "nvidia.com/use-gputype": "A100",
        "hami.io/node-scheduler-policy": "spread",
        "hami.io/device-scoring-weights": "slot=1,core=2,memory=3",
    }
    pod = Pod.model_validate(
        {
            "metadata": {"annotations": annotations},
            "spec": {
                "containers": [],
                "initContainers": [
                    {
                        "name": "fetch",
                        "resources": {"limits": words(mem=1)},
                        "env": [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}],
                    }
                ],
            },
        }
    )
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert (request.mode, request.phase, request.core_policy) == ("MIG", "Init", "Force")
    assert request.selector is not None
    assert request.selector.models == ["A100"]
    placement = demand.spec.placement
    assert placement is not None
    assert (placement.node, placement.device) == ("Spread", ["Binpack"])
    assert placement.weights is not None
    assert (placement.weights.cores, placement.weights.memory) == (2, 3)


NUMA = names.ACK_NUMA_SPEC


def numa_of(written: str) -> str | None:
    demand = read(a_pod(words(mem=1), **{NUMA: written}), ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    assert demand.spec.placement is not None
    return demand.spec.placement.numa


@pytest.mark.parametrize("exclusive", ["", ', "singleNUMANodeExclusive": "Preferred"'])
@pytest.mark.parametrize("end", ["", ","])
def test_whether_a_numa_node_is_exclusive_may_be_left_out(exclusive: str, end: str) -> None:
    assert numa_of(f'{{"numaTopologyPolicy": "SingleNUMANode"{exclusive}{end}}}') == "Require"


def test_an_exclusive_numa_node_may_be_required() -> None:
    written = '{"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": "Required"}'
    assert numa_of(written) == "Prefer"


def test_the_longest_numa_annotation_is_read_and_a_longer_one_is_not() -> None:
    written = '{"numaTopologyPolicy": "Restricted"}'
    assert numa_of(written[:-1] + " " * (4096 - len(written)) + "}") == "Prefer"
    with pytest.raises(BadInput):
        numa_of(written[:-1] + " " * (4097 - len(written)) + "}")


@pytest.mark.parametrize(
    "written",
    [
        "numa",
        "[]",
        "{}",
        '{"numaTopologyPolicy": "Any"}',
        '{"numaTopologyPolicy": 1}',
        '{"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": "Maybe"}',
        '{"numaTopologyPolicy": "BestEffort", "singleNUMANodeExclusive": null}',
    ],
)
def test_a_numa_annotation_is_refused_in_these_words(written: str) -> None:
    with pytest.raises(BadInput) as refusal:
        numa_of(written)
    assert str(refusal.value) == (
        f"metadata.annotations[{NUMA}]: Invalid value: {json.dumps(written)}: must be a "
        "JSON object "
        "with numaTopologyPolicy: "
        "one of SingleNUMANode, Restricted, BestEffort; "
        "and singleNUMANodeExclusive: Preferred or Required"
    )


@pytest.mark.parametrize(
    ("limits", "config", "meant"),
    [
        (words(mem=1 << 20), ClusterConfig(), (1, "1Pi", 0)),
        (words(mem=1, core=100), ClusterConfig(), (1, "1Gi", 100)),
        (words(mem=64, count=64), DEVICES, (64, "1Gi", 0)),
        (words(mem=2, core=2, count=2), DEVICES, (2, "1Gi", 1)),
    ],
)
def test_the_ends_of_each_amounts_range_are_in_it(
    limits: dict[str, Any], config: ClusterConfig, meant: tuple[int, str, int]
) -> None:
    assert amounts(request_of(limits, config)) == meant


def test_the_examples_ask_for_what_they_say() -> None:
    pods = yaml.safe_load_all((EXAMPLES / "ack.yaml").read_text())
    asks = [read(Pod.model_validate(pod), ClusterConfig()) for pod in pods]
    specs = [demand.spec for demand in asks if demand is not None and demand.spec is not None]
    assert [amounts(spec.requests[0]) for spec in specs] == [(1, "3Gi", 0), (1, "8Gi", 40)]
    assert specs[1].placement == Placement(device=["Binpack"], numa="Require")


def records_of(limits: dict[str, Any], *indexes: int) -> dict[str, str]:
    devices = [{"request": "main", "uuid": f"GPU-{n}", "index": n} for n in indexes]
    allocation = Allocation.model_validate({"nodeName": "n", "devices": devices})
    pod, config = a_pod(limits), ClusterConfig()
    return bind_records(pod, allocation, config, device_mib=15_360, unix_time=1_700_000_000)


def test_a_pod_with_memory_of_one_device_has_acks_records() -> None:
    assert records_of(words(mem=3), 1) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    }


def test_whole_devices_and_several_devices_have_no_such_records() -> None:
    """ACK has no form for such records."""
    assert records_of(words(count=1), 1) == {}
    assert records_of(words(mem=8), 0, 1) == {}
