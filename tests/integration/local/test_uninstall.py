"""`kubectl vgpu uninstall` on a whole cluster finishes, even if programs still run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.names import AGENT_NAMESPACE, HAMI_NODE_REGISTER
from vgpu_api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOKS,
    PODS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
)
from vgpu_local.agent_pod import agent_pod
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim_name,
    create,
    delete_pod,
    grant_the_operators_account,
    kubectl_vgpu,
    running,
)

pytestmark = pytest.mark.timeout(240)

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}


def is_unready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "False" for c in conditions)


def label_what_is_installed(cluster: LocalCluster) -> None:
    """Label the stand-in's webhooks and kinds as manifests/ does."""
    labels = {"metadata": {"labels": {"app.kubernetes.io/part-of": "vgpu"}}}
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, CUSTOM_RESOURCE_DEFINITIONS):
        for found in cluster.run(cluster.api.list(resource)).items:
            cluster.run(cluster.api.merge_patch(resource, found["metadata"]["name"], labels))


def a_user(cluster: LocalCluster) -> str:
    create(cluster, a_pod("user", a_container(limits=LIMITS)))
    return claim_name(running(cluster, "user"))


def test_nothing_of_ours_is_left(whole_cluster: Callable[..., LocalCluster]) -> None:
    with whole_cluster([t4_node("n1")]) as cluster:
        label_what_is_installed(cluster)
        a_user(cluster)
        dry = kubectl_vgpu(cluster, "uninstall", "--dry-run")
        assert dry.returncode == 0
        assert "delete 1 claims and wait until they are released" in dry.stdout
        refused = kubectl_vgpu(cluster, "uninstall", "--yes")
        assert refused.returncode == 2
        assert "pod default/user uses a GPU" in refused.stderr
        assert cluster.objects("vgpuclaims.vgpu.dev")  # nothing was deleted yet
        done = kubectl_vgpu(
            cluster, "uninstall", "--yes", "--delete-pods", "--no-wait-for-capacity"
        )
        assert "finalizer removed" not in done.stdout  # the operator released it in the regular way
        assert "hosts were not cleaned" in done.stderr  # no DaemonSet runs the agents here
        assert cluster.objects("customresourcedefinitions.apiextensions.k8s.io") == []
        assert cluster.run(cluster.api.list(MUTATING_WEBHOOKS)).items == []


def test_it_ends_with_operator_and_agent_gone(whole_cluster: Callable[..., LocalCluster]) -> None:
    """With GPU pods running, `kubectl delete -k` used to leave the CRDs behind."""
    with whole_cluster([t4_node("n1")]) as cluster:
        label_what_is_installed(cluster)
        name = a_user(cluster)
        for daemon in (cluster.operator, *cluster.webhooks, cluster.agents["n1"]):
            os.kill(daemon.pid, signal.SIGSTOP)
        began = time.monotonic()
        done = kubectl_vgpu(
            cluster, "uninstall", "--yes", "--delete-pods", "--no-wait-for-capacity"
        )
        assert time.monotonic() - began < 120
        assert f"claim default/{name}: finalizer removed" in done.stdout
        assert cluster.objects("customresourcedefinitions.apiextensions.k8s.io") == []
        assert "still exists" not in done.stderr
        (node,) = cluster.objects("nodes")
        assert HAMI_NODE_REGISTER not in node["metadata"].get("annotations", {})


def test_a_lost_nodes_claim_is_released_when_an_administrator_says_so(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    with whole_cluster([t4_node("n1")]) as cluster:
        grant_the_operators_account(cluster)
        name = a_user(cluster)
        os.kill(cluster.agents["n1"].pid, signal.SIGSTOP)
        # That it hangs shows only once the kubelet reports it unready.
        agent = agent_pod("n1")["metadata"]["name"]
        cluster.wait_for(PODS, agent, is_unready, namespace=AGENT_NAMESPACE, limit=60)
        refused = kubectl_vgpu(cluster, "release", "--node", "n1", "--yes")
        assert refused.returncode == 2
        assert "pod default/user uses a GPU" in refused.stderr
        done = kubectl_vgpu(cluster, "release", "--node", "n1", "--yes", "--delete-pods")
        assert done.returncode == 0, done.stderr
        assert f"claim default/{name}: released" in done.stdout
        held = [c for c in cluster.objects("vgpuclaims.vgpu.dev") if "allocation" in c["status"]]
        assert held == []


def test_a_deleted_claim_of_a_silent_agent_ends_by_itself(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    options = ClusterOptions(agent_gone_s=10)
    with whole_cluster([t4_node("n1")], options) as cluster:
        name = a_user(cluster)
        os.kill(cluster.agents["n1"].pid, signal.SIGSTOP)
        delete_pod(cluster, "user")
        deadline = time.monotonic() + 120
        while any(
            found["metadata"]["name"] == name
            for found in cluster.run(cluster.api.list(VGPU_CLAIMS)).items
        ):
            assert time.monotonic() < deadline, "the claim is still there"
            time.sleep(0.5)
