"""Whatever restarts on a real node: who runs keeps its limits, who comes gets them, no slot leaks.

Who comes has a controller. A pod that is bound in the second in which the kubelet has no device
plugin, or no agent answers it, fails for good: that is how the kubelet admits pods with devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from real_node import AGENTS, SYSTEM, Json, RealNode, a_deployment, a_pod, a_slice, until

MIB = 1 << 20

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True)
class Held:
    """A pod that runs through it all."""

    node: RealNode
    namespace: str
    name: str = "held"
    memory_mib: int = 4000

    def is_limited(self) -> None:
        """It still runs in its first container, and fills what it was given."""
        status = self.node.get("pod", self.name, self.namespace)["status"]
        assert status["containerStatuses"][0]["restartCount"] == 0
        assert _filled(self.node, self.namespace, self.name) == self.memory_mib * MIB


def _filled(node: RealNode, namespace: str, pod: str) -> int:
    return int(json.loads(node.shell(namespace, pod, "vgpu-probe", "fill"))["filled"])


@pytest.fixture(scope="module")
def held(node: RealNode) -> Iterator[Held]:
    with node.namespace() as namespace:
        pod = Held(node, namespace)
        node.apply(a_pod(pod.name, namespace, limits=a_slice(pod.memory_mib)))
        node.ready(namespace, pod.name)
        yield pod
    _nothing_is_left(node)


def _kill(node: RealNode, namespace: str, component: str) -> None:
    """Kill the processes of a component: its containers are started again."""
    label = f"app.kubernetes.io/component={component}"
    found = json.loads(node.kubectl("-n", namespace, "get", "pods", "-l", label, "-o", "json"))[
        "items"
    ]
    for pod in found:
        for status in pod["status"]["containerStatuses"]:
            container = status["containerID"].removeprefix("containerd://")
            kill = ("ctr", "-n", "k8s.io", "tasks", "kill", "-s", "KILL", container)
            node.attempt("env", "CONTAINERD_ADDRESS=/run/containerd/containerd.sock", *kill)


RESTARTS = {
    "kubelet": lambda node: node.restart("kubelet"),
    "containerd": lambda node: node.restart("containerd"),
    "agent": lambda node: _kill(node, AGENTS, "nodeagent"),
    "operator": lambda node: _kill(node, SYSTEM, "operator"),
}


def _all_at_once(node: RealNode) -> None:
    _kill(node, SYSTEM, "operator")
    _kill(node, AGENTS, "nodeagent")
    node.restart("kubelet", "containerd")


@pytest.mark.parametrize("what", [*RESTARTS, "all of them"])
def test_after_a_restart_old_pods_keep_their_limits_and_new_ones_start(
    held: Held, what: str
) -> None:
    node, namespace = held.node, held.namespace
    RESTARTS.get(what, _all_at_once)(node)
    fresh = a_deployment(f"after-{what.split()[0]}", namespace, limits=a_slice(2000))
    # Admission is the operator's: while it restarts, the API server refuses GPU pods.
    node.apply(fresh)
    (pod,) = until(lambda: _running(node, fresh), "a new pod to run", limit_s=180)
    assert _filled(node, namespace, pod) == 2000 * MIB
    held.is_limited()
    node.kubectl("-n", namespace, "delete", "deployment", fresh["metadata"]["name"])


def _nothing_is_left(node: RealNode) -> None:
    """No slot, no spec, no page and no use of a card remains of pods that are gone."""

    def leftovers() -> str:
        slots = node.run("sh", "-c", "ls /var/lib/vgpu/slots /run/cdi")
        leases = [word for word in slots.split() if not word.endswith(":")]
        used = [
            device["metadata"]["name"]
            for device in node.get("gpudevices")["items"]
            if device["status"].get("claims")
        ]
        return " ".join([*leases, *used])

    until(lambda: not leftovers(), f"everything to be given back: {leftovers()}", limit_s=90)


def test_after_a_reboot_controllers_replace_their_pods_and_no_stale_grant_holds(
    node: RealNode, namespace: str
) -> None:
    _nothing_is_left(node)
    replaced = a_deployment("replaced", namespace, replicas=3, limits=a_slice(6000))
    node.apply(replaced)
    until(lambda: len(_running(node, replaced)) == 3, "three pods to run", limit_s=180)
    old = _leases(node)
    assert len(old) == 3

    node.off()
    node.on()
    pods = until(lambda: _three(node, replaced), "three pods to run again", limit_s=300)
    for name in pods:
        assert _filled(node, namespace, name) == 6000 * MIB
    # A device name that was handed out before has no door any more, whatever still knows it.
    until(lambda: not old & _specs(node) or _kept(node, old), "old grants to be closed")
    node.clear(namespace)
    _nothing_is_left(node)


def _leases(node: RealNode) -> set[str]:
    return set(node.run("ls", "/var/lib/vgpu/slots").split())


def _specs(node: RealNode) -> set[str]:
    listed = node.run("ls", "/run/cdi").split()
    return {name.partition("_")[2].removesuffix(".json") for name in listed}


def _kept(node: RealNode, old: set[str]) -> bool:
    """Old doors that are open again belong to pods that lived on and were prepared anew."""
    return (old & _specs(node)) <= _leases(node)


def _three(node: RealNode, deployment: Json) -> list[str]:
    running = _running(node, deployment)
    return running if len(running) == 3 else []


def _running(node: RealNode, deployment: Json) -> list[str]:
    """The pods of a deployment that are ready, and in which a program can be started."""
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    found = []
    for pod in node.get("pods", namespace=namespace)["items"]:
        place = ("-n", namespace, "exec", pod["metadata"]["name"], "--", "true")
        if (
            pod["metadata"].get("labels", {}).get("app") == name
            and "deletionTimestamp" not in pod["metadata"]
            and _is_ready(pod)
            and node.attempt("kubectl", *place).returncode == 0
        ):
            found.append(pod["metadata"]["name"])
    return found


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
