"""`make bench-waiting`: what waiting pods cost a full cluster of 5,000 nodes with 8 devices each.

The engine runs with real clocks on an API server in memory; in the same event loop stand the
extender with mutual TLS, the Lease, and a task that measures how long the loop was held. A client
in a process of its own repeats the Filter of some pods that fit nowhere all the while, as
kube-scheduler does, and another asks a process of the webhooks for reviews. Every change is of one
device: either too little is freed, so that each class is checked and none is served, or a whole
device is, so that one pod is served, ends, and another comes in its place.

    round_cpu_ms, round_ms         the longest round after a change: CPU, and by the clock
    loop_busy_ms, loop_blocked_ms  how long the loop was held: as CPU, and as a task of it sees it
    filter_cpu_ms, filter_ms       of a Filter's decision, and of the whole call by TLS
    webhook_ms                     of a review of a pod

The first of each pair counts nothing that other processes took of the machine, and has the bar.
Written to build/bench/waiting.json with the bars beside the figures; `above` lists those that are
missed. At full size it takes some 5 minutes of a machine with two idle CPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import platform
import random
import select
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import aiohttp

from builders import (
    a_claim,
    a_container,
    a_device,
    a_node,
    a_pod,
    a_request,
    an_allocated_device,
    an_ask,
)
from builders import an_allocation as allocated
from perf.admission_bench import Asker, arrivals, served
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimStatus
from vgpu_client.clock import Clock
from vgpu_client.lease import Elector, LeaseLost
from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports
from vgpu_operator.config import Address
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.extender.server import ExtenderServer
from vgpu_operator.garbage_collection import keep_passes_short
from vgpu_operator.ledger import Ledger
from vgpu_operator.node_filter import NodeRules
from vgpu_operator.placement import place

DEVICES_PER_NODE = 8
DEVICE_MIB = 40_960
LARGE_MIB, SMALL_MIB = 32_768, 1_024
"""The memory of two claims on each device; waiting pods request about as much as the large one."""
CANDIDATES = 500
"""The number of nodes that kube-scheduler passes to a Filter in a cluster of 5,000 nodes."""
CANDIDATES_AT_FIRST = 100
"""The same for pods that come before measuring begins: fewer, since up to 10,000 come."""
REVIEWED_A_SECOND = 10
ROUND_BARS_MS = {1: 5, 100: 20, 1_000: 50}
BARS = {
    "loop_busy_max_ms": 25,
    "filter_cpu_p99_ms": 10,
    "webhook_p99_ms": 50,
    "lease_lost": 0,
    "node_filter_ratio": 3,
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--waiting", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--classes", type=int, nargs="*", default=[1, 100, 1_000])
    parser.add_argument("--changes", type=int, default=100, help="of each kind")
    parser.add_argument("--out", type=Path, default=Path("build/bench/waiting.json"))
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "load_average": [os.getloadavg()],
        "fleet": {"nodes": options.nodes, "devices": options.nodes * DEVICES_PER_NODE},
        "bars": {**BARS, "round_p99_ms": ROUND_BARS_MS},
        "waiting": [],
        "above": [],
    }
    report["node_filter_us"] = found = node_filters(options.nodes)
    print(json.dumps(found), file=sys.stderr)
    if max(found.values()) > BARS["node_filter_ratio"] * min(found.values()):
        report["above"].append("node_filter_ratio")
    scene = Scene(options.nodes)
    gc.collect()
    gc.freeze()
    with Reviews() as reviews:
        for waiting in options.waiting:
            for classes in options.classes:
                began = time.monotonic()
                figures = in_a_fork(
                    partial(scene.measure, waiting, classes, options.changes, reviews)
                )
                figures["seconds"] = round(time.monotonic() - began, 1)
                report["waiting"].append(figures)
                report["above"] += above(figures)
                report["load_average"].append(os.getloadavg())
                print(json.dumps(figures), file=sys.stderr)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    json.dump(report, sys.stdout, indent=2)
    print()


def above(figures: dict[str, Any]) -> list[str]:
    """Return the bars that a scene misses, with the scene."""
    scene = f"{figures['pods']} pods of {figures['classes']} classes"
    measured = {
        "loop_busy_max_ms": figures["loop_busy_ms"]["max"],
        "filter_cpu_p99_ms": figures["filter_cpu_ms"]["p99"],
        "webhook_p99_ms": figures["webhook_ms"]["p99"],
        "lease_lost": figures["lease_lost"],
    }
    missed = [f"{name}: {scene}" for name, value in measured.items() if value > BARS[name]]
    bar = ROUND_BARS_MS.get(figures["classes"], float("inf"))
    for kind, of in figures["round_cpu_ms"].items():
        if of["p99"] > bar:
            missed.append(f"round_p99_ms, {kind}: {scene}")
    return missed


class Reviews:
    """A process that sends reviews to the webhooks' process continuously, and measures them."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            (sys.executable, __file__, "reviews"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.since_last()  # it has begun
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def since_last(self) -> list[float]:
        """Return the milliseconds of each review since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found


def in_a_fork(measure: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    """Return the result of measuring in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with os.fdopen(writing, "w") as answer:
                json.dump(asyncio.run(measure()), answer)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a scene has failed")
    found: dict[str, Any] = json.loads(text)
    return found


