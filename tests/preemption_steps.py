"""Steps of preemption tests on a real control plane: priority classes, and pods of each class."""

from __future__ import annotations

import time
from typing import Any

from vgpu_api.resources import Resource
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.steps import a_container, a_pod, create, until

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
ENABLED: Object = {"scheduling": {"preemption": {"enabled": True}}}
WATCHED_S = 6.0
STUBBORN = ("sh", "-c", "trap '' TERM; sleep infinity")
"""A command that SIGTERM does not end, so its pod has all of its grace period."""


def add_classes(cluster: LocalCluster) -> None:
    """Create the classes `p100`, `p200`, `p300` and `p1000`, and `polite`, which never preempts."""
    for name, value, policy in (
        ("p100", 100, "PreemptLowerPriority"),
        ("p200", 200, "PreemptLowerPriority"),
        ("p300", 300, "PreemptLowerPriority"),
        ("p1000", 1000, "PreemptLowerPriority"),
        ("polite", 1000, "Never"),
    ):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        obj = {**kind, "metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        cluster.run(cluster.api.create(PRIORITY_CLASSES, obj))


def slices(priority: str, *, grace_s: int = 0, **limits: int) -> Object:
    """Return the spec of a pod with limits: `cpu`, or `gpu` and `gpumem` of nvidia.com.

    With `grace_s` it ends only after that time.
    """
    named = {key if key == "cpu" else f"nvidia.com/{key}": n for key, n in limits.items()}
    more: dict[str, Any] = {"command": STUBBORN} if grace_s else {}
    spec: Object = a_pod("", a_container(limits=named, **more), priorityClassName=priority)["spec"]
    return {**spec, "terminationGracePeriodSeconds": grace_s or 1}


def start(
    cluster: LocalCluster, name: str, priority: str, *, labels: object = None, **limits: int
) -> None:
    """Create a pod of `slices`."""
    pod = {**a_pod(name), "spec": slices(priority, **limits)}
    if labels:
        pod["metadata"]["labels"] = labels
    create(cluster, pod)


def running(cluster: LocalCluster) -> set[str]:
    """Return the names of the pods that run and are not being deleted."""
    return {
        pod["metadata"]["name"]
        for pod in cluster.objects("pods", "default")
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    }


def all_run(cluster: LocalCluster, *names: str) -> None:
    """Wait until exactly these pods run."""
    until(cluster, lambda: running(cluster) == set(names), limit=60.0)


def stays(cluster: LocalCluster, *names: str) -> None:
    """Check that exactly these pods run, for longer than a preemption takes."""
    ends = time.monotonic() + WATCHED_S
    while time.monotonic() < ends:
        assert running(cluster) == set(names)
        time.sleep(0.3)
