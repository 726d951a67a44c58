"""`make bench-placement`: what a decision costs at 5,000 nodes of 8 devices with 100,000 claims.

In steady state: before every decision a claim of the fleet ends, and what was decided is held. The
plain full scan decides on copies of the same states in the same run and must give the same answers.
Written to build/bench/placement.json with the bars of the design beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson

import plain_placement as plain
from builders import a_claim, a_device, a_node, a_request, an_allocated_device, an_ask, device_facts
from builders import an_allocation as allocated
from perf import filter_bench
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1.base import ApiModel
from vgpu_operator.demand import Demand
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import DeviceFacts, Plan, place

Received = TypeVar("Received", bound=ApiModel)

DEVICES_PER_NODE = 8
DEVICE_MIB = 40_960
SHAPES = (("2Gi", 10), ("4Gi", 20), ("8Gi", 30), ("10Gi", 0))
"""(memory, cores) of the four kinds of requests of every fleet."""
POLICIES: Mapping[str, tuple[str, str, int]] = {
    "binpack": ("Binpack", "Binpack", 1),
    "spread": ("Spread", "Spread", 1),
    "bestfit": ("Binpack", "BestFit", 1),
    "fragmentation": ("Fragmentation", "Fragmentation", 1),
    "topology_2": ("Binpack", "Topology", 2),
}
"""By name: node policy, device policy, devices per claim."""
BARS = {"decision_us.p50": 50, "apply_us.p50": 20, "rebuild_s": 10, "rss_mib": 1024}
REFUSAL_BARS_MS = {"cold": 400, "warm": 20}
FILTER_BARS_MS = {"grant_p99": {"500": 2, "5000": 5}, "refuse_warm_p99": 20, "refuse_cold_p99": 400}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--claims", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=4_000)
    parser.add_argument("--plain", type=int, default=3, help="decisions of the plain scan")
    parser.add_argument("--out", type=Path, default=Path("build/bench/placement.json"))
    options = parser.parse_args(arguments)
    ledger, rebuilt, apply_us = rebuild(options.nodes, options.claims)
    report: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "fleet": {"nodes": options.nodes, "cards": options.nodes * DEVICES_PER_NODE,
                  "claims": options.claims, "request_classes": len(SHAPES)},
        "bars": {**BARS, "refusal_ms": REFUSAL_BARS_MS,
                 "filter_ms": FILTER_BARS_MS},
        **rebuilt,
        "apply_us": apply_us,
        "refusal_ms": refusals(ledger),
        "decision_us": {},
        "plain_us": {},
    }  # fmt: skip
    del ledger
    listed = [claim_on(number, options.nodes) for number in range(options.claims)]
    report["filter_ms"] = asyncio.run(filter_bench.measure(nodes=options.nodes, claims=listed))
    del listed
    for name in POLICIES:
        fleet = Fleet(name, nodes=options.nodes, claims=options.claims)
        gc.collect()
        gc.freeze()  # the garbage collector's passes over the whole fleet are not measured here
        report["decision_us"][name] = fleet.churn(options.decisions)
        slow = name == "fragmentation"  # one decision takes many seconds
        report["plain_us"][name] = fleet.compare(1 if slow else options.plain)
        gc.unfreeze()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    json.dump(report, sys.stdout, indent=2)
    print()


def rebuild(nodes: int, claims: int) -> tuple[Ledger, dict[str, float | int], dict[str, float]]:
    """Return a ledger filled from lists as at a start, the duration, and the memory of one claim.

    The memory is that of the whole process with all decoded objects, which the operator keeps too.
    """
    listed = [as_received(claim_on(number, nodes)) for number in range(claims)]
    devices = [
        as_received(a_device(uuid=f"GPU-{node}-{index}", node=f"node-{node:05d}", index=index,
                             memory_mib=DEVICE_MIB))
        for node in range(nodes)
        for index in range(DEVICES_PER_NODE)
    ]  # fmt: skip
    known_nodes = [as_received(a_node(f"node-{node:05d}")) for node in range(nodes)]
    gc.collect()
    gc.freeze()
    ledger = Ledger(config=ClusterConfig())
    start, cpu = time.perf_counter(), time.process_time()
    for node in known_nodes:
        ledger.apply_node(node)
    for device in devices:
        ledger.apply_device(device)
    for claim in listed:
        ledger.apply_claim(claim)
    took = {
        "rebuild_s": round(time.perf_counter() - start, 2),
        "rebuild_cpu_s": round(time.process_time() - cpu, 2),
        "rss_mib": rss_mib(),
    }
    gc.collect()
    gc.freeze()
    changes = [claim_on(number, nodes, version=2, held=number % 2 == 0) for number in range(20_000)]
    changes += [claim_on(number, nodes, version=3) for number in range(20_000)]
    times = [timed(lambda claim=claim: ledger.apply_claim(claim))[1] for claim in changes]
    gc.unfreeze()
    return ledger, took, spread_of(times)


def as_received(built: Received) -> Received:
    """Return the object as a reflector decodes it, without texts shared with others."""
    return type(built).model_validate(orjson.loads(orjson.dumps(built.to_wire())))


def claim_on(number: int, nodes: int, *, version: int = 1, held: bool = True) -> Any:
    """Return a claim of 4 GiB and 20 % on the device that follows from its number."""
    node, index = number % nodes, number // nodes % DEVICES_PER_NODE
    device = an_allocated_device(
        uuid=f"GPU-{node}-{index}", request="main", index=index, memory_mib=4096, cores=20
    )
    return a_claim(
        f"claim-{number}",
        resource_version=version,
        requests=[a_request(name="main", memory="4Gi", cores=20)],
        allocation=allocated(device, node=f"node-{node:05d}") if held else None,
    )


def refusals(ledger: Ledger) -> dict[str, float]:
    """Measure refusals with the reasons of every node: the first, the next, and as text."""
    demand = an_ask(a_request(name="main", memory="64Gi"))
    times = [timed(lambda: place(ledger.columns, demand).text)[1] / 1000 for _ in range(6)]
    return {"cold": round(times[0], 1), "warm": round(min(times[1:]), 1)}


class Fleet:
    """Devices that are used by claims which come and go."""

    def __init__(self, policy: str, *, nodes: int, claims: int) -> None:
        self._random = random.Random(42)
        node_policy, device_policy, count = POLICIES[policy]
        self.asks = [
            an_ask(
                a_request(name="main", memory=memory, cores=cores, count=count),
                node=node_policy,
                device=[device_policy],
            )
            for memory, cores in SHAPES
        ]
        ledger = Ledger(config=ClusterConfig())
        for node in range(nodes):
            ledger.apply_node(a_node(f"node-{node:05d}"))
        self.columns = ledger.columns
        self.devices: list[DeviceFacts] = []
        for number in range(nodes * DEVICES_PER_NODE):
            self.devices.append(a_linked_device(number))
            self.columns.put_device(self.devices[-1])
        for demand in self.asks:
            self.columns.mix.observe(demand)
        self.held: list[tuple[tuple[int, ...], Demand]] = []
        while len(self.held) < claims:
            demand = self._random.choice(self.asks)
            devices = tuple(self._random.sample(range(DEVICES_PER_NODE), count))
            node = self._random.randrange(nodes)
            self._hold(tuple(node * DEVICES_PER_NODE + device for device in devices), demand)

    def churn(self, decisions: int) -> dict[str, float]:
        """Make this many decisions, with a claim ending before each; return the times in µs."""
        times: list[float] = []
        for _ in range(decisions + 200):
            self._end_one()
            demand = self._random.choice(self.asks)
            plan, took = timed(lambda demand=demand: place(self.columns, demand))
            times.append(took)
            self._hold(tuple(self.columns.number_of(grant.device) for grant in plan.grants), demand)
        return spread_of(times[200:])  # the first decisions fill the caches of their classes

    def compare(self, decisions: int) -> dict[str, float]:
        """Return the plain scan's time in µs on the same states; it must decide the same."""
        times: list[float] = []
        for _ in range(decisions):
            self._end_one()
            demand = self._random.choice(self.asks)
            fleet = self._plain()
            answer, took = timed(lambda demand=demand, fleet=fleet: plain.decide(fleet, demand))
            times.append(took)
            plan = place(self.columns, demand)
            if not same(plan, answer):
                raise AssertionError(f"{demand}: {plan} is not {answer}")
        return spread_of(times)

    def _plain(self) -> plain.Fleet:
        columns = self.columns
        used = {device.uuid: plain.Used(*columns.used(columns.number_of(device.name)))
                for device in self.devices}  # fmt: skip
        return plain.Fleet.of(self.devices, used, mix=columns.mix.types)

    def _hold(self, devices: tuple[int, ...], demand: Demand) -> None:
        """Hold devices, if all of them have room."""
        columns, request = self.columns, demand.requests[0]
        memory = request.memory_mib or 0
        for device in devices:
            full = columns.memory_used[device] + memory > DEVICE_MIB
            if (
                full
                or columns.cores_used[device] + request.cores > 100
                or self._slots(device) >= 10
            ):
                return
        for device in devices:
            self._add(device, 1, request.cores, memory)
        if devices:
            self.held.append((devices, demand))

    def _end_one(self) -> None:
        at = self._random.randrange(len(self.held))
        self.held[at], self.held[-1] = self.held[-1], self.held[at]
        devices, demand = self.held.pop()
        request = demand.requests[0]
        for device in devices:
            self._add(device, -1, -request.cores, -(request.memory_mib or 0))

    def _slots(self, device: int) -> int:
        return self.columns.slots_used[device]

    def _add(self, device: int, slots: int, cores: int, memory: int) -> None:
        was = self.columns.used(device)
        self.columns.set_used(
            device, slots=was[0] + slots, cores=was[1] + cores, memory=was[2] + memory
        )


