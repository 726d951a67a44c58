"""A claim's memory changes while its container runs on a real kubelet: no restart, at once."""

from __future__ import annotations

import json

from real_node import RealNode, a_pod, a_slice, until

MIB = 1 << 20


def test_memory_grows_and_shrinks_in_a_container_that_runs(node: RealNode, namespace: str) -> None:
    node.apply(a_pod("resized", namespace, limits=a_slice(3000)))
    node.ready(namespace, "resized")
    (claim,) = node.get("vgpuclaims", namespace=namespace)["items"]
    name = claim["metadata"]["name"]
    for mib in (5000, 2000):
        _ask(node, namespace, name, mib)
        until(
            lambda mib=mib: node.filled(namespace, "resized") == mib * MIB,  # type: ignore[misc]
            f"the container to get {mib} MiB",
        )
        until(lambda: _is_settled(node, namespace, name), "the condition Resized")
    found = node.get("pod", "resized", namespace)
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    (device,) = node.get("vgpuclaim", name, namespace)["status"]["allocation"]["devices"]
    until(lambda: _held(node, namespace, name) == "2000Mi", f"{device} to hold 2000 MiB")


def test_more_than_the_card_has_is_refused_with_both_numbers(
    node: RealNode, namespace: str
) -> None:
    node.apply(a_pod("refused", namespace, limits=a_slice(3000)))
    node.ready(namespace, "refused")
    (claim,) = node.get("vgpuclaims", namespace=namespace)["items"]
    name = claim["metadata"]["name"]
    _ask(node, namespace, name, 1_000_000)
    found = until(lambda: _resized(node, namespace, name, "False"), "the refusal")
    assert found["reason"] == "WaitingForRoom"
    assert "1000000Mi" in found["message"]
    assert "3000Mi" in found["message"]
    assert node.filled(namespace, "refused") == 3000 * MIB


def _ask(node: RealNode, namespace: str, name: str, mib: int) -> None:
    patch = [{"op": "replace", "path": "/spec/requests/0/memory", "value": f"{mib}Mi"}]
    where = ("-n", namespace, "patch", "vgpuclaim", name, "--type=json")
    node.kubectl(*where, "-p", json.dumps(patch))


def _is_settled(node: RealNode, namespace: str, name: str) -> bool:
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
