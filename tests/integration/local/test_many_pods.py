"""200 pods start at once on 10 nodes × 8 devices, and each sees exactly its own amounts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.quantity import MIB
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.programs import PROBE
from vgpu_local.steps import a_container, a_pod, delete_pod

PODS_AT_ONCE = 200
RUNS_WITHIN_S = 120.0
SEED = 20

pytestmark = pytest.mark.timeout(300)

SHAPES: tuple[tuple[float, dict[str, int]], ...] = (
    (0.45, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 20}),
    (0.20, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 6000, "nvidia.com/gpucores": 30}),
    (0.15, {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2048}),
    (0.10, {"nvidia.com/gpumem-percentage": 25, "nvidia.com/gpucores": 25}),
    (0.10, {"nvidia.com/gpu": 1}),
)
"""Slices of memory and compute, two devices, percentages without a count, whole devices."""


def a_wave(chance: random.Random) -> list[dict[str, Any]]:
    weights = [weight for weight, _ in SHAPES]
    shapes = [limits for _, limits in SHAPES]
    return [
        a_pod(f"pod-{number:03}", a_container(limits=limits))
        for number, limits in enumerate(chance.choices(shapes, weights, k=PODS_AT_ONCE))
    ]


def test_200_pods_at_once_each_get_their_own_and_no_device_is_ever_over_capacity(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    nodes = [gpu_node(f"node-{number}", [T4] * 8) for number in range(10)]
    with whole_cluster(nodes) as cluster:
        pods = a_wave(random.Random(SEED))
        began = time.monotonic()
        for pod in pods:
            cluster.run(cluster.api.create(PODS, pod))
        wait_until_all_run(cluster, began)
        for pod in pods:
            sees_exactly_its_claim(cluster, pod["metadata"]["name"])
        assert len(folders_of_allocations(cluster)) == PODS_AT_ONCE
        for pod in pods:
            delete_pod(cluster, pod["metadata"]["name"])
        wait_until_nothing_is_left(cluster)
        assert excesses(cluster.server.history()) == []


def wait_until_all_run(cluster: LocalCluster, began: float) -> None:
    while True:
        phases = [pod["status"].get("phase") for pod in cluster.server.objects("pods", "default")]
        if phases.count("Running") == PODS_AT_ONCE:
            return
        cluster.check()
        late = time.monotonic() - began
        assert late < RUNS_WITHIN_S, f"{phases.count('Running')} run after {late:.0f} s"
        time.sleep(0.2)


def sees_exactly_its_claim(cluster: LocalCluster, name: str) -> None:
    """Compare what CUDA shows in the container with the claim's status, device by device."""
    (raw,) = (
        claim
        for claim in cluster.server.objects("vgpuclaims.vgpu.dev", "default")
        if claim["metadata"]["ownerReferences"][0]["name"] == name
    )
    allocation = VGPUClaim.read(raw).status.allocation
    assert allocation is not None
    done = cluster.exec(name, [str(PROBE), "info"])
    assert done.exit_code == 0, done.stderr
    seen = {device["uuid"]: device["cuda_total"] for device in json.loads(done.stdout)["devices"]}
    assert seen == {device.uuid: device.memory_mib * MIB for device in allocation.devices}


def wait_until_nothing_is_left(cluster: LocalCluster) -> None:
    deadline = time.monotonic() + 60.0
    while True:
        left = [
            found["metadata"]["name"]
            for plural in ("pods", f"{VGPU_CLAIMS.plural}.{VGPU_CLAIMS.group}")
            for found in cluster.server.objects(plural, "default")
        ]
        left += folders_of_allocations(cluster)
        if not left:
            return
        cluster.check()
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.2)


def folders_of_allocations(cluster: LocalCluster) -> list[str]:
    """Return the folders on the nodes' disks, one for each container with an allocation."""
    slots = [cluster.folder / node / "agent" / "slots" for node in cluster.kubelets]
    return [str(folder) for root in slots for folder in root.glob("*")]