def a_linked_device(number: int) -> DeviceFacts:
    """Return a device of a node of eight, in two groups of four with NVLinks inside."""
    node, index = divmod(number, DEVICES_PER_NODE)
    links = {
        f"GPU-{node}-{peer}": 210 if peer // 4 == index // 4 else 10
        for peer in range(DEVICES_PER_NODE)
        if peer != index
    }
    return device_facts(
        f"GPU-{node}-{index}",
        node=f"node-{node:05d}",
        index=index,
        numa=index // 4,
        memory_mib=DEVICE_MIB,
        links=links,
    )


def same(plan: Plan, answer: plain.Answer) -> bool:
    grants = tuple((g.request, g.uuid, g.memory_mib, g.cores, "") for g in plan.grants)
    return (plan.node, grants) == (answer.node, answer.grants)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the duration in µs."""
    start = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - start) / 1000


def spread_of(times: Sequence[float]) -> dict[str, float]:
    ranked = sorted(times)
    at = {"p50": 0.5, "p99": 0.99}
    found = {name: ranked[min(len(ranked) - 1, int(len(ranked) * q))] for name, q in at.items()}
    return {name: round(value, 1) for name, value in found.items()} | {"n": len(ranked)}


def rss_mib() -> int:
    """Return the process's resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


if __name__ == "__main__":
    main(sys.argv[1:])
