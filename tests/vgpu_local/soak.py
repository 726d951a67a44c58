"""`make soak`: pods come and go for hours, and nothing grows.

A whole cluster on this machine is kept busy: pods come at an even pace, a fifth faster than the
time allows, each runs for a moment and is deleted. Every while the memory of each program and the
time that pods took to run are noted. In the end everything was deleted and must be gone, no device
may ever have held more than it has, no claim may have lost its devices while in use, every pod
must have run, and neither memory nor latency may have grown in the second half.

What stands in for Kubernetes is in this process and must not grow either, or the machine is full
before the time is up. So each write is checked soon after it happened and then forgotten, and the
API server keeps for watches and for events as much as a busy real one would, not as much as tests
like to look back.
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
from vgpu_local.chaos.remains import remains
from vgpu_local.checker import Replay, Sums
from vgpu_local.cluster import LocalCluster
from vgpu_local.foundation import Server, StandIn
from vgpu_local.nodes import a100_node, t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod, create

MOST_GROWTH = 0.05
"""Of memory, from the third quarter of the time to the fourth."""
MOST_SLOWER = 1.5
"""The median of the last quarter, in those of the third."""
_RUNS_WITHIN_S = 120.0
_GONE_WITHIN_S = 60.0
_LOOK_S = 0.05
_SPARE = 1.2
"""How much faster pods come than the time allows: what is lost to a slow moment is made up for."""
_CHANGES_REMEMBERED = 1000
"""For watches, of each kind: a real server's cache begins with a hundred and grows as needed."""
_EVENTS_STAY_S = 300.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHAPES: Sequence[Mapping[str, int]] = (
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048},
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 10},
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 20},
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the cluster.

    Attributes:
        at: Seconds since the beginning.
        pods: How many had ended by then.
        memory: Resident bytes of each program.
        latency_s: The median time from creation to Running since the last look.
        stand_in: Resident bytes of this process: API server, scheduler, kubelets and checks.
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
    """What became of it.

    Attributes:
        samples: In order.
        faults: What must not be, in words.
        writes: How many writes were checked.
    """

    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked of a cluster.

    Attributes:
        pods: At least so many.
        seconds: At least so long.
        at_once: Pods at a time, at most.
        each_s: Seconds from one pod to the next.
        looks: How many samples are taken.
    """

    pods: int
    seconds: float
    at_once: int
    each_s: float
    looks: int


class Checks:
    """Looks at every write from the first one on, and keeps none.

    Args:
        server: Not started, so that nothing was written yet.
    """

    def __init__(self, server: Server) -> None:
        self._unseen: deque[WriteEvent] = deque()
        self._sums = Sums()
        self._replay = Replay("nvidia.com/gpu")
        server.subscribe(self._unseen.append)  # in the server's thread, which has its own work

    def look(self, verdict: Verdict) -> None:
        """Check what was written since the last look."""
        while self._unseen:
            write = self._unseen.popleft()
            verdict.writes += 1
            verdict.faults += [f"over-allocated: {excess}" for excess in self._sums(write)]
            verdict.faults += self._replay(write)


def growth(samples: Sequence[Sample], *, most: float = MOST_GROWTH) -> list[str]:
    """The programs whose memory grew, and latency that did, from the third quarter to the fourth.

    The first half is left out: caches fill, and interpreters keep what they once needed.
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
    """Seconds from one pod to the next, so that all of them have come well within the time."""
    return seconds / pods / _SPARE if pods else 0.0


def soak(
    cluster: LocalCluster,
    checks: Checks,
    load: Load,
    *,
    report: Callable[[Sample], None] = lambda sample: None,
) -> Verdict:
    """Keep a cluster busy until so many pods have run and so much time has passed.

    Args:
        cluster: Started.
        checks: Of the cluster's API server, from before it was started.
        load: What is asked of it.
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
    """What is still there when time is up."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := remains(cluster)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"left: {what}" for what in left]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit status is 1 when something was at fault."""
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
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json")
    given = parser.parse_args(arguments)
    seconds = 60 * given.minutes
    each_s = pace(pods=given.pods, seconds=seconds) if given.every is None else given.every
    load = Load(given.pods, seconds, given.at_once, each_s, looks=64)
    options = ClusterOptions(operators=2, webhooks=1)
    server = ApiServer(remembered=_CHANGES_REMEMBERED, history_kept=0, event_ttl_s=_EVENTS_STAY_S)
    checks = Checks(server)
    foundation = StandIn(
        server=server, scheduler_names=options.scheduler_names, backoff=options.backoff
    )
    with LocalCluster([t4_node("one"), a100_node("two")], options, foundation) as cluster:
        verdict = soak(cluster, checks, load, report=lambda sample: print(sample, flush=True))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(asdict(verdict), indent=1) + "\n")
    print(f"{verdict.writes} writes were checked; {len(verdict.faults)} faults")
    print(*(f"  {fault}" for fault in verdict.faults), sep="\n", file=sys.stderr)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