class TimedEngine(Engine):
    """An engine that records the milliseconds of each round, without the turns of other tasks.

    Attributes:
        rounds: Of CPU and on the clock, of each round.
        filters: Of CPU, of each Filter's decision.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rounds: list[tuple[float, float]] = []
        self.filters: list[float] = []
        self._is_at_work = False

    def filter(self, *arguments: Any) -> Reservation | Refusal | None:
        start = time.thread_time()
        found = super().filter(*arguments)
        self.filters.append((time.thread_time() - start) * 1000)
        return found

    @property
    def has_work(self) -> bool:
        """Return True if a round is running or due."""
        return self._is_at_work or self._wake.is_set()

    def round(self) -> Iterable[Iterable[Effect]]:
        cpu, wall, slices = 0.0, 0.0, iter(super().round())
        self._is_at_work = True
        while True:
            start, at = time.thread_time(), time.perf_counter()
            effects = next(slices, None)
            cpu += time.thread_time() - start
            wall += time.perf_counter() - at
            if effects is None:
                self.rounds.append((cpu * 1000, wall * 1000))
                self._is_at_work = False
                return
            yield effects


class Scene:
    """A full cluster, and pods of some classes that wait in it.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes, self._classes = nodes, 1
        self._chance = random.Random(7)
        self._served: list[str] = []
        self._came_back: Counter[str] = Counter()
        self._afterwards: Callable[[], Awaitable[None]] = self._quiet
        self._born = 0
        clock = Clock()
        self.replica = replica = Replica(clock=clock, engine_type=TimedEngine)
        assert isinstance(replica.engine, TimedEngine)
        self.engine = replica.engine
        at_first = self._chance.sample(range(nodes), min(CANDIDATES_AT_FIRST, nodes))
        self._at_first = frozenset(f"node-{number:05d}" for number in at_first)
        replica.fleet(nodes, devices=DEVICES_PER_NODE, memory_mib=DEVICE_MIB)
        for number in range(nodes * DEVICES_PER_NODE):
            replica.news.claim_changed(self._holder(number, LARGE_MIB))
            replica.news.claim_changed(self._holder(number, SMALL_MIB))

    def _holder(self, number: int, mib: int) -> VGPUClaim:
        node, index = number % self._nodes, number // self._nodes
        device = an_allocated_device(
            uuid=f"GPU-{node}-{index}", request="main", index=index, memory_mib=mib
        )
        name = f"holder-{mib}-{number}"
        return a_claim(
            name,
            uid=f"uid-of-{name}-{self._came_back[name]}",
            requests=[a_request(name="main", memory=f"{mib}Mi")],
            status=VGPUClaimStatus(
                allocation=allocated(device, node=f"node-{node:05d}"),
                conditions=[],
                observed_generation=1,  # the operator has nothing to write to it
            ),
        )

    async def measure(
        self, waiting: int, classes: int, changes: int, reviews: Reviews
    ) -> dict[str, Any]:
        """Return all figures of this cluster, in milliseconds, and how many leases were lost.

        Args:
            waiting: How many pods wait.
            classes: How many different requests they make.
            changes: How many of each kind.
            reviews: The reviews made during that time.
        """
        self._classes = classes
        for _ in range(waiting):
            self._come(self._at_first)
        async with serving(self.replica) as (folder, port), loop_watch() as (held, busy):
            lease_lost = asyncio.create_task(self._hold_lease())
            running = asyncio.create_task(self.engine.run())
            await self._quiet()
            keep_passes_short()  # as the operator does when it begins to lead
            await asyncio.sleep(0.01)  # the watch task measures this duration
            for times in (held, busy, self.engine.filters):
                times.clear()
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "filters", str(folder), str(port)),
                str(self._nodes),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert client.stdout is not None
            await client.stdout.readline()  # it is connected
            await asyncio.to_thread(reviews.since_last)
            in_vain = [await self._after(self._free_too_little) for _ in range(changes)]
            serving_one = [await self._after(self._free_a_device) for _ in range(changes)]
            # recorded before the answers are read, because reading takes time
            late, used = list(held), list(busy)
            filters = spread(self.engine.filters)
            reviewed = spread(await asyncio.to_thread(reviews.since_last))
            answers, _ = await client.communicate(b"enough\n")
            lost = lease_lost.done()
            for task in (running, lease_lost):
                task.cancel()
            await asyncio.gather(running, lease_lost, return_exceptions=True)
        rounds = {"serves_nobody": in_vain, "serves_one": serving_one}
        return {
            "pods": waiting,
            "classes": classes,
            "served": len(self._served),
            "round_cpu_ms": {name: spread([cpu for cpu, _ in of]) for name, of in rounds.items()},
            "round_ms": {name: spread([wall for _, wall in of]) for name, of in rounds.items()},
            "loop_blocked_ms": {"p99": at(late, 0.99), "max": at(late, 1)},
            "loop_busy_ms": {"p99": at(used, 0.99), "max": at(used, 1)},
            "filter_cpu_ms": filters,
            "filter_ms": spread(json.loads(answers)),
            "webhook_ms": reviewed,
            "lease_lost": int(lost),
        }

    def _come(self, candidates: frozenset[str]) -> None:
        """Add a pod of the next class in turn; it fits nowhere."""
        pod = waiting_pod(self._born, self._classes)
        self._born += 1
        self.replica.pod(pod.metadata.name, containers=pod.spec.containers)
        self.engine.filter(pod, candidates)

    def _some_nodes(self, *also: str) -> frozenset[str]:
        numbers = self._chance.sample(range(self._nodes), min(CANDIDATES, self._nodes))
        return frozenset((*(f"node-{number:05d}" for number in numbers), *also))

    def _free_too_little(self) -> None:
        """Delete and create a small claim: capacity is freed, but too little for a pod."""
        number = self._chance.randrange(self._nodes * DEVICES_PER_NODE)
        self._go(self._holder(number, SMALL_MIB))
        self._afterwards = lambda: self._come_back(number, SMALL_MIB)

    def _go(self, holder: VGPUClaim) -> None:
        key = holder.metadata.namespace or "", holder.metadata.name
        self.replica.news.claim_gone(key, holder.metadata.uid)

    async def _come_back(self, number: int, mib: int) -> None:
        """Create another claim with the same name and the amounts of the former one."""
        self._came_back[f"holder-{mib}-{number}"] += 1
        self.replica.news.claim_changed(self._holder(number, mib))

    def _free_a_device(self) -> None:
        """Free a device; its claim is recreated after one pod was served and has ended."""
        number = self._chance.randrange(self._nodes * DEVICES_PER_NODE)
        self._go(self._holder(number, LARGE_MIB))
        self._afterwards = lambda: self._serve(number)

    async def _serve(self, number: int) -> None:
        """Serve the first requeued pod and end it; fill the device again and add a waiting pod.

        Pods of a few kinds are requeued for one device, since what kube-scheduler refuses of one
        may fit the next.
        """
        node = f"node-{number % self._nodes:05d}"
        self.replica.api.log.clear()
        known = None
        # the device may since have been earmarked for another pod that has starved
        for _ in range(3):
            places = [
                held
                for held in self.replica.state.reservations
                if held.is_tentative and held.node == node
            ]
            known = next(filter(None, (self._ask_again(held, node) for held in places)), None)
            if known is not None:
                break
            await self._quiet()
        assert known is not None, "no pod is served by a device that is free"
        self._served.append(known.uid)
        await self._quiet()
        claim = self.replica.claim_of(known.pod)
        self.replica.news.pod_gone(known.uid)
        self.replica.news.claim_gone(known.claim, claim.metadata.uid)
        await self._come_back(number, LARGE_MIB)
        self.replica.api.vanish(PODS, known.pod.metadata.name)
        self.replica.api.vanish(VGPU_CLAIMS, claim.metadata.name)
        self._come(self._some_nodes())

    def _ask_again(self, held: Reservation, node: str) -> GPUPod | None:
        """Call Filter for a pod that was requeued, and return the pod if it is served.

        It is not served if the device has been earmarked for another pod that has waited longer.
        """
        known = self.engine.pod(held.pod_uid)
        assert known is not None
        self.engine.filter(known.pod, self._some_nodes(node))
        return None if self.replica.reservation(known.pod) is None else known

    async def _after(self, change: Callable[[], None]) -> tuple[float, float]:
        """Return the longest round after a change until the loop is quiet: CPU time, wall time."""
        self.engine.rounds.clear()
        change()
        await self._quiet()
        took = max(self.engine.rounds)
        await self._afterwards()
        await self._quiet()
        return took

    async def _quiet(self) -> None:
        """Return once the loop has nothing more to do and no write is in flight."""
        while True:
            seen = len(self.engine.rounds)
            await asyncio.sleep(0.005)
            await self.replica.effector.drain()
            if len(self.engine.rounds) == seen and seen and not self.engine.has_work:
                return

    async def _hold_lease(self) -> None:
        elector = Elector(self.replica.api, namespace="vgpu-system", name="operator", identity="a")
        await elector.acquire()
        try:
            await elector.keep()
        except LeaseLost:
            return


