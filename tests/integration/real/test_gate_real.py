"""overlays/gate on Kubernetes itself: its rule for gated pods, and its unmodified kube-scheduler.

Every role and policy of the overlay applies, and the programs run under their own accounts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from storage_objects import LOCAL, a_local_class, a_volume, a_volume_claim, using
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import (
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.accounts import OPERATOR, kubeconfig_with, token
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(Options(controllers=True)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[InstalledCluster]:
    nodes = [t4_node("one"), t4_node("two")]
    with InstalledCluster(
        nodes, overlay="gate", components=("web",), lease_s=6, plane=plane
    ) as running:
        yield running


def create(cluster: InstalledCluster, obj: Object, resource: Resource = PODS) -> None:
    cluster.run(cluster.api.create(resource, obj))


def running(cluster: InstalledCluster, name: str) -> Object:
    return cluster.wait_for(PODS, name, lambda pod: pod["status"].get("phase") == "Running")


def allocated_on(cluster: InstalledCluster, pod: Object) -> list[str]:
    return [
        claim["status"]["allocation"]["nodeName"]
        for claim in cluster.objects(VGPU_CLAIMS)
        if claim.get("status", {}).get("allocation")
        and claim["status"].get("reservedFor", {}).get("podUID") == pod["metadata"]["uid"]
    ]


def anywhere(node: str) -> list[Object]:
    """Two node selector terms of which the second may match, and one that names the node."""
    return [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["nowhere"]}]},
        {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]


@pytest.mark.parametrize(
    ("name", "affinity"),
    [
        ("without", {}),
        ("empty", {"affinity": {}}),
        ("of-pods", {"affinity": {"podAntiAffinity": {}}}),
        ("terms", {"affinity": {"nodeAffinity": {REQUIRED: {
            "nodeSelectorTerms": anywhere("two")}}}}),
        ("preferred", {"affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": anywhere("one")[1]}]}}}),
        ("selected", {"nodeSelector": {HOSTNAME: "one"}}),
    ],
)  # fmt: skip
def test_the_api_server_accepts_the_patch_whatever_affinity_there_is(
    cluster: InstalledCluster, name: str, affinity: Any
) -> None:
    create(cluster, a_pod(name, a_container(limits=SLICE), **affinity))
    pod = running(cluster, name)
    assert allocated_on(cluster, pod) == [pod["spec"]["nodeName"]]
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    wanted = {"terms": "two", "selected": "one"}
    assert pod["spec"]["nodeName"] == wanted.get(name, pod["spec"]["nodeName"])
    cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_leader_that_is_killed_before_or_after_the_patch_leaves_a_pod_that_runs(
    cluster: InstalledCluster, *, is_lifted: bool
) -> None:
    name = "lifted" if is_lifted else "gated"
    create(cluster, a_pod(name, a_container(limits=SLICE)))
    if is_lifted:
        cluster.wait_for(PODS, name, lambda pod: not pod["spec"].get("schedulingGates"))
    leader = cluster.leader()
    leader.kill()
    leader.start()
    pod = running(cluster, name)
    assert allocated_on(cluster, pod) == [pod["spec"]["nodeName"]]
    cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))


def a_replica_set(name: str, **term: Any) -> Object:
    """Return a ReplicaSet of two pods that must not share a node."""
    labels = {"app": name}
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME, **term}
    pod = a_pod(name, a_container(limits=SLICE), affinity={"podAntiAffinity": {REQUIRED: [apart]}})
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


@pytest.mark.parametrize(
    ("name", "term", "is_replaced"),
    [
        ("apart", {}, False),
        (
            "unseen",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
            True,
        ),
    ],
)
def test_pods_that_must_not_meet_run_apart_and_are_replaced_where_only_kube_scheduler_knows(
    cluster: InstalledCluster, name: str, term: Object, *, is_replaced: bool
) -> None:
    """Binpack would send both to one node."""
    create(cluster, a_replica_set(name, **term), REPLICA_SETS)

    def nodes() -> list[str]:
        return sorted(
            pod["spec"]["nodeName"]
            for pod in cluster.objects(PODS)
            if pod["metadata"].get("labels", {}).get("app") == name
            and pod["status"].get("phase") == "Running"
        )

    cluster.until(lambda: len(nodes()) == 2, lambda: cluster.objects(PODS), limit=120)
    assert nodes() == ["one", "two"]
    replaced = [
        event["involvedObject"]["name"]
        for event in cluster.objects(EVENTS)
        if event["reason"] == "PodReplaced" and event["involvedObject"]["name"].startswith(name)
    ]
    assert bool(replaced) == is_replaced
    cluster.run(cluster.api.delete(REPLICA_SETS, name, namespace="default", grace_s=1))


@pytest.mark.parametrize(
    "change",
    [
        [{"op": "replace", "path": "/spec/containers/0/image", "value": "another"}],
        [{"op": "add", "path": "/metadata/labels", "value": {"app": "other"}}],
        [{"op": "add", "path": "/spec/nodeSelector", "value": {"zone": "a"}}],
    ],
)
def test_of_a_gated_pod_the_operator_may_change_nothing_else(
    cluster: InstalledCluster, plane: ControlPlane, change: list[Object]
) -> None:
    """The patch that lifts the gate may not change anything else either."""
    gates = [{"name": "example.com/held"}, {"name": SCHEDULING_GATE}]
    name = f"held-{len(change[0]['path'])}"
    create(cluster, a_pod(name, a_container(limits=SLICE), schedulingGates=gates))
    path = cluster.folder / f"{name}.kubeconfig"
    kubeconfig_with(plane.kubeconfig, path, cluster.token(OPERATOR))
    lift = {"op": "remove", "path": "/spec/schedulingGates/1"}

    async def patch(*operations: Object) -> None:
        async with Api.connect(str(path)) as api:
            await api.json_patch(PODS, name, list(operations), namespace="default")

    with pytest.raises(ApiError, match="is ours to change"):
        cluster.run(patch(*change))
    with pytest.raises(ApiError, match="is ours to change"):
        cluster.run(patch(*change, lift))
    cluster.run(patch(lift))
    cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))


def test_pods_go_to_the_nodes_of_their_local_volumes_and_wait_for_claims_that_are_missing(
    cluster: InstalledCluster,
) -> None:
    """kube-scheduler binds each pod as chosen.

    No pod that has passed its gate is refused because of its volumes.
    """
    create(cluster, a_local_class(), STORAGE_CLASSES)
    for node in ("one", "two"):
        create(cluster, a_volume(node, class_name=LOCAL, nodes=[node]), PERSISTENT_VOLUMES)
    bound = a_volume_claim("of-two", class_name=LOCAL, volume="two", bound=False)
    create(cluster, bound, PERSISTENT_VOLUME_CLAIMS)
    create(cluster, a_pod("at-two", a_container(limits=SLICE), **using("of-two")))
    assert running(cluster, "at-two")["spec"]["nodeName"] == "two"

    create(cluster, a_pod("early", a_container(limits=SLICE), **using("late")))

    def messages() -> list[str]:
        return [
            event["message"]
            for event in cluster.objects(EVENTS)
            if event["involvedObject"]["name"] == "early"
            and event["reason"] == "VolumeClaimNotReady"
        ]

    cluster.until(messages, lambda: cluster.objects(EVENTS))
    assert messages() == ["PersistentVolumeClaim late does not exist yet"]
    early = cluster.wait_for(PODS, "early", lambda _: True)
    assert early["spec"]["schedulingGates"] == [{"name": SCHEDULING_GATE}]

    create(cluster, a_volume_claim("late", class_name=LOCAL), PERSISTENT_VOLUME_CLAIMS)
    assert running(cluster, "early")["spec"]["nodeName"] == "one"
    claim = cluster.wait_for(
        PERSISTENT_VOLUME_CLAIMS, "late", lambda found: found["status"]["phase"] == "Bound"
    )
    assert claim["spec"]["volumeName"] == "one"
    replaced = {event["reason"] for event in cluster.objects(EVENTS)} & {"PodStuck"}
    assert not replaced
    for name in ("at-two", "early"):
        cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))


def test_the_page_reads_volumes_by_the_overlays_role_and_judges_them(
    cluster: InstalledCluster,
) -> None:
    page, visitor = cluster.start_page(), cluster.run(token(cluster.api, OPERATOR))
    pasted = a_pod("pasted", a_container(limits=SLICE), **using("none"))

    def answered() -> Object:
        _, found = page.get("/api/v1/what-if", visitor, body=json.dumps(pasted))
        (answer,) = found["pods"]
        return dict(answer)

    cluster.until(lambda: answered()["notJudged"] == "", answered)
    assert answered()["refused"] == "PersistentVolumeClaim none does not exist yet"
