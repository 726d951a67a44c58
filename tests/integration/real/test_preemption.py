"""kube-scheduler's preemption on a real control plane ends no pod in vain.

There is one node with one device of 16 GiB, ten slots and 8 CPUs. Each pod that must stay is
watched for longer than kube-scheduler needed, without the verb `preempt`, to end it several times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from vgpu_api.resources import PODS, Resource
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.real_cluster import real_cluster
from vgpu_local.steps import a_container, a_pod

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
WATCHED_S = 15.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[LocalCluster]:
    with real_cluster([gpu_node("t4", [T4], shape=NodeShape("t4", cpu=8))]) as cluster:
        for name, value in (("important", 1000), ("low", 1)):
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            obj = {**kind, "metadata": {"name": name}, "value": value}
            cluster.run(cluster.api.create(PRIORITY_CLASSES, obj))
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield running_cluster
    for name in names(running_cluster, "replicasets"):
        delete(running_cluster, REPLICA_SETS, name)
    deadline = time.monotonic() + 60
    while left := names(running_cluster, "pods"):
        assert time.monotonic() < deadline, left
        for name in left:
            delete(running_cluster, PODS, name)
        time.sleep(0.3)


def names(cluster: LocalCluster, plural: str) -> list[str]:
    if plural == "pods":
        return [each["metadata"]["name"] for each in cluster.objects("pods", "default")]
    listing = cluster.run(cluster.api.list(REPLICA_SETS, namespace="default"))
    return [each["metadata"]["name"] for each in listing.items]


def delete(cluster: LocalCluster, resource: Resource, name: str) -> None:
    cluster.run(cluster.api.delete(resource, name, namespace="default", grace_s=1))


def create(cluster: LocalCluster, name: str, limits: dict[str, int], **spec: object) -> None:
    """Create a pod with limits: `cpu`, or a resource of nvidia.com."""
    cluster.run(cluster.api.create(PODS, a_pod(name, of(limits), **spec)))


def of(limits: dict[str, int]) -> Object:
    return a_container(
        limits={key if key == "cpu" else f"nvidia.com/{key}": n for key, n in limits.items()}
    )


def web(cluster: LocalCluster, cpus: int) -> None:
    """Create a ReplicaSet of one pod without a GPU, which the cluster's own scheduler places."""
    labels = {"app": "web"}
    spec = a_pod("web", of({"cpu": cpus}), priorityClassName="low")["spec"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    cluster.run(
        cluster.api.create(
            REPLICA_SETS,
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
            },
        )
    )


def running(cluster: LocalCluster) -> dict[str, str]:
    """Return the UIDs of running pods by name; a ReplicaSet's pod goes by the ReplicaSet's name."""
    return {
        pod["metadata"]["name"].split("-")[0]: pod["metadata"]["uid"]
        for pod in cluster.objects("pods", "default")
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    }


def all_run(cluster: LocalCluster, *expected: str, limit: float = 60.0) -> dict[str, str]:
    deadline = time.monotonic() + limit
    while set(there := running(cluster)) != set(expected):
        assert time.monotonic() < deadline, there
        time.sleep(0.2)
    return there


def nobody_is_ended(cluster: LocalCluster, there: dict[str, str], *waiting: str) -> None:
    """Check that these pods stay, and that those wait without being nominated."""
    until = time.monotonic() + WATCHED_S
    while time.monotonic() < until:
        assert running(cluster) == there
        time.sleep(0.5)
    for name in waiting:
        pod = cluster.wait_for(PODS, name, lambda _: True)
        assert not pod["status"].get("nominatedNodeName"), name


def test_nobody_is_ended_for_pods_that_can_never_fit(cluster: LocalCluster) -> None:
    """All slots are taken, and kube-scheduler thinks that ending one pod would help."""
    small = [f"small{number}" for number in range(10)]
    for name in small:
        create(cluster, name, {"gpu": 1, "gpumem": 1000}, priorityClassName="low")
    there = all_run(cluster, *small)
    for number in range(3):
        huge = {"gpu": 1, "gpumem": 40000}
        create(cluster, f"huge{number}", huge, priorityClassName="important")
    nobody_is_ended(cluster, there, "huge0", "huge1", "huge2")


def test_a_controllers_pods_without_gpus_are_not_ended_for_devices(cluster: LocalCluster) -> None:
    """The device is full; kube-scheduler would end the pod that has the CPUs, again and again."""
    create(cluster, "holder", {"gpu": 1, "gpumem": 16000}, priorityClassName="low")
    web(cluster, 6)
    there = all_run(cluster, "holder", "web")
    wanted = {"gpu": 1, "gpumem": 16000, "cpu": 4}
    create(cluster, "waits", wanted, priorityClassName="important")
    nobody_is_ended(cluster, there, "waits")


def test_a_pod_without_a_gpu_is_ended_where_only_its_cpus_are_short(cluster: LocalCluster) -> None:
    create(cluster, "low", {"cpu": 6}, priorityClassName="low")
    all_run(cluster, "low")
    wanted = {"gpu": 1, "gpumem": 8000, "cpu": 4}
    create(cluster, "important", wanted, priorityClassName="important")
    all_run(cluster, "important")


def test_a_pod_with_a_slice_is_ended_where_slots_are_short_and_its_memory_suffices(
    cluster: LocalCluster,
) -> None:
    small = [f"small{number}" for number in range(10)]
    for name in small:
        create(cluster, name, {"gpu": 1, "gpumem": 1500}, priorityClassName="low")
    all_run(cluster, *small)
    create(cluster, "important", {"gpu": 1, "gpumem": 2000}, priorityClassName="important")
    deadline = time.monotonic() + 60
    while "important" not in running(cluster):
        assert time.monotonic() < deadline, running(cluster)
        time.sleep(0.2)
    assert len(set(running(cluster)) & set(small)) == 9
