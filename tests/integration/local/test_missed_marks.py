"""An agent that missed the mark of a change catches up, and serves no stale claim.

The operator marks pods: the agent's pod when a device's settings change, and the pod with the slice
when it is resized.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_local.apiserver.faults import Fault
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod, create, running
from vgpu_nodeagent.enforcement.page import read_page

pytestmark = pytest.mark.timeout(240)

WITHIN_S = 30.0
MIB = 1 << 20


def test_settings_and_a_resize_whose_marks_are_refused_take_effect_soon_afterwards(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    with whole_cluster([t4_node("n1")]) as cluster:
        (device,) = (d["metadata"]["name"] for d in cluster.objects("gpudevices.vgpu.dev"))
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
        create(cluster, a_pod("grows", a_container(limits=limits)))
        running(cluster, "grows")
        environment = cluster.kubelets["n1"].environment("default", "grows", "main")
        page = Path(environment["VGPU_LIMIT_PAGE"])
        (claim,) = cluster.objects("vgpuclaims.vgpu.dev")
        name = claim["metadata"]["name"]
        marks = Fault(
            action="refuse",
            verb="patch",
            resource="pods",
            user=cluster.leader().name,
            times=None,
        )
        cluster.server.faults.add(marks)
        (request,) = claim["spec"]["requests"]
        asked = {"spec": {"requests": [{**request, "memory": "2000Mi"}]}}
        cluster.run(cluster.api.merge_patch(VGPU_CLAIMS, name, asked, namespace="default"))
        settings = {"spec": {"slots": 3}}
        cluster.run(cluster.api.merge_patch(GPU_DEVICES, device, settings))
        cluster.wait_for(
            VGPU_CLAIMS,
            name,
            lambda c: c["status"]["allocation"]["devices"][0]["memory"] != "1000Mi",
        )
        shown = cluster.run(cluster.api.get(GPU_DEVICES, device))
        assert shown["status"]["allocatable"]["slots"] != 3
        assert [limit.memory_bytes for limit in read_page(page).devices] == [1000 * MIB]
        cluster.server.faults.clear()
        began = time.monotonic()
        cluster.wait_for(
            GPU_DEVICES, device, lambda d: d["status"]["allocatable"]["slots"] == 3, limit=60
        )
        cluster.wait_for(VGPU_CLAIMS, name, is_resized, limit=60)
        assert time.monotonic() - began < WITHIN_S
        assert [limit.memory_bytes for limit in read_page(page).devices] == [2000 * MIB]


def is_resized(claim: dict[str, dict[str, object]]) -> bool:
    conditions = claim["status"].get("conditions") or []
    assert isinstance(conditions, list)
    return any(c["type"] == "Resized" and c["status"] == "True" for c in conditions)
