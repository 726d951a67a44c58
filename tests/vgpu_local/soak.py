"""`make soak`: pods come and go for hours, and neither memory nor latency may grow.

A whole cluster on this machine is kept busy. Pods come at an even pace, a fifth faster than needed
for the given time; each runs for a moment and is deleted. From time to time the memory of each
program and the latency of pods are sampled. At the end, all objects must be gone, no device may
ever have been overcommitted, no claim may have lost its devices while in use, every pod must have
run, and neither memory nor latency may have grown in the second half.

The stand-in for Kubernetes runs in this process and must not grow either, or the machine's memory
would be full before the end. So each write is checked soon after it happened and then forgotten,
and the API server keeps only as much for watches and events as a busy real one would.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vgpu_api.resources import PODS
from vgpu_client.errors import NotFound
from vgpu_local.apiserver import ApiServer
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos import handed_over
from vgpu_local.chaos.remains import remains
from vgpu_local.checker import Replay, Sums
from vgpu_local.cluster import LocalCluster
from vgpu_local.foundation import Foundation, StandIn
from vgpu_local.nodes import a100_node, t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import ROOT
from vgpu_local.real_cluster import RealControlPlane
from vgpu_local.steps import a_container, a_pod, create

MOST_GROWTH = 0.05
"""The largest accepted growth of memory from the third quarter of the time to the fourth."""
MOST_SLOWER = 1.5
"""The largest accepted ratio of the median latency in the last quarter to that in the third."""
_RUNS_WITHIN_S = 120.0
_GONE_WITHIN_S = 60.0
_LOOK_S = 0.05
_SPARE = 1.2
"""The factor by which pods come faster than needed, which makes up for slow moments."""
_CHANGES_REMEMBERED = 1000
"""Changes kept per kind for watches; a real server's cache starts at a hundred and can grow."""
_EVENTS_STAY_S = 300.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHAPES: Sequence[Mapping[str, int]] = (
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048},
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 10},
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 20},
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the cluster's state.

    Attributes:
        at: Seconds since the start.
        pods: The number of pods that had ended by then.
        memory: The resident bytes of each program.
        latency_s: The median time from creation to Running since the last sample.
        stand_in: The resident bytes of this process: API server, scheduler, kubelets and checks.
    """

    at: float
    pods: int
    memory: Mapping[str, int]
    latency_s: float
    stand_in: int = 0

    def __str__(self) -> str:
        sizes = {**self.memory, "stand-in": self.stand_in}
        memory = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in sizes.items())
        done = f"{self.pods} pods in {self.at:.0f} s"
        return f"{done}; a pod runs after {self.latency_s:.2f} s; {memory}"


@dataclass(slots=True)
class Verdict:
    """The result of a soak run.

    Attributes:
        samples: The samples in order.
        faults: A text for each violated expectation.
        writes: The number of writes that were checked.
    """

    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The load on a cluster.

    Attributes:
        pods: The least number of pods.
        seconds: The least duration.
        at_once: The largest number of pods at a time.
        each_s: Seconds from one pod to the next.
        looks: The number of samples.
    """

    pods: int
    seconds: float
    at_once: int
    each_s: float
    looks: int


class Checks:
    """A check of every write from the first one on, which keeps none of them.

    `saw` must see each write of the API server from the first on.
    """

    def __init__(self) -> None:
        self._unseen: deque[WriteEvent] = deque()
        self._sums = Sums()
        self._replay = Replay("nvidia.com/gpu")
        self._handed_over = handed_over.Replay()

    def saw(self, write: WriteEvent) -> None:
        """Note a write; called in the server's thread, which has its own work."""
        self._unseen.append(write)

    def look(self, verdict: Verdict) -> None:
        """Check the writes since the last call."""
        while self._unseen:
            write = self._unseen.popleft()
            verdict.writes += 1
            verdict.faults += [f"over-allocated: {excess}" for excess in self._sums(write)]
            verdict.faults += [*self._replay(write), *self._handed_over(write)]


def growth(samples: Sequence[Sample], *, most: float = MOST_GROWTH) -> list[str]:
    """Return a text for each growth of memory or latency from the third quarter to the fourth.

    The first half does not count, because caches fill and interpreters keep memory they once used.
    """
    if len(samples) < 8:
        return []
    half = len(samples) // 2
    middle = half + (len(samples) - half) // 2
    third, fourth = samples[half:middle], samples[middle:]
    found = []
    for name in sorted(samples[-1].memory):
        before = statistics.median(each.memory.get(name, 0) for each in third)
        after = statistics.median(each.memory.get(name, 0) for each in fourth)
        if before and after / before - 1 > most:
            found.append(
                f"{name} grew by {100 * (after / before - 1):.1f} % to {after / 2**20:.0f} MiB"
            )
    before = statistics.median(each.latency_s for each in third)
    after = statistics.median(each.latency_s for each in fourth)
    if after > MOST_SLOWER * before and after - before > 0.5:
        found.append(f"pods took {after:.2f} s to run, and {before:.2f} s before")
    return found


