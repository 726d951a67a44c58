"""A configuration that changes while the programs run takes effect as a whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from vgpu_api.resources import NODES
from vgpu_local.cluster import LocalCluster, NotReady
from vgpu_local.daemon import Daemon
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_container, a_pod, create, delete_pod, running, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("one")], ClusterOptions(lease_s=4)) as cluster:
        yield cluster


STANDBYS_FIRST_S = 20


@pytest.fixture
def two(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(lease_s=4, operators=2, linger_s=1, standbys_first_s=STANDBYS_FIRST_S)
    with whole_cluster([t4_node("one")], options) as cluster:
        yield cluster


def leads(cluster: LocalCluster, daemon: Daemon) -> bool:
    with contextlib.suppress(NotReady):
        return cluster.leader() is daemon
    return False


def test_a_standby_begins_anew_first_and_follows_the_leader_at_once(two: LocalCluster) -> None:
    """If both ended together, nobody could lead while the replicas list the cluster."""
    leader = two.leader()
    (standby,) = [daemon for daemon in two.operators if daemon is not leader]
    for daemon in (standby, leader, *two.agents.values()):
        daemon.may_end()
    (two.folder / "config.yaml").write_text("nvidia: {defaultCores: 20}\n")
    assert standby.wait(30) == 0
    standby.start()
    until(two, lambda: "everything seen; waiting for the lease" in standby.said())
    with pytest.raises(TimeoutError):
        leader.wait(0.5)  # the leader keeps the former configuration
    assert not leads(two, standby)
    assert leader.wait(40) == 0
    until(two, lambda: leads(two, standby), limit=10)
    for daemon in (leader, *two.agents.values()):
        daemon.wait(30)
        daemon.start()
    two.wait_ready()
    create(two, a_pod("after", a_container(limits={"nvidia.com/gpumem": 1024})))
    allocated = running(two, "after")["metadata"]["annotations"]
    assert allocated["hami.io/vgpu-devices-allocated"].endswith(",NVIDIA,1024,20:;")
    delete_pod(two, "after")


def test_a_document_of_hamis_takes_effect_without_a_hand_and_a_wrong_one_has_none(
    cluster: LocalCluster,
) -> None:
    """The webhooks keep running; operator and agent exit by themselves and start again."""
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
    until(cluster, lambda: "using the new configuration" in webhook.said())
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
