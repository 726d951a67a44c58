"""Kubernetes' own pod groups with our extender, on each version of Kubernetes that has them.

There are two nodes of one device each, and each pod takes a whole device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from vgpu_api.resources import PODS
from vgpu_client.transport import Object
from vgpu_local.apiserver.faults import Fault
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.pod_groups import PodGroups, in_group
from vgpu_local.real_cluster import RealControlPlane, real_cluster
from vgpu_local.steps import a_container, a_pod, create, delete_pod, empty, reason, running, until

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

    # kube-scheduler takes the older of two pods first, unless that pod waits for its gang.
    running(cluster, "alone")
    assert (
        "nodeName" not in cluster.run(cluster.api.get(PODS, "first", namespace="default"))["spec"]
    )

    delete_pod(cluster, "alone")
    create(cluster, a_pod("second", a_container(limits=DEVICE), **in_group("gang")))

    nodes = {running(cluster, name)["spec"]["nodeName"] for name in ("first", "second")}
    assert nodes == {"n1", "n2"}
    until(cluster, lambda: pod_groups.is_scheduled(group(cluster, pod_groups)))


def gang(cluster: LocalCluster, pod_groups: PodGroups, name: str, count: int) -> list[str]:
    """Create a group whose pods must all start together, and its pods; return their names."""
    cluster.run(cluster.api.create(pod_groups.resource, pod_groups.gang(name, least=count)))
    members = [f"{name}-{number}" for number in range(count)]
    for member in members:
        create(cluster, a_pod(member, a_container(limits=DEVICE), **in_group(name)))
    return members


def bound(cluster: LocalCluster) -> set[str]:
    pods = cluster.objects("pods", "default")
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}


def given_devices(cluster: LocalCluster) -> set[str]:
    """Return the pods whose claims ever had an allocation, even one that was withdrawn."""
    found = set()
    for event in cluster.server.history():
        status = event.object.get("status") or {}
        if event.resource == "vgpuclaims.vgpu.dev" and status.get("allocation"):
            found.add(status["reservedFor"]["podName"])
    return found


def test_a_gang_without_room_gets_nothing_and_a_pod_beside_it_runs(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    members = gang(cluster, pod_groups, "large", 3)
    until(cluster, lambda: reasons(cluster, members))
    create(cluster, a_pod("lone", a_container(limits=DEVICE)))
    running(cluster, "lone", limit=10.0)
    assert bound(cluster) == {"lone"}
    assert not given_devices(cluster) & set(members)


def reasons(cluster: LocalCluster, pods: Sequence[str]) -> set[str]:
    """Return the reasons that the pods' claims show."""
    claims = cluster.objects("vgpuclaims.vgpu.dev", "default")
    return {
        reason(each.get("status") or {})
        for each in claims
        if each["metadata"]["name"].rsplit("-", 1)[0] in pods
    } - {""}


def test_of_two_gangs_with_room_for_one_each_starts_whole_in_its_turn(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    gangs = {name: set(gang(cluster, pod_groups, name, 2)) for name in ("red", "blue")}
    until(cluster, lambda: bound(cluster) in gangs.values())
    first = bound(cluster)
    for name in first:
        running(cluster, name)
        delete_pod(cluster, name)
    (second,) = (each for each in gangs.values() if each != first)
    for name in second:
        running(cluster, name)
    assert bound(cluster) & second == second


def test_a_member_deleted_between_filter_and_bind_keeps_the_others_from_starting(
    cluster: LocalCluster, pod_groups: PodGroups
) -> None:
    """The claims' first writes are slow; meanwhile one pod is deleted, and no Binding is posted."""
    late = Fault(action="delay", verb="create", resource="vgpuclaims.vgpu.dev", times=2, seconds=2)
    cluster.server.faults.add(late)
    members = gang(cluster, pod_groups, "pair", 2)
    until(cluster, lambda: cluster.server.faults.count(late) == 2)
    delete_pod(cluster, members[1], grace_s=0)
    create(cluster, a_pod("one", a_container(limits=DEVICE)))
    create(cluster, a_pod("two", a_container(limits=DEVICE)))
    for name in ("one", "two"):  # both devices are free again
        running(cluster, name)
    assert bound(cluster) == {"one", "two"}