def pace(*, pods: int, seconds: float) -> float:
    """Return the seconds between two pods, so that all are created well within the time."""
    return seconds / pods / _SPARE if pods else 0.0


def soak(
    cluster: LocalCluster,
    checks: Checks,
    load: Load,
    *,
    report: Callable[[Sample], None] = lambda sample: None,
) -> Verdict:
    """Keep a cluster busy until the load's pods have run and its time has passed.

    Args:
        cluster: The cluster, which must have been started.
        checks: The checks, made before the cluster's API server was started.
        load: The load on the cluster.
        report: Called with each sample.
    """
    verdict, began = Verdict(), time.monotonic()
    running: dict[str, float] = {}  # and since when it is wanted
    ended, number = 0, 0
    waits: list[float] = []

    def sample() -> None:
        verdict.samples.append(_sample(cluster, began, ended, waits))
        waits.clear()
        report(verdict.samples[-1])

    while ended < load.pods or time.monotonic() - began < load.seconds:
        while len(running) < load.at_once and time.monotonic() - began >= number * load.each_s:
            name = f"soak-{number}"
            shape = _SHAPES[number % len(_SHAPES)]
            create(cluster, a_pod(name, a_container(limits=shape)))
            running[name], number = time.monotonic(), number + 1
        phases = {
            pod["metadata"]["name"]: pod["status"].get("phase")
            for pod in cluster.objects("pods", "default")
        }
        for name, since in list(running.items()):
            if phases.get(name) == "Running":
                waits.append(time.monotonic() - since)
                _delete(cluster, name)
                del running[name]
                ended += 1
            elif time.monotonic() - since > _RUNS_WITHIN_S:
                verdict.faults.append(f"pod {name} has not run: {phases.get(name)}")
                _delete(cluster, name)
                del running[name]
        cluster.check()
        checks.look(verdict)
        spent = (time.monotonic() - began) / (load.seconds or 1e-9)
        part = min(ended / load.pods if load.pods else 1.0, spent)
        if waits and part * load.looks > len(verdict.samples):
            sample()
        time.sleep(_LOOK_S)
    if waits:
        sample()
    for name in running:
        _delete(cluster, name)
    verdict.faults += _left(cluster)
    checks.look(verdict)
    verdict.faults += growth(verdict.samples)
    return verdict


def _sample(cluster: LocalCluster, began: float, ended: int, waits: Sequence[float]) -> Sample:
    programs = [*cluster.operators, *cluster.webhooks, *cluster.agents.values()]
    memory = {daemon.name: _resident(daemon.pid) for daemon in programs}
    at = round(time.monotonic() - began, 1)
    latency = round(statistics.median(waits), 3)
    return Sample(at, ended, memory, latency, stand_in=_resident(os.getpid()))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def _delete(cluster: LocalCluster, name: str) -> None:
    try:
        cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=1))
    except NotFound:
        return


def _left(cluster: LocalCluster) -> list[str]:
    """Return the objects that remain at the end."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := remains(cluster)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"left: {what}" for what in left]


def _built(mode: str, checks: Checks) -> tuple[ClusterOptions, Foundation]:
    """Return the options and the foundation of a cluster whose writes are checked."""
    if mode == "claims":
        options = ClusterOptions(config={"scheduling": {"mode": "Claims"}}, operators=2, webhooks=1)
        return options, RealControlPlane(listener=checks.saw)
    options = ClusterOptions(operators=2, webhooks=1)
    server = ApiServer(remembered=_CHANGES_REMEMBERED, history_kept=0, event_ttl_s=_EVENTS_STAY_S)
    server.subscribe(checks.saw)
    return options, StandIn(
        server=server, scheduler_names=options.scheduler_names, backoff=options.backoff
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak test; return 1 if it found a fault."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--at-once", type=int, default=24, help="pods at a time, at most")
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="from one pod to the next; by default what --pods and --minutes come to, less a sixth",
    )
    parser.add_argument(
        "--mode",
        choices=["extender", "claims"],
        default="extender",
        help="claims: by ResourceClaims, on a real control plane",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json")
    given = parser.parse_args(arguments)
    seconds = 60 * given.minutes
    each_s = pace(pods=given.pods, seconds=seconds) if given.every is None else given.every
    load = Load(given.pods, seconds, given.at_once, each_s, looks=64)
    checks = Checks()
    options, foundation = _built(given.mode, checks)
    with LocalCluster([t4_node("one"), a100_node("two")], options, foundation) as cluster:
        verdict = soak(cluster, checks, load, report=lambda sample: print(sample, flush=True))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(asdict(verdict), indent=1) + "\n")
    print(f"{verdict.writes} writes were checked; {len(verdict.faults)} faults")
    print(*(f"  {fault}" for fault in verdict.faults), sep="\n", file=sys.stderr)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
