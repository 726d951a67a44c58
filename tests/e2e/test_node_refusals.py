"""Pods that must not run on a real node, and the event that each of them gets."""

from __future__ import annotations

import json

import pytest

from real_node import Json, RealNode, a_pod, a_slice

MIB = 1 << 20


def _bound(pod: Json) -> Json:
    """Return the pod, bound by a scheduler other than ours."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {key: pod["metadata"][key] for key in ("name", "namespace")},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"},
    }


def _bind(node: RealNode, pod: Json) -> None:
    place = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    node.kubectl("create", "--raw", f"{place}/binding", "-f", "-", given=json.dumps(_bound(pod)))


def _claimless(node: RealNode, namespace: str, annotations: Json | None = None) -> Json:
    """Return a pod that requests a device and whose claim was deleted before it was allocated."""
    claim = {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": "short-lived", "namespace": namespace},
        "spec": {"requests": [{"memory": "4000Gi"}]},
    }
    pod = a_pod("claimless", namespace)
    pod["metadata"]["annotations"] = {"vgpu.dev/claim": "short-lived", **(annotations or {})}
    node.apply(claim)
    node.apply(pod)
    node.kubectl("-n", namespace, "delete", "vgpuclaim", "short-lived", "--timeout=30s")
    return pod


def _waits(node: RealNode, namespace: str, pod: str) -> None:
    """Check that the pod is on the node and that its container was never started."""
    (status,) = node.get("pod", pod, namespace)["status"]["containerStatuses"]
    assert "waiting" in status["state"], status
    assert not status["started"], status


def test_a_pod_with_a_device_and_no_claim_does_not_start(node: RealNode, namespace: str) -> None:
    _bind(node, _claimless(node, namespace))
    node.told(namespace, "claimless", f"no claim on this node is reserved for pod {namespace}/")
    _waits(node, namespace, "claimless")


def test_a_pod_that_another_scheduler_binds_without_an_allocation_does_not_start(
    node: RealNode, namespace: str
) -> None:
    pod = a_pod("elsewhere", namespace, limits=a_slice(1000), schedulerName="somebody-elses")
    pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = "GPU-of-another-cluster"
    node.apply(pod)
    _bind(node, pod)
    node.told(namespace, "elsewhere", "no claim on this node is reserved for pod")
    _waits(node, namespace, "elsewhere")


def test_a_pod_that_names_its_node_itself_is_refused(node: RealNode, namespace: str) -> None:
    pod = a_pod("direct", namespace, limits=a_slice(1000), nodeName="node1")
    assert "the scheduler chooses the node of a pod that asks for a GPU" in node.refusal(pod)


def test_a_forged_record_of_devices_gives_nothing(node: RealNode, namespace: str) -> None:
    device = node.get("gpudevices")["items"][0]["metadata"]["name"].replace("gpu-", "GPU-", 1)
    forged = {
        "hami.io/vgpu-devices-allocated": f"{device},NVIDIA,16384,100:;",
        "hami.io/vgpu-node": "node1",
    }
    claimed = a_pod("claimed", namespace, limits=a_slice(1000))
    claimed["metadata"]["annotations"] = forged
    node.apply(claimed)
    _bind(node, _claimless(node, namespace, forged))
    node.told(namespace, "claimless", "no claim on this node is reserved for pod")
    _waits(node, namespace, "claimless")
    node.ready(namespace, "claimed")
    filled = json.loads(node.shell(namespace, "claimed", "vgpu-probe", "fill"))["filled"]
    assert filled == 1000 * MIB


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (("--as=tenant",), "cannot get resource"),
        ((), "only the operator and the agent of the claim's node write a claim's status"),
    ],
)
def test_nobody_edits_the_status_of_a_claim(
    node: RealNode, namespace: str, who: tuple[str, ...], said: str
) -> None:
    node.kubectl(
        *("-n", namespace, "create", "rolebinding", "tenant", "--clusterrole=admin"),
        "--user=tenant",
    )
    node.apply(a_pod("one", namespace, limits=a_slice(1000)))
    node.ready(namespace, "one")
    (claim,) = node.get("vgpuclaims", namespace=namespace)["items"]
    (device,) = claim["status"]["allocation"]["devices"]
    more = {"status": {"allocation": {"devices": [device | {"memoryMiB": 16000}]}}}
    done = node.attempt(
        *("kubectl", "-n", namespace, *who, "patch", "vgpuclaim", claim["metadata"]["name"]),
        *("--subresource=status", "--type=merge", "-p", json.dumps(more)),
    )
    assert done.returncode != 0
    assert said in done.stderr
    filled = json.loads(node.shell(namespace, "one", "vgpu-probe", "fill"))["filled"]
    assert filled == 1000 * MIB


@pytest.mark.parametrize("source", ["literal", "valueFrom", "envFrom", "image"])
def test_a_pod_without_a_request_sees_no_device_whoever_names_all(
    node: RealNode, namespace: str, source: str
) -> None:
    """Every image of `nvidia/cuda` sets NVIDIA_VISIBLE_DEVICES=all; only the CDI device counts."""
    every = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    by_field = {"fieldRef": {"fieldPath": "metadata.annotations['every']"}}
    where: dict[str, Json] = {
        "literal": {"env": [every]},
        "valueFrom": {"env": [{"name": every["name"], "valueFrom": by_field}]},
        "envFrom": {"envFrom": [{"configMapRef": {"name": "every"}}]},
        "image": {},  # the workload's image sets the variable
    }
    node.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "every", "namespace": namespace},
            "data": {every["name"]: every["value"]},
        }
    )
    pod = a_pod("stranger", namespace)
    pod["metadata"]["annotations"] = {"every": "all"}
    pod["spec"]["containers"][0] |= where[source]
    node.apply(pod)
    node.ready(namespace, "stranger")
    assert node.shell(namespace, "stranger", "printenv", every["name"]).strip() == "all"
    found = node.shell(namespace, "stranger", "sh", "-c", "ls -d /dev/nvidia* 2>/dev/null; true")
    assert found == ""
    place = ("-n", namespace, "exec", "stranger", "--", "vgpu-probe", "fill")
    assert node.attempt("kubectl", *place).returncode != 0
