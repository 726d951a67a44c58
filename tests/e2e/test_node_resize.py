"""A claim's memory changes at once while its container runs on a real kubelet; no restart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from real_node import RealNode, a_pod, until

MIB = 1 << 20


@pytest.fixture
def name(node: RealNode, namespace: str) -> Iterator[str]:
    """Run a pod with a claim of 3000 MiB; return the name that both have."""
    called = "resized"
    claim = {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": called, "namespace": namespace},
        "spec": {"requests": [{"name": "main", "memory": "3000Mi"}]},
    }
    pod = a_pod(called, namespace)
    pod["metadata"]["annotations"] = {"vgpu.dev/claim": called}
    node.apply(claim, pod)
    try:
        node.ready(namespace, called)
        yield called
    finally:  # a claim that a user created stays when its pod goes
        which = (f"pod/{called}", f"vgpuclaim/{called}")
        node.kubectl("-n", namespace, "delete", *which, "--timeout=120s", limit_s=130)


def test_memory_grows_and_shrinks_in_a_container_that_runs(
    node: RealNode, namespace: str, name: str
) -> None:
    for mib in (5000, 2000):
        _ask(node, namespace, name, mib)
        until(
            lambda mib=mib: node.filled(namespace, name) == mib * MIB,  # type: ignore[misc]
            f"the container to get {mib} MiB",
        )
        until(lambda: _is_decided(node, namespace, name), "the condition Resized")
    found = node.get("pod", name, namespace)
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    until(lambda: _held(node, namespace, name) == "2000Mi", "the claim to hold 2000 MiB")


def test_more_than_the_device_has_is_refused_with_both_numbers(
    node: RealNode, namespace: str, name: str
) -> None:
    _ask(node, namespace, name, 1_000_000)
    found = until(lambda: _resized(node, namespace, name, "False"), "the refusal")
    assert found["reason"] == "Impossible"
    assert "1000000Mi" in found["message"]
    assert "3000Mi" in found["message"]
    assert node.filled(namespace, name) == 3000 * MIB


def _ask(node: RealNode, namespace: str, name: str, mib: int) -> None:
    patch = [{"op": "replace", "path": "/spec/requests/0/memory", "value": f"{mib}Mi"}]
    where = ("-n", namespace, "patch", "vgpuclaim", name, "--type=json")
    node.kubectl(*where, "-p", json.dumps(patch))


def _is_decided(node: RealNode, namespace: str, name: str) -> bool:
    claim = node.get("vgpuclaim", name, namespace)
    found = _resized(node, namespace, name, "True")
    return found.get("observedGeneration") == claim["metadata"]["generation"]


def _resized(node: RealNode, namespace: str, name: str, status: str) -> dict[str, str]:
    conditions = node.get("vgpuclaim", name, namespace)["status"].get("conditions", [])
    found = (c for c in conditions if (c["type"], c["status"]) == ("Resized", status))
    return next(found, {})


def _held(node: RealNode, namespace: str, name: str) -> str:
    (device,) = node.get("vgpuclaim", name, namespace)["status"]["allocation"]["devices"]
    return str(device["memory"])
