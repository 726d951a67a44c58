"""`make bench-openb OPENB=DIR`: how much of a cluster each policy fills, on the openb trace.

The published protocol: the pods of a trace in shuffled order, then more at random until 130 % of
the cluster's GPUs are asked for; each is tried once, nothing ends. CPU, memory and model decide
which nodes are candidates; the engine chooses among them. A device is 1,000 MiB here, one for each
thousandth of it that the trace counts in. Fragmentation knows the mix from the start, as published.

Pods without a GPU are no business of the engine; "placed" puts them where the policy's own node
order points (for Fragmentation where F rises least), "kept off" leaves them out.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builders import a_request, an_ask, device_facts, give_mix
from vgpu_operator.demand import Demand
from vgpu_operator.placement import Fleet, place
from vgpu_operator.placement.device_conditions import NodeState
from vgpu_operator.placement.fragmentation import fragmentation, score_of_rise
from vgpu_operator.placement.usage_scores import node_score

WHOLE = 1_000
POINTS = (90, 95, 100, 110, 120, 130)
POLICIES: Mapping[str, tuple[str, str, int]] = {
    "fragmentation": ("Fragmentation", "Fragmentation", 1_000),
    "binpack": ("Binpack", "Binpack", 1_000),
    "spread": ("Spread", "Spread", 1_000),
    "bestfit": ("Binpack", "BestFit", 1_000),
    "hami_like": ("Binpack", "Spread", 10),
}
"""By name: node policy, device policy, slots per device."""
UNNAMED_CPU = 100
"""The milli-CPU that a pod without a CPU request uses, as kube-scheduler counts it."""


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod of the trace: milli-CPU, MiB of memory, devices, thousandths of each device, models."""

    name: str
    cpu: int
    memory: int
    devices: int
    milli: int
    models: frozenset[str]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (milli-CPU, devices, thousandths of each), which define a type."""
        return self.cpu, self.devices, self.milli


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of the trace."""

    name: str
    cpu: int
    memory: int
    devices: int
    model: str


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--out", type=Path, default=Path("build/bench/openb.json"))
    options = parser.parse_args(arguments)
    nodes = read_nodes(options.folder / "openb_node_list_gpu_node.csv")
    report: dict[str, Any] = {"seeds": options.seeds, "traces": {}}
    for path in sorted(options.folder.glob("openb_pod_list_*.csv")):
        trace = report["traces"].setdefault(path.stem.removeprefix("openb_pod_list_"), {})
        pods = read_pods(path)
        for mode in ("placed", "kept_off"):
            for policy in options.policies:
                start = time.perf_counter()
                runs = [replay(nodes, pods, policy, mode, 42 + at) for at in range(options.seeds)]
                trace.setdefault(mode, {})[policy] = {
                    str(point): round(statistics.mean(run[point] for run in runs), 2)
                    for point in POINTS
                }
                took = time.perf_counter() - start
                print(path.stem, mode, policy, trace[mode][policy], f"{took:.0f} s", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")


def read_nodes(path: Path) -> list[TraceNode]:
    with path.open() as file:
        return [
            TraceNode(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"])
            for r in csv.DictReader(file)
        ]


def read_pods(path: Path) -> list[TracePod]:
    with path.open() as file:
        return [
            TracePod(
                name=row["name"],
                cpu=int(row["cpu_milli"]) or UNNAMED_CPU,
                memory=int(row["memory_mib"]),
                devices=int(row["num_gpu"]),
                milli=int(row["gpu_milli"]),
                models=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
            )
            for row in csv.DictReader(file)
        ]


def arrivals(pods: Sequence[TracePod], capacity: int, seed: int) -> list[TracePod]:
    """Return the trace in shuffled order, and more of it up to 130 % of the capacity."""
    chance = random.Random(seed)
    queue = sorted(pods, key=lambda pod: pod.name)
    chance.shuffle(queue)
    asked = sum(pod.devices * pod.milli for pod in queue)
    while True:
        more = chance.choice(pods)
        asked += more.devices * more.milli
        if asked > 1.3 * capacity:
            return queue
        queue.append(more)


class Replay:
    """A cluster being filled under one policy."""

    def __init__(self, nodes: Sequence[TraceNode], policy: str, seed: int) -> None:
        self.policy = policy
        node_policy, device_policy, slots = POLICIES[policy]
        self._placement = {"node": node_policy, "device": [device_policy]}
        self._asks: dict[tuple[int, int, int], Demand] = {}
        self._scores: dict[tuple[int, int], tuple[int, int]] = {}  # (CPU, node) → version, score
        # Ties are decided by name, so each seed gets another order.
        names = list(range(len(nodes)))
        random.Random(seed).shuffle(names)
        self.nodes = [replace(n, name=f"node-{at:05d}") for at, n in zip(names, nodes, strict=True)]
        self.columns = Fleet()
        for node in self.nodes:
            for index in range(node.devices):
                self.columns.put_device(
                    device_facts(f"{node.name}-{index}", node=node.name, index=index,
                           model=node.model.lower(), slots=slots, memory_mib=WHOLE)
                )  # fmt: skip
            number = self.columns.put_node(node.name, NodeState(ready=True))
            self.columns.set_cpu_free(number, node.cpu)
        self.left = {node.name: [node.cpu, node.memory] for node in self.nodes}

    def know(self, pods: Sequence[TracePod]) -> None:
        """Set the typical mix: the shapes that make up 95 % of the trace's pods."""
        counts = Counter(pod.shape for pod in pods)
        covered, without_devices, mix = 0, 0.0, []
        for shape, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if covered >= 0.95 * len(pods):
                break
            covered += count
            if shape[1]:
                mix.append((count / len(pods), self._ask(*shape).requests[0]))
            else:
                without_devices += count / len(pods)
        give_mix(self.columns.mix, mix, without_devices=without_devices)

    def add(self, pod: TracePod) -> bool:
        """Place a pod if it fits anywhere."""
        room = [
            node.name
            for node in self.nodes
            if (left := self.left[node.name])[0] >= pod.cpu
            and left[1] >= pod.memory
            and (not pod.models or node.model in pod.models)
        ]
        if not room:
            return False
        chosen = self._with_devices(pod, room) if pod.devices else self._without_devices(pod, room)
        if chosen is None:
            return False
        left = self.left[chosen]
        left[0] -= pod.cpu
        left[1] -= pod.memory
        self.columns.set_cpu_free(self._number(chosen), left[0])
        return True

    def _with_devices(self, pod: TracePod, room: list[str]) -> str | None:
        columns = self.columns
        plan = place(columns, self._ask(*pod.shape), room)
        for grant in plan.grants:
            device = columns.number_of(grant.device)
            slots, cores, memory = columns.used(device)
            columns.set_used(device, slots=slots + 1, cores=cores, memory=memory + grant.memory_mib)
        return plan.node

    def _without_devices(self, pod: TracePod, room: list[str]) -> str:
        columns = self.columns
        if self.policy == "fragmentation":
            return min(room, key=lambda name: (-self._score_without(pod.cpu, name), name))
        sign = 1 if self.policy == "spread" else -1
        return min(room, key=lambda name: (sign * node_score(columns, self._number(name)), name))

    def _score_without(self, cpu: int, name: str) -> int:
        """Score a pod that uses CPU but no device; the result is cached until the node changes."""
        columns, node = self.columns, self._number(name)
        version = columns.rankings.version[node]
        known = self._scores.get((cpu, node))
        if known is None or known[0] != version:
            rise = fragmentation(columns, node, cpu_milli=cpu) - fragmentation(columns, node)
            known = self._scores[cpu, node] = version, score_of_rise(rise)
        return known[1]

    def _number(self, name: str) -> int:
        number = self.columns.node_id(name)
        assert number is not None
        return number

    def _ask(self, cpu: int, devices: int, milli: int) -> Demand:
        demand = self._asks.get((cpu, devices, milli))
        if demand is None:
            request = a_request(name="main", count=max(devices, 1), memory=f"{max(milli, 1)}Mi")
            demand = an_ask(request, cpu_milli=cpu, **self._placement)
            self._asks[cpu, devices, milli] = demand
        return demand


def replay(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], policy: str, mode: str, seed: int
) -> dict[int, float]:
    """Return the allocated percentage at each number of arrivals."""
    capacity = WHOLE * sum(node.devices for node in nodes)
    if mode == "kept_off":
        pods = [pod for pod in pods if pod.devices]
    cluster = Replay(nodes, policy, seed)
    cluster.know(pods)
    arrived = allocated = 0
    seen: dict[int, list[float]] = {}
    for pod in arrivals(pods, capacity, seed):
        arrived += pod.devices * pod.milli
        if cluster.add(pod):
            allocated += pod.devices * pod.milli
        seen.setdefault(round(100 * arrived / capacity), []).append(100 * allocated / capacity)
    return {point: statistics.mean(seen[point]) for point in POINTS}


if __name__ == "__main__":
    main(sys.argv[1:])
