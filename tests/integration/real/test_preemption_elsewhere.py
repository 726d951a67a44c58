"""Preemption of slices on Kubernetes itself where the leader ends, and in mode `Gate`."""

from __future__ import annotations

import signal

import pytest

from preemption_steps import ENABLED, add_classes, all_run, running, start, stays
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_local.apiserver.faults import Fault
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.real_cluster import real_cluster
from vgpu_local.steps import delete_pod, empty, until

pytestmark = pytest.mark.timeout(240)


def test_a_successor_evicts_the_victim_that_its_predecessor_has_left_and_no_other() -> None:
    """The leader is killed between its two evictions; another node has a more important pod."""
    nodes = [gpu_node(name, [T4], shape=NodeShape(name, cpu=4)) for name in ("n1", "n2")]
    options = ClusterOptions(config=ENABLED, operators=2, lease_s=4)
    with real_cluster(nodes, options) as cluster:
        add_classes(cluster)
        start(cluster, "other", "p300", gpu=1, gpumem=16000)
        all_run(cluster, "other")
        for name in ("first", "second"):
            start(cluster, name, "p100" if name == "first" else "p200", gpu=1, gpumem=8000)
        all_run(cluster, "other", "first", "second")
        refused = Fault(action="refuse", resource="pods/eviction", name="second", times=None)
        cluster.server.faults.add(refused)
        start(cluster, "high", "p1000", gpu=1, gpumem=16000)
        until(cluster, lambda: cluster.server.faults.count(refused), limit=60.0)
        assert "first" not in running(cluster)
        leader = cluster.leader()
        leader.may_end()
        leader.signal(signal.SIGKILL)
        assert leader.wait(30) == -signal.SIGKILL
        cluster.server.faults.clear()
        cluster.wait_ready()
        all_run(cluster, "other", "high")


def test_behind_a_gate_a_pod_preempts_for_devices_but_not_for_cpu() -> None:
    """kube-scheduler sees a pod without its gate only once it has devices, and preempts for CPU."""
    config = {"scheduling": {"mode": "Gate", **ENABLED["scheduling"]}}
    node = gpu_node("t4", [T4], shape=NodeShape("t4", cpu=4))
    with real_cluster([node], ClusterOptions(config=config)) as cluster:
        add_classes(cluster)
        start(cluster, "low", "p100", gpu=1, gpumem=16000, cpu=3)
        all_run(cluster, "low")
        start(cluster, "large", "p1000", gpu=1, gpumem=8000, cpu=3)
        stays(cluster, "low")
        pod = cluster.run(cluster.api.get(PODS, "large", namespace="default"))
        assert {"name": SCHEDULING_GATE} in pod["spec"]["schedulingGates"]
        delete_pod(cluster, "large")
        start(cluster, "small", "p1000", gpu=1, gpumem=8000, cpu=1)
        all_run(cluster, "small")
        empty(cluster, limit=60.0)
