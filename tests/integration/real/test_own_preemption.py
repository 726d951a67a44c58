"""Preemption of slices on Kubernetes itself: the least important pods make way, and no other.

One node with two devices of 16 GiB and 4 CPUs, on each version of Kubernetes. kube-scheduler alone
evicts nobody in these scenes but for CPU: device memory is none of its resources.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from vgpu_api.resources import POD_DISRUPTION_BUDGETS, Resource
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.control_plane import MinorVersion, Options
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.real_cluster import RealControlPlane, real_cluster
from vgpu_local.steps import a_container, a_pod, create, empty, until

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
ENABLED = {"scheduling": {"preemption": {"enabled": True}}}
WATCHED_S = 6.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running_cluster(kubernetes_version: MinorVersion) -> Iterator[LocalCluster]:
    node = gpu_node("t4", [T4, T4], shape=NodeShape("t4", cpu=4))
    foundation = RealControlPlane(Options(version=kubernetes_version))
    with real_cluster([node], ClusterOptions(config=ENABLED), foundation) as cluster:
        for name, value, policy in (
            ("p100", 100, "PreemptLowerPriority"),
            ("p200", 200, "PreemptLowerPriority"),
            ("p300", 300, "PreemptLowerPriority"),
            ("p1000", 1000, "PreemptLowerPriority"),
            ("polite", 1000, "Never"),
        ):
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            obj = {**kind, "metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            cluster.run(cluster.api.create(PRIORITY_CLASSES, obj))
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield running_cluster
    empty(running_cluster, limit=60.0)


def start(
    cluster: LocalCluster, name: str, priority: str, *, labels: object = None, **limits: int
) -> None:
    """Create a pod with limits: `cpu`, or `gpu` and `gpumem` of nvidia.com."""
    named = {key if key == "cpu" else f"nvidia.com/{key}": n for key, n in limits.items()}
    pod = a_pod(name, a_container(limits=named), priorityClassName=priority)
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    if labels:
        pod["metadata"]["labels"] = labels
    create(cluster, pod)


def running(cluster: LocalCluster) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in cluster.objects("pods", "default")
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    }


def all_run(cluster: LocalCluster, *names: str) -> None:
    until(cluster, lambda: running(cluster) == set(names), limit=60.0)


def stays(cluster: LocalCluster, *names: str) -> None:
    """Exactly these pods run, for longer than a preemption takes."""
    ends = time.monotonic() + WATCHED_S
    while time.monotonic() < ends:
        assert running(cluster) == set(names)
        time.sleep(0.3)


def four_slices(cluster: LocalCluster) -> None:
    """Fill both devices: two slices on each."""
    for name, priority in (("a", "p100"), ("b", "p200"), ("c", "p300"), ("d", "p300")):
        start(cluster, name, priority, gpu=1, gpumem=8000)
    all_run(cluster, "a", "b", "c", "d")


def test_the_least_important_slice_makes_way(cluster: LocalCluster) -> None:
    four_slices(cluster)
    start(cluster, "high", "p1000", gpu=1, gpumem=8000)
    all_run(cluster, "b", "c", "d", "high")


def test_one_slice_on_each_of_two_devices_makes_way(cluster: LocalCluster) -> None:
    four_slices(cluster)
    start(cluster, "high", "p1000", gpu=2, gpumem=8000)
    until(cluster, lambda: "high" in running(cluster), limit=60.0)
    left = running(cluster)
    assert len(left) == 3
    assert left & {"c", "d"}


def test_a_class_that_never_preempts_waits(cluster: LocalCluster) -> None:
    start(cluster, "low", "p100", gpu=2, gpumem=16000)
    all_run(cluster, "low")
    start(cluster, "polite", "polite", gpu=1, gpumem=8000)
    stays(cluster, "low")


def test_nobody_goes_for_devices_of_pods_that_are_as_important(cluster: LocalCluster) -> None:
    """kube-scheduler would end the pod that has the CPUs."""
    start(cluster, "cpus", "p100", cpu=3)
    start(cluster, "full", "p1000", gpu=2, gpumem=16000)
    all_run(cluster, "cpus", "full")
    start(cluster, "high", "p1000", gpu=1, gpumem=8000, cpu=3)
    stays(cluster, "cpus", "full")


def test_kube_schedulers_victim_and_ours_go_together(cluster: LocalCluster) -> None:
    start(cluster, "cpus", "p100", cpu=3)
    start(cluster, "low", "p100", gpu=1, gpumem=16000)
    start(cluster, "mid", "p200", gpu=1, gpumem=16000)
    all_run(cluster, "cpus", "low", "mid")
    start(cluster, "high", "p1000", gpu=1, gpumem=8000, cpu=3)
    all_run(cluster, "mid", "high")


def test_a_protected_pod_is_spared(cluster: LocalCluster) -> None:
    start(cluster, "protected", "p100", labels={"app": "kept"}, gpu=1, gpumem=16000)
    start(cluster, "other", "p200", gpu=1, gpumem=16000)
    all_run(cluster, "protected", "other")
    budget: Object = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.run(cluster.api.create(POD_DISRUPTION_BUDGETS, budget))
    start(cluster, "high", "p1000", gpu=1, gpumem=8000)
    all_run(cluster, "protected", "high")
    cluster.run(cluster.api.delete(POD_DISRUPTION_BUDGETS, "kept", namespace="default"))
