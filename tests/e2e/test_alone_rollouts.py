"""Five rollouts of each program during a steady stream of pods: no create is refused, no pod fails.

No pod starts more than `SLACK_S` later than pods do without a rollout. It keeps the node busy for
minutes, so it is run by `make e2e-rollouts`, not by `make e2e`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from real_node import AGENTS, SYSTEM, WORKLOAD, Json, RealNode, a_pod, a_slice, until

PODS = 100
ROLLOUTS = 5
CALM = 10
"""Pods before the first rollout; the latest of them is what the others are compared with."""
EVERY_S = 1.5
SLACK_S = 5.0
RUNS_S = 5
BUILD = Path(__file__).parents[2] / "build" / "e2e"

pytestmark = pytest.mark.timeout(1500)


@dataclass(slots=True)
class Stream:
    """Pods that are created one after the other, each to run for a few seconds.

    Attributes:
        refused: The messages of creates that were refused.
        created: The number of creates that were accepted.
    """

    node: RealNode
    namespace: str
    refused: list[str] = field(default_factory=list)
    created: int = 0

    def create(self) -> None:
        """Create one more pod."""
        name = f"pod-{self.created + len(self.refused):03}"
        pod = a_pod(name, self.namespace, limits=a_slice(1000), restartPolicy="Never")
        (container,) = pod["spec"]["containers"]
        container |= {"image": WORKLOAD, "command": ["sleep", str(RUNS_S)]}
        done = self.node.attempt("kubectl", "create", "-f", "-", given=json.dumps(pod), limit_s=60)
        if done.returncode:
            self.refused.append(f"{name}: {done.stderr.strip()}")
        else:
            self.created += 1

    def pods(self) -> list[Json]:
        """Return all pods in the order of their names."""
        found = self.node.get("pods", namespace=self.namespace)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def have_ended(self) -> bool:
        """Return True if every pod has ended."""
        phases = {pod["status"].get("phase") for pod in self.pods()}
        return phases <= {"Succeeded", "Failed"}


def delay(pod: Json) -> float:
    """Return the whole seconds from a pod's creation to the start of its container."""
    (status,) = pod["status"]["containerStatuses"]
    (state,) = status["state"].values()
    created, started = (
        datetime.fromisoformat(moment)
        for moment in (pod["metadata"]["creationTimestamp"], state["startedAt"])
    )
    return (started - created).total_seconds()


@pytest.fixture
def stream(node: RealNode) -> Iterator[Stream]:
    with node.namespace() as namespace:
        yield Stream(node, namespace)
    node.nothing_is_left()


@pytest.mark.parametrize(
    ("namespace", "workload"),
    [
        (SYSTEM, "deployment/vgpu-operator"),
        (SYSTEM, "deployment/vgpu-webhook"),
        (AGENTS, "daemonset/vgpu-nodeagent"),
    ],
    ids=["operator", "webhook", "agent"],
)
def test_a_steady_stream_of_pods_does_not_notice_five_rollouts(
    stream: Stream, namespace: str, workload: str
) -> None:
    node, failed = stream.node, []

    def roll_out() -> None:
        for _ in range(ROLLOUTS):
            for verb in (("restart", workload), ("status", workload, "--timeout=240s")):
                done = node.attempt("kubectl", "-n", namespace, "rollout", *verb, limit_s=260)
                if done.returncode:
                    failed.append(done.stderr)

    for _ in range(CALM):
        stream.create()
        time.sleep(EVERY_S)
    rollouts = threading.Thread(target=roll_out)
    rollouts.start()
    while rollouts.is_alive() or stream.created + len(stream.refused) < CALM + PODS:
        stream.create()
        time.sleep(EVERY_S)
    rollouts.join()
    until(stream.have_ended, "all pods to end", limit_s=180, every_s=2)
    pods = stream.pods()
    assert failed == []
    assert stream.refused == []
    assert {
        pod["metadata"]["name"]: pod["status"].get("reason", "Failed")
        for pod in pods
        if pod["status"]["phase"] == "Failed"
    } == {}
    delays = {pod["metadata"]["name"]: delay(pod) for pod in pods}
    calm = max(list(delays.values())[:CALM])
    report = {"workload": workload, "pods": len(pods), "calm_s": calm, "delays_s": delays}
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"rollouts-{workload.partition('/')[2]}.json").write_text(json.dumps(report, indent=1))
    late = {name: waited for name, waited in delays.items() if waited > calm + SLACK_S}
    assert late == {}, f"without a rollout the latest pod waited {calm} s"
