"""Claims mode on a real node: a stock kube-scheduler binds, and containerd applies the CDI spec."""

from __future__ import annotations

import json
import time

import pytest

from real_node import AGENTS, Json, RealNode, a_deployment, a_pod, a_slice, until

MIB = 1 << 20
UUID = "nvidia.com/use-gpuuuid"

pytestmark = pytest.mark.timeout(600)


def _claim(node: RealNode, namespace: str, pod: Json) -> Json | None:
    """Return the VGPUClaim of a pod, or None."""
    for claim in node.get("vgpuclaims", namespace=namespace)["items"]:
        if (claim["status"].get("reservedFor") or {}).get("podUID") == pod["metadata"]["uid"]:
            return dict(claim)
    return None


def _device(node: RealNode, namespace: str, pod: Json) -> str:
    """Return the UUID of the device that a pod holds, or an empty text."""
    claim = _claim(node, namespace, pod)
    allocation = claim and claim["status"].get("allocation")
    return str(allocation["devices"][0]["uuid"]) if allocation else ""


def _whole_t4(node: RealNode, name: str, namespace: str) -> Json:
    """Return a pod for all memory of the first T4."""
    found = node.get("gpudevices")["items"]
    device = min(each["metadata"]["name"] for each in found)
    pod = a_pod(name, namespace, limits=a_slice(16384))
    pod["metadata"]["annotations"] = {UUID: device.replace("gpu-", "GPU-", 1)}
    return pod


def test_a_stock_scheduler_binds_the_pod_and_its_container_fills_its_slice(
    node: RealNode, namespace: str
) -> None:
    node.apply(a_pod("first", namespace, limits=a_slice(3000, cores=30)))
    node.ready(namespace, "first")
    pod = node.get("pod", "first", namespace)
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    (container,) = pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert node.filled(namespace, "first") == 3000 * MIB

    (claim,) = node.get("resourceclaims", namespace=namespace)["items"]
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == ("vgpu.dev", "node1")
    (spec,) = node.run("ls", "/run/cdi").split()
    assert f"share-{result['shareID']}" in node.run("cat", f"/run/cdi/{spec}")
    node.clear(namespace)
    until(
        lambda: not node.get("resourceclaims", namespace=namespace)["items"],
        "the ResourceClaim to go with its pod",
    )
    assert node.run("ls", "/run/cdi") == ""


def test_a_forced_deletion_gives_no_device_away_while_its_container_runs(
    node: RealNode, namespace: str
) -> None:
    node.apply(_whole_t4(node, "stubborn", namespace))
    node.ready(namespace, "stubborn")
    before = node.get("pod", "stubborn", namespace)
    device = _device(node, namespace, before)
    assert device
    with node.without("kubelet"):  # which would end the container
        force = ("--force", "--grace-period=0")
        node.kubectl("-n", namespace, "delete", "pod", "stubborn", *force)
        node.apply(_whole_t4(node, "next", namespace))
        for _ in range(10):
            assert _device(node, namespace, before) == device
            assert "nodeName" not in node.get("pod", "next", namespace)["spec"]
            time.sleep(1)
    node.ready(namespace, "next", limit_s=240)
    assert _device(node, namespace, node.get("pod", "next", namespace)) == device
    assert node.filled(namespace, "next") == 16384 * MIB


def test_without_an_agent_a_deleted_pod_waits_and_keeps_its_device(
    node: RealNode, namespace: str
) -> None:
    node.apply(a_pod("waiting", namespace, limits=a_slice(2000)))
    node.ready(namespace, "waiting")
    pod = node.get("pod", "waiting", namespace)
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}
    everywhere = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": None}}}}}
    agents = ("-n", AGENTS, "patch", "daemonset", "vgpu-nodeagent", "--type=strategic", "-p")
    node.kubectl(*agents, json.dumps(nowhere))
    try:
        until(lambda: not node.get("pods", namespace=AGENTS)["items"], "the agent to end")
        node.kubectl("-n", namespace, "delete", "pod", "waiting", "--wait=false")
        time.sleep(15)  # three times its grace period
        (status,) = node.get("pod", "waiting", namespace)["status"]["containerStatuses"]
        assert "terminated" in status["state"]
        assert _device(node, namespace, pod)
    finally:
        node.kubectl(*agents, json.dumps(everywhere))
    gone = ("wait", "--for=delete", "pod/waiting", "--timeout=180s")
    node.kubectl("-n", namespace, *gone, limit_s=190)
    until(lambda: not _device(node, namespace, pod), "its device to be free")


def test_a_drain_frees_all_devices_and_their_pods_come_back(node: RealNode, namespace: str) -> None:
    moved = a_deployment("moved", namespace, replicas=3, limits=a_slice(2000))
    node.apply(moved)
    until(lambda: len(node.running(moved)) == 3, "three pods to run", limit_s=120)
    node.kubectl("drain", "node1", "--pod-selector=app=moved", "--timeout=120s", limit_s=130)
    try:
        until(
            lambda: all(
                "nodeName" not in pod["spec"]
                for pod in node.get("pods", namespace=namespace)["items"]
            ),
            "only pods without a node",
        )
        node.nothing_is_left()
    finally:
        node.kubectl("uncordon", "node1")
    until(lambda: len(node.running(moved)) == 3, "three pods to run again", limit_s=120)


def test_slices_show_each_device_and_come_back_after_a_restart_of_the_kubelet(
    node: RealNode,
) -> None:
    def shown() -> dict[str, int]:
        slices = node.get("resourceslices")["items"]
        return {each["metadata"]["uid"]: len(each["spec"]["devices"]) for each in slices}

    before = until(shown, "the slices of the node")
    assert sum(before.values()) == len(node.get("gpudevices")["items"])
    node.restart("kubelet")

    def others() -> dict[str, int]:
        return {uid: devices for uid, devices in shown().items() if uid not in before}

    after = until(others, "slices with other UIDs", limit_s=120)
    assert sum(after.values()) == sum(before.values())
