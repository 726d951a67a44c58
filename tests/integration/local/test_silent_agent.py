"""An agent that hangs is noticed, and its node gets no allocations until it is back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import GPU_DEVICES, PODS
from vgpu_local.agent_pod import agent_pod
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod, create, running

pytestmark = pytest.mark.timeout(180)


def ready(status: str) -> Callable[[dict[str, Any]], bool]:
    def holds(obj: dict[str, Any]) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or []
        return any(c["type"] == "Ready" and c["status"] == status for c in conditions)

    return holds


def is_unschedulable(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions
    )


def test_a_stopped_agents_devices_are_unknown_in_forty_seconds_and_ready_when_it_goes_on(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    with whole_cluster([t4_node("n1")]) as cluster:
        name = agent_pod("n1")["metadata"]["name"]
        cluster.wait_for(PODS, name, ready("True"), namespace=AGENT_NAMESPACE, limit=30)
        (device,) = (d["metadata"]["name"] for d in cluster.objects("gpudevices.vgpu.dev"))
        agent = cluster.agents["n1"].pid
        os.kill(agent, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            marked = cluster.wait_for(GPU_DEVICES, device, ready("Unknown"), limit=60)
            assert time.monotonic() - stopped < 40
            (said,) = (c for c in marked["status"]["conditions"] if c["type"] == "Ready")
            assert said["reason"] == "AgentSilent"
            limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
            create(cluster, a_pod("waits", a_container(limits=limits)))
            cluster.wait_for(PODS, "waits", is_unschedulable, limit=30)
        finally:
            os.kill(agent, signal.SIGCONT)
        cluster.wait_for(GPU_DEVICES, device, ready("True"), limit=30)
        running(cluster, "waits")
