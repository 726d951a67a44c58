"""A configuration that is changed under running processes: whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from vgpu_api.resources import NODES
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_container, a_pod, create, delete_pod, running, until

pytestmark = [pytest.mark.xdist_group("local-cluster"), pytest.mark.timeout(180)]


@pytest.fixture
def cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("one")], ClusterOptions(lease_s=4)) as cluster:
        yield cluster


def test_a_document_of_hamis_takes_effect_without_a_hand_and_a_wrong_one_has_none(
    cluster: LocalCluster,
) -> None:
    """The webhooks go on as they are; operator and agent end by themselves, to begin anew."""
    file = cluster.folder / "config.yaml"
    create(cluster, a_pod("before", a_container(limits={"nvidia.com/gpumem": 1024})))
    running(cluster, "before")
    (webhook,) = cluster.webhooks
    daemons = [*cluster.operators, *cluster.agents.values()]

    file.write_text("nvidia: {deviceSplitCount: 3, defaultCores: 101}")
    fault = "nvidia.defaultCores: Invalid value: 101"
    until(cluster, lambda: all(fault in daemon.said() for daemon in [webhook, *daemons]))

    for daemon in daemons:
        daemon.may_end()
    file.write_text("nvidia.deviceSplitCount: '3'\nnvidia.defaultCores: '20'\n")
    until(cluster, lambda: "a new one is in force" in webhook.said())
    for daemon in daemons:
        assert daemon.wait(30) == 0
        daemon.start()
    cluster.wait_for(
        NODES,
        "one",
        lambda node: node["status"].get("allocatable", {}).get("nvidia.com/gpu") == "3",
    )
    cluster.wait_ready()
    create(cluster, a_pod("after", a_container(limits={"nvidia.com/gpumem": 1024})))
    allocated = running(cluster, "after")["metadata"]["annotations"]
    assert allocated["hami.io/vgpu-devices-allocated"].endswith(",NVIDIA,1024,20:;")
    webhook.check()
    delete_pod(cluster, "before")
    delete_pod(cluster, "after")
