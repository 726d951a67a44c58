"""Every kind of workload, in every dialect and with a claim template; each pod gets half a device.

The stand-in has no controllers, so the tests create and delete pods in the order in which the
controllers would; `vgpu_operator.insight.workloads` builds the pods of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.names import ANNOTATION_CLAIM_TEMPLATE, HAMI_DEVICES_ALLOCATED
from vgpu_api.resources import PODS
from vgpu_client.errors import Invalid
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_claim,
    a_container,
    claim_name,
    create,
    delete_pod,
    memory_seen,
    record,
    running,
    until,
)
from vgpu_operator.insight.workloads import pods_of

NODES = ("one", "two")
SHAPE = "shape"
LIMITS: dict[str, dict[str, int]] = {
    "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192},
    "ack": {"aliyun.com/gpu-mem": 8},
    "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8192},
    "template": {},
}
HALF_MIB = 8192

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.parametrize("words", LIMITS),
]


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node(name) for name in NODES], ClusterOptions(lease_s=4)) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def template(words: str, *, command: tuple[str, ...] = ("sleep", "infinity"), **spec: Any) -> Any:
    """Return a pod template that requests half a device in this dialect."""
    annotations = {ANNOTATION_CLAIM_TEMPLATE: SHAPE} if words == "template" else {}
    container = a_container(limits=LIMITS[words], command=command)
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def pods(kind: str, name: str, **spec: Any) -> list[dict[str, Any]]:
    """Return the pods that the controller of such a workload makes."""
    metadata = {"name": name, "namespace": "default"}
    document = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
    return [dict(pod) for pod in pods_of(document, NODES)]


def start(cluster: LocalCluster, words: str, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Create pods, and wait until all of them run with half a device each."""
    if words == "template" and SHAPE not in claims(cluster):
        create(cluster, a_claim(SHAPE, {"memory": "8Gi"}))
    for pod in made:
        create(cluster, pod)
    started = [running(cluster, pod["metadata"]["name"], limit=60) for pod in made]
    for pod in started:
        ((_, mib, _),) = record(pod["metadata"]["annotations"][HAMI_DEVICES_ALLOCATED])
        assert mib == HALF_MIB
        assert memory_seen(cluster, pod["metadata"]["name"]) == [HALF_MIB]
    return started


def claims(cluster: LocalCluster) -> set[str]:
    found = cluster.server.objects("vgpuclaims.vgpu.dev", "default")
    return {claim["metadata"]["name"] for claim in found}


def waits(cluster: LocalCluster, pod: dict[str, Any]) -> None:
    """Wait until the pod has an event that says that there is no room."""

    def is_told() -> bool:
        return any(
            event["reason"] == "CardInsufficientMemory"
            and event["involvedObject"].get("uid") == pod["metadata"]["uid"]
            for event in cluster.objects("events", "default")
        )

    until(cluster, is_told)


def test_a_rolling_deployment_goes_on_with_surge_and_waits_where_the_cluster_is_full(
    cluster: LocalCluster, words: str
) -> None:
    """Three of four halves are in use: one new pod fits beside them, the next only after one."""
    old = pods("Deployment", "old", replicas=3, template=template(words))
    first, second, *_ = pods("Deployment", "new", replicas=3, template=template(words))
    start(cluster, words, old)
    start(cluster, words, [first])
    surged = create(cluster, second)
    waits(cluster, surged)
    delete_pod(cluster, old[0]["metadata"]["name"])
    running(cluster, second["metadata"]["name"], limit=60)


def test_a_stateful_sets_pod_comes_back_under_its_name_with_a_claim_of_its_own(
    cluster: LocalCluster, words: str
) -> None:
    made = pods("StatefulSet", "db", replicas=2, template=template(words))
    before = start(cluster, words, made)
    delete_pod(cluster, "db-1")
    until(cluster, lambda: len(cluster.server.objects("pods", "default")) == 1)
    (again,) = start(cluster, words, made[1:])
    assert claim_name(again) != claim_name(before[1])
    until(cluster, lambda: claim_name(before[1]) not in claims(cluster))
    assert claim_name(before[0]) in claims(cluster)


def test_a_daemon_sets_pods_run_on_their_own_nodes(cluster: LocalCluster, words: str) -> None:
    started = start(cluster, words, pods("DaemonSet", "agent", template=template(words)))
    assert [pod["spec"]["nodeName"] for pod in started] == list(NODES)


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_jobs_give_back_what_they_had_when_they_have_succeeded(
    cluster: LocalCluster, words: str, kind: str
) -> None:
    """Six pods of half a device each share two devices: the last two run once others have ended."""
    if words == "template":
        create(cluster, a_claim(SHAPE, {"memory": "8Gi"}))
    ends = template(words, command=("sleep", "1"), restartPolicy="Never")
    job = {"parallelism": 6, "completions": 6, "template": ends}
    spec = job if kind == "Job" else {"schedule": "0 0 * * *", "jobTemplate": {"spec": job}}
    made = [create(cluster, pod) for pod in pods(kind, "batch", **spec)]
    assert len(made) == 6
    for pod in made:
        name = pod["metadata"]["name"]
        cluster.wait_for(PODS, name, lambda p: p["status"].get("phase") == "Succeeded", limit=90)


def test_init_containers_sidecars_and_a_second_container_ask_for_themselves(
    cluster: LocalCluster, words: str
) -> None:
    """With a template, the claim has each container's share.

    With resources, each container asks.
    """
    if words == "template":
        quarter = {"memory": "4Gi"}
        requests = [
            {"name": "fetch", "phase": "Init", "memory": "8Gi"},
            *({"name": name, **quarter} for name in ("proxy", "main", "second")),
        ]
        create(cluster, a_claim("several", *requests))
    amounts = {name: amount // 2 for name, amount in LIMITS[words].items() if amount > 1}
    single = {name: amount for name, amount in LIMITS[words].items() if amount == 1}
    asks = {**single, **amounts}
    annotations = {ANNOTATION_CLAIM_TEMPLATE: "several"} if words == "template" else {}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "several", "namespace": "default", "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": [
                a_container("fetch", LIMITS[words], command=("true",)),
                a_container("proxy", asks, restartPolicy="Always"),
            ],
            "containers": [a_container("main", asks), a_container("second", asks)],
        },
    }
    create(cluster, pod)
    running(cluster, "several", limit=60)
    for container in ("proxy", "main", "second"):
        assert memory_seen(cluster, "several", container=container) == [HALF_MIB // 2]


def test_a_pod_that_asks_twice_for_one_container_is_refused(
    cluster: LocalCluster, words: str
) -> None:
    """It asks by claim and by resources, or in two dialects, so one of the two would be lost."""
    twice = template(words)
    limits = twice["spec"]["containers"][0].setdefault("resources", {}).setdefault("limits", {})
    limits |= LIMITS["volcano" if words == "hami" else "hami"]
    pod = {"apiVersion": "v1", "kind": "Pod", **twice}
    pod["metadata"] = {**twice["metadata"], "name": "twice", "namespace": "default"}
    with pytest.raises(Invalid, match=r"Forbidden: the container asks by|names a claim"):
        create(cluster, pod)
    assert cluster.server.objects("pods", "default") == []
