"""In Gate mode, the pods of a group pass their gates together on every Kubernetes version.

There are two nodes with one device each, and each pod takes a whole device. Groups are defined by
our annotations or by Kubernetes PodGroups; kube-scheduler also starts the pods of a PodGroup
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from vgpu_api.names import ANNOTATION_GROUP, ANNOTATION_GROUP_MIN
from vgpu_api.resources import EVENTS, PODS, VGPU_CLAIMS
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.pod_groups import PodGroups, in_group
from vgpu_local.steps import a_container, a_pod

DEVICE = {"nvidia.com/gpu": 1}
Words = Literal["annotations", "PodGroup"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running_cluster(pod_groups: PodGroups) -> Iterator[InstalledCluster]:
    nodes = [t4_node("one"), t4_node("two")]
    with (
        ControlPlane(pod_groups.options) as plane,
        InstalledCluster(nodes, overlay="gate", lease_s=6, plane=plane) as running,
    ):
        plane.start_controllers()
        yield running


@pytest.fixture
def cluster(running_cluster: InstalledCluster) -> Iterator[InstalledCluster]:
    yield running_cluster
    for pod in running_cluster.objects(PODS):
        delete(running_cluster, pod["metadata"]["name"])
    running_cluster.until(
        lambda: not running_cluster.objects(PODS) and not running_cluster.objects(VGPU_CLAIMS),
        lambda: running_cluster.objects(PODS),
    )


@pytest.fixture(params=["annotations", "PodGroup"])
def words(request: pytest.FixtureRequest) -> Words:
    named: Words = request.param
    return named


def gang(
    cluster: InstalledCluster, groups: PodGroups, words: Words, name: str, count: int
) -> list[str]:
    """Create a group whose pods must all start together, and its pods; return their names."""
    members = [f"{name}-{number}" for number in range(count)]
    if words == "PodGroup":
        cluster.run(cluster.api.create(groups.resource, groups.gang(name, least=count)))
    for member in members:
        cluster.run(cluster.api.create(PODS, a_member(words, member, name, count)))
    return members


def a_member(words: Words, name: str, group: str, count: int) -> Object:
    container = a_container(limits=DEVICE)
    if words == "PodGroup":
        return a_pod(name, container, **in_group(group))
    annotations = {ANNOTATION_GROUP: group, ANNOTATION_GROUP_MIN: str(count)}
    return a_pod(name, container, annotations=annotations)


def remove(cluster: InstalledCluster, groups: PodGroups, words: Words, *names: str) -> None:
    for name in names if words == "PodGroup" else ():
        cluster.run(cluster.api.delete(groups.resource, name, namespace="default"))


def delete(cluster: InstalledCluster, name: str) -> None:
    cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))


def running(cluster: InstalledCluster, name: str) -> Object:
    return cluster.wait_for(PODS, name, lambda pod: pod["status"].get("phase") == "Running")


def lifted(cluster: InstalledCluster) -> set[str]:
    pods = cluster.objects(PODS)
    return {p["metadata"]["name"] for p in pods if not p["spec"].get("schedulingGates")}


def allocated(cluster: InstalledCluster) -> set[str]:
    claims = cluster.objects(VGPU_CLAIMS)
    return {
        each["status"]["reservedFor"]["podName"]
        for each in claims
        if each.get("status", {}).get("allocation")
    }


def reasons(cluster: InstalledCluster, pod: str) -> set[str]:
    events = cluster.objects(EVENTS)
    return {each["reason"] for each in events if each["involvedObject"]["name"] == pod}


def test_a_gang_without_room_holds_nothing_and_a_pod_beside_it_runs(
    cluster: InstalledCluster, pod_groups: PodGroups, words: Words
) -> None:
    members = gang(cluster, pod_groups, words, "large", 3)
    cluster.until(
        lambda: "Impossible" in reasons(cluster, members[0]), lambda: cluster.objects(EVENTS)
    )
    cluster.run(cluster.api.create(PODS, a_pod("lone", a_container(limits=DEVICE))))
    running(cluster, "lone")
    assert lifted(cluster) == allocated(cluster) == {"lone"}
    remove(cluster, pod_groups, words, "large")


def test_a_gang_starts_when_its_last_pod_is_there(
    cluster: InstalledCluster, pod_groups: PodGroups, words: Words
) -> None:
    (first,) = gang(cluster, pod_groups, words, "pair", 2)[:1]
    nodes = {running(cluster, name)["spec"]["nodeName"] for name in (first, "pair-1")}
    assert nodes == {"one", "two"}
    remove(cluster, pod_groups, words, "pair")


def test_of_two_gangs_with_room_for_one_each_starts_whole_in_its_turn(
    cluster: InstalledCluster, pod_groups: PodGroups, words: Words
) -> None:
    gangs = {name: set(gang(cluster, pod_groups, words, name, 2)) for name in ("red", "blue")}
    cluster.until(lambda: len(lifted(cluster)) == 2, lambda: cluster.objects(PODS))
    first = lifted(cluster)
    assert first in gangs.values()
    assert allocated(cluster) == first
    for name in first:
        running(cluster, name)
        delete(cluster, name)
    (second,) = (each for each in gangs.values() if each != first)
    for name in second:
        running(cluster, name)
    remove(cluster, pod_groups, words, "red", "blue")


def test_a_leader_that_is_killed_while_it_starts_a_gang_leaves_it_whole(
    cluster: InstalledCluster, pod_groups: PodGroups, words: Words
) -> None:
    members = gang(cluster, pod_groups, words, "pair", 2)
    cluster.until(lambda: allocated(cluster), lambda: cluster.objects(VGPU_CLAIMS))
    leader = cluster.leader()
    leader.kill()
    leader.start()
    for name in members:
        running(cluster, name)
    assert allocated(cluster) == set(members)
    remove(cluster, pod_groups, words, "pair")
