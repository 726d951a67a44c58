"""Preemption of and for Kubernetes' own pod groups, on each version of Kubernetes that has them.

There are two nodes of one device each, and each pod takes a whole device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from preemption_steps import ENABLED, add_classes, all_run, slices, start, stays
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.pod_groups import PodGroups, in_group
from vgpu_local.real_cluster import RealControlPlane, real_cluster
from vgpu_local.steps import a_pod, create, empty, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running_cluster(pod_groups: PodGroups) -> Iterator[LocalCluster]:
    nodes, options = [t4_node("n1"), t4_node("n2")], ClusterOptions(config=ENABLED)
    # In 1.37 the gate of pod groups includes this one. Without it every group says `Pod`.
    more = {"WorkloadAwarePreemption": True} if pod_groups.version == "1.36" else {}
    gates = {**pod_groups.feature_gates, **more}
    foundation = RealControlPlane(replace(pod_groups.options, feature_gates=gates))
    with real_cluster(nodes, options, foundation) as cluster:
        add_classes(cluster)
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster, pod_groups: PodGroups) -> Iterator[LocalCluster]:
    yield running_cluster
    empty(running_cluster, limit=60.0)
    api = running_cluster.api

    def groups() -> list[str]:
        found = running_cluster.run(api.list(pod_groups.resource, namespace="default"))
        return [each["metadata"]["name"] for each in found.items]

    for name in groups():
        running_cluster.run(api.delete(pod_groups.resource, name, namespace="default"))
    until(running_cluster, lambda: not groups())  # a finalizer keeps the groups for a moment


def gang(
    cluster: LocalCluster,
    groups: PodGroups,
    name: str,
    priority: str,
    count: int,
    **group: object,
) -> None:
    """Create a gang whose pods must all start together, each with a whole device.

    kube-scheduler 1.37 starts no group whose priority differs from that of its pods.
    """
    if groups.version != "1.36":
        group["priorityClassName"] = priority
    obj = groups.gang(name, least=count, **group)
    cluster.run(cluster.api.create(groups.resource, obj))
    for number in range(count):
        spec = {**slices(priority, gpu=1, gpumem=16000), **in_group(name)}
        create(cluster, {**a_pod(f"{name}-{number}"), "spec": spec})


def test_a_gang_preempts_a_gang(cluster: LocalCluster, pod_groups: PodGroups) -> None:
    gang(cluster, pod_groups, "low", "p100", 2)
    all_run(cluster, "low-0", "low-1")
    gang(cluster, pod_groups, "high", "p1000", 2)
    all_run(cluster, "high-0", "high-1")


def test_a_gang_takes_the_free_device_and_that_of_one_pod(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    start(cluster, "low", "p100", gpu=1, gpumem=16000)
    all_run(cluster, "low")
    gang(cluster, pod_groups, "high", "p1000", 2)
    all_run(cluster, "high-0", "high-1")


def test_nobody_goes_for_a_gang_that_would_not_fit_all_the_same(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    for name, priority in (("low", "p100"), ("equal", "p1000")):
        start(cluster, name, priority, gpu=1, gpumem=16000)
    all_run(cluster, "low", "equal")
    gang(cluster, pod_groups, "high", "p1000", 2)
    stays(cluster, "low", "equal")


WHOLE = {"1.36": "PodGroup", "1.37": {"all": {}}}
"""The mode in which a group ends as a whole; by default its pods may end singly."""


def test_a_gang_that_must_end_as_a_whole_does_so(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    gang(cluster, pod_groups, "low", "p100", 2, disruptionMode=WHOLE[pod_groups.version])
    all_run(cluster, "low-0", "low-1")
    start(cluster, "high", "p1000", gpu=1, gpumem=16000)
    all_run(cluster, "high")
