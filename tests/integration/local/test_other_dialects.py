"""Pods with Alibaba's or Volcano's resource names, from admission to what containers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from vgpu_api.names import HAMI_DEVICES_ALLOCATED, HAMI_NODE
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.programs import ROOT
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim_name,
    create,
    memory_seen,
    record,
    running,
)
from vgpu_operator.cli.inspect_cgpu import main

EXAMPLES = ROOT / "examples" / "dialects"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    nodes = [
        gpu_node(name, [T4], shape=NodeShape(name, labels={"ack.node.gpu.schedule": name}))
        for name in ("cgpu", "topology")
    ]
    with whole_cluster([*nodes, gpu_node("plain", [T4])]) as cluster:
        yield cluster


def test_pods_in_acks_words_get_their_gib_on_nodes_of_their_kind(cluster: LocalCluster) -> None:
    cluster.apply(EXAMPLES / "ack.yaml")
    memory, isolated = (running(cluster, name) for name in ("ack-memory", "ack-memory-and-cores"))
    assert memory["metadata"]["annotations"][HAMI_NODE] in ("cgpu", "plain")
    assert isolated["metadata"]["annotations"][HAMI_NODE] == "plain"
    assert memory_seen(cluster, "ack-memory") == [3072]
    assert memory_seen(cluster, "ack-memory-and-cores") == [8192]
    ((_, mib, cores),) = record(isolated["metadata"]["annotations"][HAMI_DEVICES_ALLOCATED])
    assert (mib, cores) == (8192, 40)


def test_a_whole_device_in_acks_words_goes_where_whole_devices_are_given(
    cluster: LocalCluster,
) -> None:
    """If no such node has room the pod waits, and its claim shows why."""
    for name in ("one", "two"):
        create(cluster, a_pod(name, a_container(limits={"aliyun.com/gpu-count": 1})))
        assert running(cluster, name)["metadata"]["annotations"][HAMI_NODE] != "cgpu"
        assert memory_seen(cluster, name) == [16384]
    waits = create(cluster, a_pod("three", a_container(limits={"aliyun.com/gpu-count": 1})))
    said = "1/3 NodeSelectorMismatch"
    cluster.wait_for(
        VGPU_CLAIMS,
        claim_name(waits),
        lambda claim: any(
            said in condition["message"]
            for condition in (claim.get("status") or {}).get("conditions", [])
        ),
    )


def test_a_pod_in_volcanos_words_gets_its_slice(cluster: LocalCluster) -> None:
    cluster.apply(EXAMPLES / "volcano.yaml")
    annotations = running(cluster, "volcano-slice")["metadata"]["annotations"]
    ((_, mib, cores),) = record(annotations[HAMI_DEVICES_ALLOCATED])
    assert (mib, cores) == (4096, 30)
    assert memory_seen(cluster, "volcano-slice") == [4096]


def test_kubectl_inspect_cgpu_shows_what_is_given_away(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    create(cluster, a_pod("three", a_container(limits={"aliyun.com/gpu-mem": 3})))
    running(cluster, "three")
    # No wait is needed: the command reads claims, and only the device's status lags by up to five
    # seconds.
    assert main(["--kubeconfig", str(cluster.kubeconfig)]) == 0
    assert capsys.readouterr().out.endswith("\n3/48 (6%)\n")
