"""Kubernetes' own pod groups with our extender, on each version of Kubernetes that has them.

There are two nodes of one device each, and pods that take a whole device.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vgpu_api.resources import PODS
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.pod_groups import PodGroups, in_group
from vgpu_local.real_cluster import RealControlPlane, real_cluster
from vgpu_local.steps import a_container, a_pod, create, delete_pod, empty, running, until

DEVICE = {"nvidia.com/gpu": 1}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running_cluster(pod_groups: PodGroups) -> Iterator[LocalCluster]:
    nodes = [t4_node("n1"), t4_node("n2")]
    with real_cluster(nodes, foundation=RealControlPlane(pod_groups.options)) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield running_cluster
    empty(running_cluster)


def group(cluster: LocalCluster, pod_groups: PodGroups) -> Object:
    return cluster.run(cluster.api.get(pod_groups.resource, "gang", namespace="default"))


def test_a_gang_with_room_for_all_its_members_starts_when_the_last_is_there(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    cluster.run(cluster.api.create(pod_groups.resource, pod_groups.gang("gang", least=2)))
    create(cluster, a_pod("first", a_container(limits=DEVICE), **in_group("gang")))
    create(cluster, a_pod("alone", a_container(limits=DEVICE)))

    # kube-scheduler takes the older of two pods first unless that waits for its gang.
    running(cluster, "alone")
    assert (
        "nodeName" not in cluster.run(cluster.api.get(PODS, "first", namespace="default"))["spec"]
    )

    delete_pod(cluster, "alone")
    create(cluster, a_pod("second", a_container(limits=DEVICE), **in_group("gang")))

    nodes = {running(cluster, name)["spec"]["nodeName"] for name in ("first", "second")}
    assert nodes == {"n1", "n2"}
    until(cluster, lambda: pod_groups.is_scheduled(group(cluster, pod_groups)))
