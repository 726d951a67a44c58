"""Two operators on real Kubernetes: kube-scheduler finds the leader through the EndpointSlice."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from vgpu_api.resources import ENDPOINT_SLICES, PODS
from vgpu_local.apiserver.faults import Fault
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.pod_groups import PodGroups, in_group
from vgpu_local.programs import NAMESPACE, SERVICE
from vgpu_local.real_cluster import RealControlPlane, real_cluster

pytestmark = pytest.mark.timeout(180)


def a_pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container]},
    }


def runs(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def test_pods_are_placed_by_the_successor_of_a_leader_that_went() -> None:
    with real_cluster([t4_node("one")], ClusterOptions(operators=2, lease_s=4)) as cluster:
        first = cluster.leader()
        second = next(daemon for daemon in cluster.operators if daemon is not first)
        cluster.run(cluster.api.create(PODS, a_pod("before")))
        cluster.wait_for(PODS, "before", runs, limit=60)
        first.may_end()
        first.signal(signal.SIGTERM)
        assert first.wait(30) == 0
        cluster.wait_ready()
        assert cluster.leader() is second
        cluster.run(cluster.api.create(PODS, a_pod("after")))
        cluster.wait_for(PODS, "after", runs, limit=60)
        slices = cluster.run(cluster.api.list(ENDPOINT_SLICES, namespace=NAMESPACE)).items
        (found,) = [item for item in slices if item["metadata"]["name"] == f"{SERVICE}-vgpu"]
        number = second.name.rpartition("-")[2]
        assert found["endpoints"][0]["addresses"] == [f"192.0.2.{int(number) + 1}"]


def test_a_successor_finishes_a_gang_whose_leader_was_killed_between_two_bindings(
    pod_groups: PodGroups,
) -> None:
    """Both claims have their devices, and the leader has not sent the second Binding."""
    nodes, options = [t4_node("one"), t4_node("two")], ClusterOptions(operators=2, lease_s=4)
    foundation = RealControlPlane(pod_groups.options)
    with real_cluster(nodes, options, foundation=foundation) as cluster:
        first = cluster.leader()
        cluster.server.faults.add(
            Fault(action="refuse", resource="pods/binding", name="pair-1", times=None)
        )
        cluster.run(cluster.api.create(pod_groups.resource, pod_groups.gang("pair", least=2)))
        for name in ("pair-0", "pair-1"):
            pod = a_pod(name)
            pod["spec"] |= in_group("pair")
            cluster.run(cluster.api.create(PODS, pod))
        cluster.wait_for(PODS, "pair-0", lambda pod: bool(pod["spec"].get("nodeName")), limit=60)
        first.may_end()
        first.signal(signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL
        cluster.wait_ready()
        cluster.server.faults.clear()
        for name in ("pair-0", "pair-1"):
            cluster.wait_for(PODS, name, runs, limit=60)
