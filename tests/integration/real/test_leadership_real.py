"""Two operators on Kubernetes itself: its scheduler finds the leader in the EndpointSlice."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from vgpu_api.resources import ENDPOINT_SLICES, PODS
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import NAMESPACE, SERVICE
from vgpu_local.real_cluster import real_cluster

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