@asynccontextmanager
async def serving(replica: Replica) -> AsyncIterator[tuple[Path, int]]:
    """Run the extender with mutual TLS; yield the folder of client certificates, and the port."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority()
        (folder / "ca.crt").write_bytes(authority.certificate)
        certificate, key = authority.leaf().write(folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        address = Address("127.0.0.1", port)
        async with ExtenderServer(replica.engine, replica.binder, lambda: True, address, context):
            yield folder, port


def connection_to(folder: Path, port: int) -> http.client.HTTPSConnection:
    """Return the client's side of `serving`, not connected yet."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return http.client.HTTPSConnection("localhost", port, context=context)


@asynccontextmanager
async def loop_watch() -> AsyncIterator[tuple[list[float], list[float]]]:
    """Yield how long the loop is held, in ms: as seen by a task that wants every turn, and as CPU.

    The first includes the time that other processes take of the machine, the second does not.
    """
    late: list[float] = []
    busy: list[float] = []

    async def look() -> None:
        while True:
            due, used = time.perf_counter() + 0.001, time.thread_time()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - due) * 1000)
            busy.append((time.thread_time() - used) * 1000)

    task = asyncio.create_task(look())
    try:
        yield late, busy
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def waiting_pod(number: int, classes: int) -> Pod:
    """Return the waiting pod with that number; it asks for a little less than large claims hold."""
    limits = {
        "nvidia.com/gpu": 1,
        "nvidia.com/gpumem": LARGE_MIB - number % classes,
    }
    return a_pod(f"waits-{number}", containers=[a_container(limits=limits)])


