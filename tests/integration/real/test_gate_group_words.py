"""Groups of pods in Gate mode, declared for Volcano and Coscheduling, without their schedulers.

Their PodGroups come from CustomResourceDefinitions with only the fields that we read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from vgpu_api.resources import (
    COSCHEDULING_POD_GROUPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PODS,
    VGPU_CLAIMS,
    VOLCANO_POD_GROUPS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod

DEVICE = {"nvidia.com/gpu": 1}

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Words:
    """The labels and annotations by which a pod names its group, and the kind with the minimum."""

    groups: Resource
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


WORDS = {
    "volcano": Words(VOLCANO_POD_GROUPS, annotations=("scheduling.k8s.io/group-name",)),
    "coscheduling": Words(COSCHEDULING_POD_GROUPS, labels=("scheduling.x-k8s.io/pod-group",)),
    "coscheduling, old label": Words(
        COSCHEDULING_POD_GROUPS, labels=("pod-group.scheduling.sigs.k8s.io/name",)
    ),
}


def definition(groups: Resource) -> Object:
    """Return a CustomResourceDefinition of PodGroups with a minimum."""
    least = {"type": "object", "properties": {"minMember": {"type": "integer", "minimum": 1}}}
    version = {
        "name": groups.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": least}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{groups.plural}.{groups.group}",
            # Kubernetes requires this annotation on definitions in its own groups.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": groups.group,
            "scope": "Namespaced",
            "names": {"plural": groups.plural, "kind": groups.kind, "singular": "podgroup"},
            "versions": [version],
        },
    }


async def define(kubeconfig: str) -> None:
    async with Api.connect(kubeconfig) as api:
        for groups in (VOLCANO_POD_GROUPS, COSCHEDULING_POD_GROUPS):
            await api.create(CUSTOM_RESOURCE_DEFINITIONS, definition(groups))
            await served(api, groups)


async def served(api: Api, resource: Resource) -> None:
    """Wait until a kind is served."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await api.list(resource)
            return
        except NotFound:
            assert time.monotonic() < deadline, f"{resource.plural}.{resource.group} is not served"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[InstalledCluster]:
    """A cluster of two nodes with one device each."""
    nodes = [t4_node("one"), t4_node("two")]
    with ControlPlane(Options()) as plane:
        asyncio.run(define(str(plane.kubeconfig)))
        with InstalledCluster(nodes, operators=1, overlay="gate", plane=plane) as running:
            plane.start_controllers()
            yield running


@pytest.fixture
def cluster(running_cluster: InstalledCluster) -> Iterator[InstalledCluster]:
    yield running_cluster
    for pod in running_cluster.objects(PODS):
        name = pod["metadata"]["name"]
        running_cluster.run(running_cluster.api.delete(PODS, name, namespace="default", grace_s=1))
    running_cluster.until(
        lambda: not running_cluster.objects(PODS) and not running_cluster.objects(VGPU_CLAIMS),
        lambda: running_cluster.objects(PODS),
    )


@pytest.fixture(params=WORDS)
def words(request: pytest.FixtureRequest) -> Words:
    return WORDS[request.param]


def create_group(cluster: InstalledCluster, words: Words, name: str, least: int) -> None:
    group = {
        "apiVersion": words.groups.api_version,
        "kind": words.groups.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": least},
    }
    cluster.run(cluster.api.create(words.groups, group))


def create_members(cluster: InstalledCluster, words: Words, group: str, count: int) -> list[str]:
    names = [f"{group}-{number}" for number in range(count)]
    for name in names:
        pod = a_pod(name, a_container(limits=DEVICE))
        pod["metadata"]["labels"] = dict.fromkeys(words.labels, group)
        pod["metadata"]["annotations"] = dict.fromkeys(words.annotations, group)
        cluster.run(cluster.api.create(PODS, pod))
    return names


def running(cluster: InstalledCluster, name: str) -> Object:
    return cluster.wait_for(PODS, name, lambda pod: pod["status"].get("phase") == "Running")


def create_lone_pod(cluster: InstalledCluster) -> None:
    cluster.run(cluster.api.create(PODS, a_pod("lone", a_container(limits=DEVICE))))
    running(cluster, "lone")


def past_their_gates(cluster: InstalledCluster) -> set[str]:
    pods = cluster.objects(PODS)
    return {p["metadata"]["name"] for p in pods if not p["spec"].get("schedulingGates")}


def test_a_gang_starts_together_once_its_pod_group_says_how_many_must(
    cluster: InstalledCluster, words: Words
) -> None:
    members = create_members(cluster, words, "pair", 2)
    create_lone_pod(cluster)  # this claim is decided after the group's
    assert past_their_gates(cluster) == {"lone"}
    cluster.run(cluster.api.delete(PODS, "lone", namespace="default", grace_s=1))
    create_group(cluster, words, "pair", 2)
    nodes = {running(cluster, name)["spec"]["nodeName"] for name in members}
    assert nodes == {"one", "two"}
    cluster.run(cluster.api.delete(words.groups, "pair", namespace="default"))


def test_a_gang_that_does_not_fit_holds_nothing(cluster: InstalledCluster, words: Words) -> None:
    create_group(cluster, words, "large", 3)
    create_members(cluster, words, "large", 3)
    create_lone_pod(cluster)
    claims = cluster.objects(VGPU_CLAIMS)
    holders = {
        c["status"]["reservedFor"]["podName"] for c in claims if c["status"].get("allocation")
    }
    assert past_their_gates(cluster) == holders == {"lone"}
    cluster.run(cluster.api.delete(words.groups, "large", namespace="default"))
