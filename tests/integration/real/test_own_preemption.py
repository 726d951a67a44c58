"""Preemption of slices on Kubernetes itself evicts the least important pods, and no others.

There is one node with two devices of 16 GiB and 4 CPUs, on each version of Kubernetes.
kube-scheduler itself evicts pods in these scenes only for CPU, because device memory is none of its
resources.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from preemption_steps import ENABLED, add_classes, all_run, running, slices, start, stays
from vgpu_api.resources import POD_DISRUPTION_BUDGETS, Resource
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.control_plane import MinorVersion, Options
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.real_cluster import RealControlPlane, real_cluster
from vgpu_local.steps import a_pod, create, delete_pod, empty, until

JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
METRIC = 'vgpu_preemptions_total{result="served"}'

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running_cluster(kubernetes_version: MinorVersion) -> Iterator[LocalCluster]:
    node = gpu_node("t4", [T4, T4], shape=NodeShape("t4", cpu=4))
    foundation = RealControlPlane(Options(version=kubernetes_version))
    with real_cluster([node], ClusterOptions(config=ENABLED), foundation) as cluster:
        add_classes(cluster)
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield running_cluster
    empty(running_cluster, limit=60.0)


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
    allow(cluster, least=1)
    start(cluster, "high", "p1000", gpu=1, gpumem=8000)
    all_run(cluster, "protected", "high")
    cluster.run(cluster.api.delete(POD_DISRUPTION_BUDGETS, "kept", namespace="default"))


def allow(cluster: LocalCluster, *, least: int) -> None:
    """Create a budget that keeps this many pods with `app: kept`, and wait for its status."""
    budget: Object = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.run(cluster.api.create(POD_DISRUPTION_BUDGETS, budget))
    cluster.wait_for(
        POD_DISRUPTION_BUDGETS, "kept", lambda found: "currentHealthy" in found["status"]
    )


def test_a_budget_that_allows_one_eviction_spares_the_other_of_two_victims(
    cluster: LocalCluster,
) -> None:
    for name in ("web0", "web1"):
        start(cluster, name, "p100", labels={"app": "kept"}, gpu=1, gpumem=16000)
    all_run(cluster, "web0", "web1")
    allow(cluster, least=1)
    for name in ("high0", "high1"):
        start(cluster, name, "p1000", gpu=1, gpumem=16000)
    until(cluster, lambda: running(cluster) & {"high0", "high1"}, limit=60.0)
    stays(cluster, *running(cluster))
    assert len(running(cluster) & {"web0", "web1"}) == 1
    cluster.run(cluster.api.delete(POD_DISRUPTION_BUDGETS, "kept", namespace="default"))
    all_run(cluster, "high0", "high1")


def test_two_preemptors_at_once_take_the_two_least_important(cluster: LocalCluster) -> None:
    four_slices(cluster)
    for name in ("high0", "high1"):
        start(cluster, name, "p1000", gpu=1, gpumem=8000)
    all_run(cluster, "c", "d", "high0", "high1")


def test_the_place_of_a_victim_with_a_long_grace_period_goes_to_nobody_else(
    cluster: LocalCluster,
) -> None:
    start(cluster, "full", "p300", gpu=1, gpumem=16000)
    create(cluster, {**a_pod("low"), "spec": slices("p100", grace_s=20, gpu=1, gpumem=16000)})
    all_run(cluster, "full", "low")
    start(cluster, "high", "p1000", gpu=1, gpumem=16000)
    until(cluster, lambda: running(cluster) == {"full"})
    start(cluster, "newcomer", "p200", gpu=1, gpumem=8000)
    all_run(cluster, "full", "high")
    stays(cluster, "full", "high")


def test_a_jobs_victim_counts_as_no_failure_and_its_next_pod_waits(cluster: LocalCluster) -> None:
    """Its policy ignores failures by disruption, and it tolerates no others."""
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    pod = {**slices("p100", gpu=2, gpumem=16000), "restartPolicy": "Never"}
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignored]},
            "template": {"spec": pod},
        },
    }
    cluster.run(cluster.api.create(JOBS, job))
    until(cluster, lambda: len(running(cluster)) == 1, limit=60.0)
    (first,) = running(cluster)
    start(cluster, "high", "p1000", gpu=2, gpumem=16000)
    all_run(cluster, "high")
    until(cluster, lambda: names(cluster) - {"high", first}, limit=60.0)
    delete_pod(cluster, "high")
    until(cluster, lambda: running(cluster) - {"high", first}, limit=60.0)
    status = cluster.run(cluster.api.get(JOBS, "train", namespace="default"))["status"]
    assert not status.get("failed")
    cluster.run(cluster.api.delete(JOBS, "train", namespace="default", propagation="Background"))


def names(cluster: LocalCluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.objects("pods", "default")}


def test_controllers_that_raise_the_class_of_each_new_pod_end_with_the_highest(
    cluster: LocalCluster,
) -> None:
    """Each recreates its pod at once, in the next higher class.

    The metric counts the preemptions.
    """
    before, classes = served(cluster), iter(("p200", "p300", "p1000"))
    start(cluster, "a0", "p100", gpu=2, gpumem=16000)
    all_run(cluster, "a0")
    for generation, name in enumerate(classes, start=1):
        start(cluster, f"a{generation}", name, gpu=2, gpumem=16000)
        all_run(cluster, f"a{generation}")
    start(cluster, "a4", "p1000", gpu=2, gpumem=16000)
    stays(cluster, "a3")
    assert served(cluster) == before + 3


def served(cluster: LocalCluster) -> float:
    """Return how many preemptions gave a pod its devices, by the operator's metrics."""
    (port,) = cluster.metrics_ports()["operator"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(METRIC))