def repeat_filters(folder: Path, port: int, *, nodes: int) -> None:
    """Simulate the client: 50 Filters a second of pods that request a whole device."""
    connection = connection_to(folder, port)
    connection.connect()
    print("connected", flush=True)
    chance, times = random.Random(11), []
    names = [f"node-{number:05d}" for number in range(nodes)]
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": DEVICE_MIB}
        pod = a_pod(f"large-{chance.randrange(32)}", containers=[a_container(limits=limits)])
        candidates = sorted(chance.sample(names, min(CANDIDATES, nodes)))
        raw = json.dumps({"Pod": pod.to_wire(), "NodeNames": candidates}).encode()
        start = time.perf_counter()
        connection.request("POST", "/filter", body=raw)
        answer = connection.getresponse().read()
        times.append((time.perf_counter() - start) * 1000)
        if json.loads(answer)["NodeNames"]:
            raise AssertionError(f"{pod.metadata.name} was granted a node of a full cluster")
    json.dump(times, sys.stdout)


def keep_reviewing() -> None:
    """Play the reviewers: send one pod after the other.

    For each line, print the durations since the last.
    """

    async def ask(url: str, trust: ssl.SSLContext) -> None:
        lines = asyncio.Queue[str]()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
        connector = aiohttp.TCPConnector(ssl=trust)
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            asker, pods = Asker(session, url), arrivals()
            while True:
                await asker.admit(next(pods), time.perf_counter())
                if lines.empty():
                    await asyncio.sleep(1 / REVIEWED_A_SECOND)
                elif not lines.get_nowait():
                    return
                else:
                    print(json.dumps(asker.measured.took))
                    sys.stdout.flush()
                    asker.measured.took.clear()

    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder, served(Path(folder)) as at:
        asyncio.run(ask(*at[:2]))


