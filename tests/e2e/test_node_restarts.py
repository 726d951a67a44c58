"""Whatever restarts on a real node, running pods keep their limits and new pods get them.

No slot leaks either. New pods need a controller: a pod that is bound in the second in which the
kubelet has no device plugin, or gets no answer from an agent, fails permanently. That is how the
kubelet admits pods with devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from real_node import AGENTS, SYSTEM, RealNode, a_deployment, a_pod, a_slice, until

MIB = 1 << 20

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True)
class Held:
    """A pod that runs all the time."""

    node: RealNode
    namespace: str
    name: str = "held"
    memory_mib: int = 4000

    def is_limited(self) -> None:
        """Check that the pod still runs in its first container and can fill its memory limit."""
        status = self.node.get("pod", self.name, self.namespace)["status"]
        assert status["containerStatuses"][0]["restartCount"] == 0
        assert self.node.filled(self.namespace, self.name) == self.memory_mib * MIB


@pytest.fixture(scope="module")
def held(node: RealNode) -> Iterator[Held]:
    with node.namespace() as namespace:
        pod = Held(node, namespace)
        node.apply(a_pod(pod.name, namespace, limits=a_slice(pod.memory_mib)))
        node.ready(namespace, pod.name)
        yield pod
    node.nothing_is_left()


def _kill(node: RealNode, namespace: str, component: str, *, signal: str = "KILL") -> None:
    """Kill the processes of a component; its containers are restarted."""
    label = f"app.kubernetes.io/component={component}"
    found = json.loads(node.kubectl("-n", namespace, "get", "pods", "-l", label, "-o", "json"))[
        "items"
    ]
    for pod in found:
        for status in pod["status"]["containerStatuses"]:
            container = status["containerID"].removeprefix("containerd://")
            kill = ("ctr", "-n", "k8s.io", "tasks", "kill", "-s", signal, container)
            node.attempt("env", "CONTAINERD_ADDRESS=/run/containerd/containerd.sock", *kill)


RESTARTS = {
    "kubelet": lambda node: node.restart("kubelet"),
    "containerd": lambda node: node.restart("containerd"),
    "agent": lambda node: _kill(node, AGENTS, "nodeagent"),
    "operator": lambda node: _kill(node, SYSTEM, "operator"),
    "webhook": lambda node: _kill(node, SYSTEM, "webhook"),
}


def _all_at_once(node: RealNode) -> None:
    _kill(node, SYSTEM, "operator")
    _kill(node, SYSTEM, "webhook")
    _kill(node, AGENTS, "nodeagent")
    node.restart("kubelet", "containerd")


@pytest.mark.parametrize("what", [*RESTARTS, "all of them"])
def test_after_a_restart_old_pods_keep_their_limits_and_new_ones_start(
    held: Held, what: str
) -> None:
    node, namespace = held.node, held.namespace
    RESTARTS.get(what, _all_at_once)(node)
    fresh = a_deployment(f"after-{what.split()[0]}", namespace, limits=a_slice(2000))
    # While the webhooks restart, the API server refuses GPU pods; a Deployment retries.
    node.apply(fresh)
    (pod,) = until(lambda: node.running(fresh), "a new pod to run", limit_s=180)
    assert node.filled(namespace, pod) == 2000 * MIB
    held.is_limited()
    node.kubectl("-n", namespace, "delete", "deployment", fresh["metadata"]["name"])


def test_during_an_update_of_the_agent_every_pod_that_comes_starts(held: Held) -> None:
    """The next agent is ready before the last one ends, so no pod waits for its start."""
    node, namespace = held.node, held.namespace
    rollout = ("-n", AGENTS, "rollout")
    node.kubectl(*rollout, "restart", "daemonset/vgpu-nodeagent")
    comers = [a_deployment(f"during-{n}", namespace, limits=a_slice(1000)) for n in range(10)]
    for comer in comers:
        node.apply(comer)
        until(lambda comer=comer: node.running(comer), "a pod to run", limit_s=30)
    node.kubectl(*rollout, "status", "daemonset/vgpu-nodeagent", "--timeout=120s")
    last = a_deployment("after-update", namespace, limits=a_slice(1000))
    node.apply(last)
    until(lambda: node.running(last), "a pod to run", limit_s=30)
    held.is_limited()
    for comer in (*comers, last):
        node.kubectl("-n", namespace, "delete", "deployment", comer["metadata"]["name"])


def test_an_agent_that_hangs_is_restarted_and_who_came_meanwhile_starts(held: Held) -> None:
    """A stopped agent answers neither the kubelet nor its probe, and is not ready."""
    node, namespace = held.node, held.namespace
    before = _restarts_of_agent(node)
    _kill(node, AGENTS, "nodeagent", signal="STOP")
    comer = a_deployment("during-hang", namespace, limits=a_slice(1000))
    node.apply(comer)
    until(lambda: _restarts_of_agent(node) > before, "the agent to be restarted", limit_s=120)
    until(lambda: _ready_devices(node) == {"True"}, "devices to be ready again", limit_s=60)
    (pod,) = until(lambda: node.running(comer), "the pod to run", limit_s=180)
    assert node.filled(namespace, pod) == 1000 * MIB
    held.is_limited()
    node.kubectl("-n", namespace, "delete", "deployment", "during-hang")


def _restarts_of_agent(node: RealNode) -> int:
    (pod,) = node.get("pods", namespace=AGENTS)["items"]
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def _ready_devices(node: RealNode) -> set[str]:
    return {
        condition["status"]
        for device in node.get("gpudevices")["items"]
        for condition in device["status"]["conditions"]
        if condition["type"] == "Ready"
    }
