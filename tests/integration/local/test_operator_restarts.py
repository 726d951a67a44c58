"""Claims keep their devices while the operator, the agent or the kubelet restarts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.errors import ServerError
from vgpu_local import steps
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_container, a_pod, delete_pod, running, until

pytestmark = pytest.mark.timeout(180)

HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(lease_s=4)
    with whole_cluster([t4_node("one"), t4_node("two")], options) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def create(cluster: LocalCluster, name: str) -> None:
    steps.create(cluster, a_pod(name, a_container(limits=HALF)))


def allocations(cluster: LocalCluster) -> dict[str, Any]:
    """Return the allocations by the name of the pod they are reserved for."""
    return {
        claim["status"]["reservedFor"]["podName"]: claim["status"]["allocation"]
        for claim in cluster.server.objects("vgpuclaims.vgpu.dev", "default")
        if claim.get("status", {}).get("reservedFor")
    }


def restart(cluster: LocalCluster) -> None:
    cluster.operator.kill()
    cluster.operator.start()


def test_a_new_operator_keeps_what_was_given_and_gives_no_device_twice(
    cluster: LocalCluster,
) -> None:
    for number in range(3):
        create(cluster, f"before-{number}")
    for number in range(3):
        running(cluster, f"before-{number}")
    before = allocations(cluster)
    restart(cluster)
    cluster.wait_ready()
    create(cluster, "after-0")
    running(cluster, "after-0")
    create(cluster, "after-1")  # four halves of two devices are allocated
    assert {name: allocations(cluster)[name] for name in before} == before
    refused_for_memory(cluster, "after-1")


def test_nothing_that_asks_for_a_gpu_gets_in_while_no_webhook_is_served(
    cluster: LocalCluster,
) -> None:
    (webhook,) = cluster.webhooks
    create(cluster, "first")
    running(cluster, "first")
    webhook.kill()
    with pytest.raises(ServerError, match="failed calling webhook"):  # the webhooks fail closed
        create(cluster, "refused")
    webhook.start()
    cluster.wait_ready()
    create(cluster, "second")
    running(cluster, "second")


def test_a_pod_that_is_created_while_no_operator_runs_is_admitted_and_starts_when_one_does(
    cluster: LocalCluster,
) -> None:
    cluster.operator.kill()
    create(cluster, "patient")
    pod = cluster.wait_for(PODS, "patient", lambda _: True)
    (container,) = pod["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    cluster.operator.start()
    cluster.wait_ready()
    running(cluster, "patient")


def test_an_operator_that_hangs_delays_no_admission(cluster: LocalCluster) -> None:
    """However busy the deciding loop is, pods are admitted and then wait for it."""
    cluster.operator.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        create(cluster, "admitted")
        assert time.monotonic() - began < 5  # of the ten that a webhook may take
        pod = cluster.wait_for(PODS, "admitted", lambda _: True)
        assert pod["spec"]["schedulerName"] == "vgpu-scheduler"
    finally:
        cluster.operator.signal(signal.SIGCONT)
    running(cluster, "admitted")


def test_an_agent_that_is_killed_starts_pods_again_and_frees_what_ended_meanwhile(
    cluster: LocalCluster,
) -> None:
    create(cluster, "stays")
    create(cluster, "goes")
    node = running(cluster, "stays")["spec"]["nodeName"]
    running(cluster, "goes")
    agent = cluster.agents[node]
    agent.kill()
    delete_pod(cluster, "goes")
    agent.start()
    cluster.wait_ready()
    create(cluster, "comes")
    running(cluster, "comes")
    until(cluster, lambda: "goes" not in allocations(cluster))
    assert set(allocations(cluster)) == {"stays", "comes"}


def test_a_kubelet_restart_leaves_running_pods_their_devices(cluster: LocalCluster) -> None:
    create(cluster, "stays")
    pod = running(cluster, "stays")
    before = allocations(cluster)
    cluster.restart_kubelet(pod["spec"]["nodeName"])
    cluster.wait_ready()
    create(cluster, "comes")
    running(cluster, "comes")
    assert allocations(cluster)["stays"] == before["stays"]


def refused_for_memory(cluster: LocalCluster, pod: str) -> None:
    uid = cluster.wait_for(PODS, pod, lambda _: True)["metadata"]["uid"]

    def says_why(claim: dict[str, Any]) -> bool:
        conditions = claim.get("status", {}).get("conditions", [])
        return any(c["reason"] == "CardInsufficientMemory" for c in conditions)

    cluster.wait_for(VGPU_CLAIMS, f"{pod}-{uid[:8]}", says_why)
