"""The engine tells placement the nodes' CPU and the usual requests of pods."""

from __future__ import annotations

import pytest

from builders import a_container, a_device, a_node, a_pod
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_operator.engine.scheduling.places import unreserve
from vgpu_operator.placement import Columns

FRAGMENTATION = ClusterConfig.model_validate(
    {"scheduling": {"nodePolicy": "Fragmentation", "devicePolicy": "Fragmentation"}}
)
NODES = ("node-1", "node-2")


@pytest.fixture
def replica() -> Replica:
    """Return a replica with two nodes, each with a device and 8 CPUs."""
    replica = Replica(config=FRAGMENTATION)
    for name in NODES:
        replica.news.node_changed(a_node(name, allocatable={"cpu": "8"}))
        replica.news.device_changed(a_device(uuid=f"GPU-{name}", node=name))
    return replica


def a_pod_with(cpu: str, *, memory: int | None = 1024, name: str = "pod-1", **fields) -> Pod:
    limits = {} if memory is None else {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
    container = a_container(limits=limits, requests={**limits, "cpu": cpu})
    return a_pod(name, containers=[container], **fields)


def free(columns: Columns) -> dict[str, int]:
    return {name: columns.node_cpu_free[columns.node_id(name)] for name in NODES}


async def test_cpu_counts_from_the_reservation_until_the_pod_is_gone(replica: Replica):
    pod = a_pod_with("2")
    consumer = replica.news.pod_changed(pod)
    held = replica.offer(consumer)
    columns = replica.ledger.columns
    assert free(columns) == {"node-1": 8000, "node-2": 8000, held.node: 6000}
    replica.news.pod_changed(a_pod_with("2", node=held.node, resource_version=2))
    unreserve(replica.state, held)
    assert free(columns)[held.node] == 6000
    replica.news.pod_gone(pod.metadata.uid)
    replica.news.pod_changed(a_pod_with("2", node=held.node, resource_version=2))  # too late
    assert free(columns) == {"node-1": 8000, "node-2": 8000}


async def test_a_reservation_that_moves_takes_its_cpu_with_it(replica: Replica):
    consumer = replica.news.pod_changed(a_pod_with("2"))
    for node in (*NODES, "node-1"):
        replica.offer(consumer, node)
        assert free(replica.ledger.columns) == {"node-1": 8000, "node-2": 8000, node: 6000}


async def test_a_reservation_that_ends_gives_its_cpu_back(replica: Replica):
    consumer = replica.news.pod_changed(a_pod_with("2"))
    held = replica.offer(consumer)
    unreserve(replica.state, held)
    assert free(replica.ledger.columns) == {"node-1": 8000, "node-2": 8000}


async def test_a_pod_counts_in_the_mix_once_and_with_its_cpu(replica: Replica):
    for version in (1, 2):
        replica.news.pod_changed(a_pod_with("2", resource_version=version))
    replica.news.pod_changed(a_pod_with("4", name="pod-2"))
    types = replica.ledger.columns.mix.types
    assert sorted((frequency, kind.cpu_milli) for frequency, kind in types) == [
        (0.5, 2000),
        (0.5, 4000),
    ]


async def test_a_pod_without_devices_counts_where_it_takes_their_node_a_daemon_does_not(
    replica: Replica,
):
    mix = replica.ledger.columns.mix
    replica.news.pod_changed(a_pod_with("2"))
    for version in (1, 2):
        replica.news.pod_changed(
            a_pod_with("1", memory=None, name="web", node="node-1", resource_version=version)
        )
    owner = OwnerReference(kind="DaemonSet", name="logs", uid="d")
    replica.news.pod_changed(
        a_pod_with("1", memory=None, name="logs", node="node-1", owners=[owner])
    )
    replica.news.pod_changed(a_pod_with("1", memory=None, name="db", node="node-without-cards"))
    assert [frequency for frequency, _ in mix.types] == [0.5]
    assert mix.total == 1.0
    assert free(replica.ledger.columns)["node-1"] == 6000
