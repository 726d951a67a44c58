"""The seed's worked examples 5 to 8: node and device, checked by the seed's own commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from vgpu_api.names import HAMI_DEVICES_ALLOCATED, HAMI_NODE
from vgpu_api.resources import NODES, PODS, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import A100, A100_PCIE, P100, T4, V100, Device, GpuNode, Link, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import ROOT
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim_name,
    create,
    delete_pod,
    empty,
    record,
    running,
    until,
)
from vgpu_local.typed import typed

SEEDS = ROOT / "examples" / "seeds"
PINNED = "GPU-e3b5f6a0-1234-5678-abcd-ef1234567890"
RECORD = r"-o jsonpath='{.metadata.annotations.hami\.io/vgpu-devices-allocated}'"
DEVICES_OF_NODES = (
    r"kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name}{\"\t\"}"
    r"{.metadata.annotations.hami\.io/node-nvidia-register}{\"\n\"}{end}'"
).replace('\\"', '"')
SMALL = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 5}
SPREAD = {"scheduling": {"nodePolicy": "Spread", "devicePolicy": "Spread"}}

pytestmark = pytest.mark.timeout(180)


def a_node(name: str, *devices: Any) -> GpuNode:
    return gpu_node(name, devices, shape=NodeShape(name, labels={"card": name}))


def numa_server(name: str) -> GpuNode:
    """Return the seed's node: GPUs 0, 1 on NUMA node 0; 2, 3 on 1; two NVLinks in each pair."""
    bare = a_node(name, *[A100] * 4)
    devices = tuple(replace(device, numa=index // 2) for index, device in enumerate(bare.devices))
    return replace(bare, devices=devices, links=(Link(0, 1, nvlinks=2), Link(2, 3, nvlinks=2)))


def pinned_server(name: str) -> GpuNode:
    """Return the device of the seed's UUID, and another, each on a NUMA node of its own."""
    bare = a_node(name, V100, V100)
    devices = Device(PINNED, V100, numa=0), replace(bare.devices[1], numa=1)
    return replace(bare, devices=devices)


@pytest.fixture(scope="module")
def two_nodes(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """Two nodes of two devices in a cluster that spreads."""
    nodes = [a_node("one", T4, T4), a_node("two", T4, T4)]
    with whole_cluster(nodes, ClusterOptions(config=SPREAD)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mixed(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """A cluster with every model that the seed names."""
    nodes = [a_node("t4", T4), a_node("p100", P100), pinned_server("v100")]
    nodes += [numa_server("a100-sxm"), a_node("a100-pcie", A100_PCIE)]
    with whole_cluster(nodes) as cluster:
        yield cluster


@pytest.fixture
def spread(two_nodes: LocalCluster) -> Iterator[LocalCluster]:
    yield two_nodes
    for node in ("one", "two"):
        annotate(two_nodes, node, {f"hami.io/{level}-scheduler-policy": None for level in LEVELS})
    empty(two_nodes)


@pytest.fixture
def cluster(mixed: LocalCluster) -> Iterator[LocalCluster]:
    yield mixed
    empty(mixed)


LEVELS = ("node", "gpu")


def annotate(cluster: LocalCluster, node: str, annotations: Mapping[str, str | None]) -> None:
    changes = {"metadata": {"annotations": annotations}}
    cluster.run(cluster.api.merge_patch(NODES, node, changes))


def place_of(cluster: LocalCluster, pod: str) -> tuple[str, list[str]]:
    """Return node and devices of a pod once it runs and its containers see those devices."""
    annotations = running(cluster, pod)["metadata"]["annotations"]
    uuids = [uuid for uuid, _, _ in record(annotations[HAMI_DEVICES_ALLOCATED])]
    shown = typed(cluster, f"kubectl exec {pod} -- nvidia-smi -L")
    assert sorted(re.findall(r"UUID: ([^)]+)", shown)) == sorted(uuids)
    return annotations[HAMI_NODE], uuids


def a_small_pod(cluster: LocalCluster, name: str, node: str | None = None, **more: Any) -> str:
    """Create a pod with a small request, optionally on a given node, and return its device."""
    where = {"nodeSelector": {"card": node}} if node else {}
    create(cluster, a_pod(name, a_container(limits=SMALL), **where, **more))
    return place_of(cluster, name)[1][0]


def says_why(cluster: LocalCluster, pod: str, reason: str) -> None:
    """Wait until the pod's claim shows why it does not fit."""
    name = claim_name(cluster.wait_for(PODS, pod, lambda _: True))

    def says(claim: dict[str, Any]) -> bool:
        conditions = {c["type"]: c for c in claim.get("status", {}).get("conditions", [])}
        return reason in conditions.get("Allocated", {}).get("message", "")

    cluster.wait_for(VGPU_CLAIMS, name, says)


# 5: policies.


def test_example_5_takes_the_emptier_node_and_there_a_device_in_use(spread: LocalCluster) -> None:
    for number in (1, 2):
        a_small_pod(spread, f"one-{number}", "one")
    in_use = a_small_pod(spread, "two-1", "two")
    spread.apply(SEEDS / "05-policies.yaml")
    assert place_of(spread, "binpack-inference") == ("two", [in_use])
    shown = typed(spread, f"kubectl get pod binpack-inference {RECORD}")
    assert record(shown) == [(in_use, 2048, 25)]


def test_example_5_the_policy_is_that_pods_alone(spread: LocalCluster) -> None:
    in_use = a_small_pod(spread, "first", "one")
    a_small_pod(spread, "second", "two")
    spread.apply(SEEDS / "05-policies.yaml")
    assert place_of(spread, "binpack-inference")[1] == [in_use]
    assert a_small_pod(spread, "another", "one") != in_use


def test_example_5_four_pods_gather_on_one_device_of_each_node(spread: LocalCluster) -> None:
    spread.apply(SEEDS / "05-policies-four-pods.yaml")
    used: dict[str, set[str]] = {}
    for number in (1, 2, 3, 4):
        node, uuids = place_of(spread, f"binpack-test-{number}")
        used.setdefault(node, set()).update(uuids)
        shown = typed(spread, f"kubectl get pod binpack-test-{number} {RECORD}")
        assert record(shown) == [(uuids[0], 2048, 20)]
    assert sorted(used) == ["one", "two"]
    assert all(len(uuids) == 1 for uuids in used.values())


def test_example_5_on_nodes_their_own_policies_hold_for_pods_that_have_none(
    spread: LocalCluster,
) -> None:
    in_use = a_small_pod(spread, "first", "two")
    annotate(spread, "two", {f"hami.io/{level}-scheduler-policy": "binpack" for level in LEVELS})
    assert a_small_pod(spread, "filled-up") == in_use
    over = {"annotations": {"hami.io/node-scheduler-policy": "spread"}}
    create(spread, a_pod("own", a_container(limits=SMALL), **over))
    assert place_of(spread, "own")[0] == "one"


# 6: models.


def models(cluster: LocalCluster) -> dict[str, list[str]]:
    """Return the models of each node, as the seed's command shows them."""
    lines = [line.split("\t") for line in typed(cluster, DEVICES_OF_NODES).splitlines()]
    return {node: [device["type"] for device in json.loads(text)] for node, text in lines}


def test_example_6_the_nodes_list_their_models(cluster: LocalCluster) -> None:
    # An agent writes its node's annotation once its devices are there.
    until(cluster, lambda: typed(cluster, DEVICES_OF_NODES).count("\t[") == 5)
    assert models(cluster) == {
        "t4": ["NVIDIA-Tesla T4"],
        "p100": ["NVIDIA-Tesla P100-PCIE-16GB"],
        "v100": ["NVIDIA-Tesla V100-SXM2-32GB"] * 2,
        "a100-sxm": ["NVIDIA A100-SXM4-80GB"] * 4,
        "a100-pcie": ["NVIDIA A100-PCIE-40GB"],
    }


def test_example_6_each_pod_gets_a_device_of_a_model_that_it_allows(cluster: LocalCluster) -> None:
    cluster.apply(SEEDS / "06-models.yaml")
    nodes = {}
    for pod in ("a100-only-task", "exclude-old-gpu", "selective-gpu"):
        nodes[pod], _ = place_of(cluster, pod)
        described = typed(cluster, f'kubectl describe pod {pod} | grep -i "node:"')
        assert described.split()[1].partition("/")[0] == nodes[pod]
    assert nodes["a100-only-task"] in ("a100-sxm", "a100-pcie")
    assert nodes["exclude-old-gpu"] not in ("t4", "p100")
    assert nodes["selective-gpu"] in ("v100", "a100-pcie")
    assert "A100" in typed(cluster, "kubectl exec a100-only-task -- nvidia-smi -L")


def test_example_6_waits_where_no_model_is_allowed_and_runs_when_one_is_free(
    cluster: LocalCluster,
) -> None:
    """Only one A100 is no SXM, and it is taken. Both lists apply: first use, then nouse."""
    whole = {"nvidia.com/gpu": 1}
    for name, node in (("alone-1", "a100-pcie"), ("alone-2", "v100"), ("alone-3", "v100")):
        place = {"nodeSelector": {"card": node}}
        create(cluster, a_pod(name, a_container(limits=whole), **place))
        running(cluster, name)
    documents = (SEEDS / "06-models.yaml").read_text().split("---\n")
    (cluster.folder / "selective.yaml").write_text(documents[2])
    cluster.apply(cluster.folder / "selective.yaml")
    says_why(cluster, "selective-gpu", "6/9 CardTypeMismatch")
    delete_pod(cluster, "alone-1")
    assert place_of(cluster, "selective-gpu")[0] == "a100-pcie"


# 7: UUIDs.


def test_example_7_gets_the_very_device_and_the_other_pod_any_but_that(
    cluster: LocalCluster,
) -> None:
    assert PINNED in typed(cluster, DEVICES_OF_NODES)
    cluster.apply(SEEDS / "07-uuids.yaml")
    assert place_of(cluster, "uuid-pinned-task") == ("v100", [PINNED])
    shown = typed(cluster, f"kubectl get pod uuid-pinned-task {RECORD}")
    assert shown == f"{PINNED},NVIDIA,8192,100:;"
    assert typed(cluster, "kubectl exec uuid-pinned-task -- nvidia-smi -L") == (
        f"GPU 0: Tesla V100-SXM2-32GB (UUID: {PINNED})"
    )
    assert place_of(cluster, "uuid-exclude-task")[1] != [PINNED]


def test_example_7_an_excluded_device_is_left_out_on_its_own_node(cluster: LocalCluster) -> None:
    document = (SEEDS / "07-uuids.yaml").read_text().split("---\n")[1]
    path = cluster.folder / "exclude.yaml"
    path.write_text(document.replace("spec:", "spec:\n  nodeSelector: {card: v100}", 1))
    cluster.apply(path)
    node, uuids = place_of(cluster, "uuid-exclude-task")
    assert (node, uuids != [PINNED]) == ("v100", True)


def test_example_7_a_device_that_is_nowhere_keeps_the_pod_waiting(cluster: LocalCluster) -> None:
    """The UUID must match exactly: a prefix of one matches nothing. A model may be named, too."""
    annotations = {"nvidia.com/use-gpuuuid": PINNED[:-1], "nvidia.com/use-gputype": "V100"}
    create(cluster, a_pod("nowhere", a_container(limits=SMALL), annotations=annotations))
    says_why(cluster, "nowhere", "2/9 CardUuidMismatch, 7/9 CardTypeMismatch")
    annotations["nvidia.com/use-gpuuuid"] = f"GPU-none, {PINNED}"
    create(cluster, a_pod("one-of-two", a_container(limits=SMALL), annotations=annotations))
    assert place_of(cluster, "one-of-two") == ("v100", [PINNED])


# 8: NUMA.


def numa_nodes(cluster: LocalCluster, pod: str) -> list[str]:
    """Return the NUMA nodes of the pod's devices, read from the matrix in its container."""
    lines = typed(cluster, f"kubectl exec {pod} -- nvidia-smi topo -m").splitlines()
    return [line.split("\t")[-1] for line in lines[1:]]


def test_example_8_gets_two_devices_of_one_numa_node(cluster: LocalCluster) -> None:
    cluster.apply(SEEDS / "08-numa.yaml")
    node, uuids = place_of(cluster, "numa-aware-training")
    shown = typed(cluster, f"kubectl get pod numa-aware-training {RECORD}")
    assert record(shown) == [(uuid, 32768, 100) for uuid in uuids]
    assert (node, len(set(uuids))) == ("a100-sxm", 2)
    assert len(set(numa_nodes(cluster, "numa-aware-training"))) == 1


def take_one_of(cluster: LocalCluster, name: str, number: int) -> None:
    """Create a pod on one device of the NUMA server."""
    uuid = numa_server("a100-sxm").devices[number].uuid
    pin = {"nvidia.com/use-gpuuuid": uuid}
    create(cluster, a_pod(name, a_container(limits=SMALL), annotations=pin))
    assert place_of(cluster, name)[1] == [uuid]


@pytest.mark.parametrize(("taken", "numa"), [(0, "1"), (3, "0")])
def test_example_8_takes_the_other_numa_node_where_one_has_too_few(
    cluster: LocalCluster, taken: int, numa: str
) -> None:
    take_one_of(cluster, "neighbour", taken)
    cluster.apply(SEEDS / "08-numa.yaml")
    place_of(cluster, "numa-aware-training")
    assert numa_nodes(cluster, "numa-aware-training") == [numa, numa]


def test_example_8_waits_where_no_numa_node_has_two_and_runs_when_one_has(
    cluster: LocalCluster,
) -> None:
    """One device is free on each NUMA node: without the annotation they would suffice."""
    take_one_of(cluster, "neighbour-0", 0)
    take_one_of(cluster, "neighbour-1", 2)
    cluster.apply(SEEDS / "08-numa.yaml")
    says_why(cluster, "numa-aware-training", "NumaNotFit")
    delete_pod(cluster, "neighbour-1")
    place_of(cluster, "numa-aware-training")
    assert numa_nodes(cluster, "numa-aware-training") == ["1", "1"]


def test_example_8_is_about_several_devices_one_alone_is_not_touched_by_it(
    cluster: LocalCluster,
) -> None:
    text = (SEEDS / "08-numa.yaml").read_text().replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 1")
    (cluster.folder / "one.yaml").write_text(text)
    take_one_of(cluster, "neighbour-0", 0)
    take_one_of(cluster, "neighbour-1", 2)
    cluster.apply(cluster.folder / "one.yaml")
    assert len(place_of(cluster, "numa-aware-training")[1]) == 1
