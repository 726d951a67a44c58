"""Many pods start at once on a real node, and each gets its own devices; waiting costs little."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from pathlib import Path

import pytest

from real_node import Json, RealNode, a_pod, a_slice, until

REPORT = Path(__file__).parents[2] / "build" / "bench" / "e2e.json"
PODS = 30
ROUNDS = 1
PAIRS = 10
MIB = 1 << 20

pytestmark = pytest.mark.timeout(900)


class Sightings:
    """The times at which kubectl's watch first showed each pod of a namespace bound and running."""

    def __init__(self, node: RealNode, namespace: str) -> None:
        self.bound: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self._watch = subprocess.Popen(
            [
                *(*node.prefix(), "kubectl", "-n", namespace, "get", "pods"),
                *("--watch", "--output=json"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._watch.stdout is not None
        lines: list[str] = []
        for line in self._watch.stdout:
            lines.append(line)
            if line == "}\n":  # the objects follow each other as indented JSON
                self._see(json.loads("".join(lines)), time.monotonic())
                lines.clear()

    def _see(self, seen: Json, now: float) -> None:
        for pod in seen.get("items", [seen]):  # the first one is a list, and may be empty
            self._see_pod(pod, now)

    def _see_pod(self, pod: Json, now: float) -> None:
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName"):
            self.bound.setdefault(name, now)
        if any("running" in c["state"] for c in pod["status"].get("containerStatuses", [])):
            self.running.setdefault(name, now)

    def all_of(self, names: set[str]) -> bool:
        """Return True if every pod was seen running."""
        assert self._reader.is_alive(), "the watch ended"
        return names <= self.running.keys()

    def close(self) -> None:
        self._watch.kill()
        self._watch.wait()
        self._reader.join()
        assert self._watch.stdout is not None
        self._watch.stdout.close()


def _together(node: RealNode, namespace: str, pods: list[Json]) -> list[float]:
    seen = Sightings(node, namespace)
    names = {pod["metadata"]["name"] for pod in pods}
    try:
        node.apply(*pods)
        until(lambda: seen.all_of(names), "all pods to run", limit_s=300)
        return [seen.running[name] - seen.bound[name] for name in names]
    finally:
        seen.close()


def test_thirty_pods_at_once_each_get_exactly_their_own_slice(
    node: RealNode, namespace: str
) -> None:
    took: dict[str, list[float]] = {"plain": [], "sliced": []}
    for turn in range(ROUNDS):
        plain = [a_pod(f"plain-{turn}-{n}", namespace) for n in range(PODS)]
        took["plain"] += _together(node, namespace, plain)
        node.clear(namespace)
        sliced = [
            a_pod(f"sliced-{turn}-{n}", namespace, limits=a_slice(1000 + 10 * n))
            for n in range(PODS)
        ]
        took["sliced"] += _together(node, namespace, sliced)
        for n in range(PODS):
            _has_its_own(node, namespace, f"sliced-{turn}-{n}", 1000 + 10 * n)
        node.clear(namespace)
    _report("at_once", took)


def test_pods_that_start_one_after_the_other_with_and_without_a_slice_all_run(
    node: RealNode, namespace: str
) -> None:
    took: dict[str, list[float]] = {"plain": [], "sliced": []}
    for n in range(PAIRS):
        took["plain"] += _together(node, namespace, [a_pod(f"plain-{n}", namespace)])
        sliced = a_pod(f"sliced-{n}", namespace, limits=a_slice(1000 + 10 * n))
        took["sliced"] += _together(node, namespace, [sliced])
    _report("one_after_the_other", took)


def _has_its_own(node: RealNode, namespace: str, pod: str, memory_mib: int) -> None:
    claims = node.get("vgpuclaims", namespace=namespace)["items"]
    (claim,) = (c for c in claims if c["status"]["reservedFor"]["podName"] == pod)
    (device,) = claim["status"]["allocation"]["devices"]
    (visible,) = json.loads(node.shell(namespace, pod, "vgpu-probe", "info"))["devices"]
    assert (visible["uuid"], visible["cuda_total"]) == (device["uuid"], memory_mib * MIB), pod


def _report(how: str, took: dict[str, list[float]]) -> None:
    medians = {what: statistics.median(times) for what, times in took.items()}
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    report[how] = {
        "bound_to_running_s": {
            what: {"median": medians[what], "max": max(times), "pods": len(times)}
            for what, times in took.items()
        },
        "added_median_ms": 1000 * (medians["sliced"] - medians["plain"]),
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
