"""`make soak`: pods come and go for hours, and nothing grows.

A whole cluster on this machine is kept busy: so many pods at a time, each of which runs for a
moment and is deleted. Every while the memory of each program and the time that pods took to run
are noted. In the end everything was deleted and must be gone, no device may ever have held more
than it has, every pod must have run, and neither memory nor latency may have grown in the second
half.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vgpu_api.resources import PODS
from vgpu_client.errors import NotFound
from vgpu_local.chaos.remains import remains
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
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
_LOOK_S = 0.02
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
    """

    at: float
    pods: int
    memory: Mapping[str, int]
    latency_s: float


@dataclass(slots=True)
class Verdict:
    """What became of it.

    Attributes:
        samples: In order.
        faults: What must not be, in words.
    """

    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


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


def soak(cluster: LocalCluster, *, pods: int, seconds: float, at_once: int, looks: int) -> Verdict:
    """Keep a cluster busy until so many pods have run and so much time has passed.

    Args:
        cluster: Started.
        pods: At least so many.
        seconds: At least so long.
        at_once: Pods at a time.
        looks: How many samples are taken.
    """
    verdict, began = Verdict(), time.monotonic()
    running: dict[str, float] = {}  # and since when it is wanted
    ended, number, waits = 0, 0, []
    while ended < pods or time.monotonic() - began < seconds:
        while len(running) < at_once:
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
        part = min(ended / pods if pods else 1.0, (time.monotonic() - began) / (seconds or 1e-9))
        if waits and part * looks > len(verdict.samples):
            verdict.samples.append(_sample(cluster, began, ended, waits))
            waits = []
        time.sleep(_LOOK_S)
    if waits:
        verdict.samples.append(_sample(cluster, began, ended, waits))
    for name in running:
        _delete(cluster, name)
    verdict.faults += _left(cluster)
    verdict.faults += [f"over-allocated: {excess}" for excess in excesses(cluster.server.history())]
    verdict.faults += growth(verdict.samples)
    return verdict


def _sample(cluster: LocalCluster, began: float, ended: int, waits: Sequence[float]) -> Sample:
    programs = [*cluster.operators, *cluster.webhooks, *cluster.agents.values()]
    memory = {daemon.name: _resident(daemon.pid) for daemon in programs}
    at = round(time.monotonic() - began, 1)
    return Sample(at, ended, memory, round(statistics.median(waits), 3))


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
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json")
    given = parser.parse_args(arguments)
    nodes = [t4_node("one"), a100_node("two")]
    with LocalCluster(nodes, ClusterOptions(operators=2, webhooks=1)) as cluster:
        verdict = soak(
            cluster,
            pods=given.pods,
            seconds=60 * given.minutes,
            at_once=given.at_once,
            looks=64,
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(asdict(verdict), indent=1) + "\n")
    last = verdict.samples[-1] if verdict.samples else Sample(0.0, 0, {}, 0.0)
    memory = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in last.memory.items())
    print(f"{last.pods} pods in {last.at:.0f} s; a pod runs after {last.latency_s:.2f} s; {memory}")
    print(*(f"  {fault}" for fault in verdict.faults), sep="\n", file=sys.stderr)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