def node_filters(nodes: int) -> dict[str, float]:
    """Return mean µs of CPU per decision, by the number of distinct node filters in use."""
    ledger = Ledger(config=ClusterConfig())
    for node in range(nodes):
        name = f"node-{node:05d}"
        ledger.apply_node(a_node(name, labels={"pool": f"pool-{node % 100}"}))
        for index in range(DEVICES_PER_NODE):
            ledger.apply_device(
                a_device(uuid=f"GPU-{node}-{index}", node=name, index=index, memory_mib=DEVICE_MIB)
            )
    demand = an_ask(a_request(name="main", memory="4Gi"))
    found: dict[str, float] = {}
    for distinct in (60, 600, 6_000):
        rules = [a_rule(number) for number in range(distinct)]
        place(ledger.columns, demand, nodes=ledger.filters.rules.of(rules[0]))
        turns = max(6_000, 2 * distinct)
        start = time.thread_time()
        for turn in range(turns):
            nodes = ledger.filters.rules.of(rules[turn % distinct])
            plan = place(ledger.columns, demand, nodes=nodes)
            assert not plan.refused
        found[str(distinct)] = round((time.thread_time() - start) / turns * 1e6, 1)
    return found


def a_rule(number: int) -> NodeRules:
    """Return a selector of a pool, and a toleration that makes the rule unique."""
    toleration = (f"for-{number}", "Exists", "", "NoSchedule")
    return NodeRules((("pool", f"pool-{number % 100}"),), tolerations=(toleration,))


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return p50, p99, maximum and count."""
    return {"p50": at(times, 0.5), "p99": at(times, 0.99), "max": at(times, 1), "of": len(times)}


def at(times: Sequence[float], share: float) -> float:
    """Return the time that this share of the samples does not exceed."""
    return round(sorted(times)[min(int(len(times) * share), len(times) - 1)], 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["filters"]:
        place_of_files, at_port, node_count = sys.argv[2:]
        repeat_filters(Path(place_of_files), int(at_port), nodes=int(node_count))
    elif sys.argv[1:2] == ["reviews"]:
        keep_reviewing()
    else:
        main(sys.argv[1:])
