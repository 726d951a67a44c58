"""Measure how others slow a Filter: the second part of `make bench-waiting`.

A fleet of 5,000 nodes with 8 devices, each with a claim; engine, extender and the pods' reflector
in one loop, as in the operator. Two processes of their own play kube-scheduler, with 50 Filters a
second by mutual TLS, and the API server, whose watch brings events of a large pod without a GPU.

    room      pods wait for room, a device changes ten times a second, and Filters are refused
    quota     the same, but a ResourceQuota is used up: what a Filter is refused by
    calm      Filters are granted, and nothing else happens
    flood-N   the same, while the watch brings N events a second of a foreign pod of 1.1 MiB

    filter_cpu_ms   CPU of the operator's loop between the sending of a Filter and its answer: its
                    decision and whatever held the loop before it. Has the bar
    filter_ms       of the whole call, by the clock
    loop_busy_ms    the CPU of the longest holds of the loop
    ratio           median of filter_cpu_ms against the baseline of this run: quota against room,
                    flood against calm

`above` lists the scenes that miss the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import os
import platform
import random
import select
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from fixed_credentials import FixedCredentials
from perf.waiting_bench import TimedEngine, at, connection_to, serving, spread
from replica import Replica
from vgpu_api.core import ResourceQuota
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.connection import Connection
from vgpu_client.session import open_pooled_http
from vgpu_client.transport import Transport
from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports
from vgpu_operator.engine.informers import InSlices, informers
from vgpu_operator.garbage_collection import keep_passes_short

DEVICES_PER_NODE = 8
DEVICE_MIB, HELD_MIB = 40_960, 32_768
WAITING = 20
FILTER_EVERY_S = 0.02
CHANGE_EVERY_S = 0.1
UNCOUNTED = 20
"""Filters at first: connections, and what a new leader ranks once."""
LARGE_BYTES = 1_150_000
"""The size of the foreign pod; the API server accepts objects of up to 1.5 MiB."""
BAR_MS = 10
ASKS_MIB = {"room": 20_000, "quota": 4_096, "calm": 1_024}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--candidates", type=int, default=500, help="named in a Filter")
    parser.add_argument("--floods", type=int, nargs="*", default=[2, 5], help="events a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each scene")
    parser.add_argument("--out", type=Path, default=Path("build/bench/crowd.json"))
    options = parser.parse_args(arguments)
    scenes = uvloop.run(measure(options))
    baselines = {name: "room" if name in ("room", "quota") else "calm" for name in scenes}
    for name, figures in scenes.items():
        base = scenes[baselines[name]]["filter_cpu_ms"]["p50"] or 0.01
        figures["ratio"] = round(figures["filter_cpu_ms"]["p50"] / base, 2)
    report = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "fleet": {"nodes": options.nodes, "devices": options.nodes * DEVICES_PER_NODE,
                  "candidates": options.candidates},
        "bar_ms": BAR_MS,
        "scenes": scenes,
        "above": [name for name, of in scenes.items() if of["filter_cpu_ms"]["p99"] > BAR_MS],
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    json.dump(report, sys.stdout, indent=2)
    print()


class LoopTimes:
    """The CPU that the loop's thread has used, by the clock that all processes share."""

    def __init__(self) -> None:
        self._clock: list[float] = []
        self._cpu: list[float] = []

    async def watch(self) -> None:
        """Note the time whenever the loop gives us a turn, about every millisecond."""
        while True:
            self._clock.append(time.perf_counter())
            self._cpu.append(time.thread_time())
            await asyncio.sleep(0.001)

    def used(self, start: float, end: float) -> float:
        """Return the milliseconds of CPU between two points in time."""
        return (self._at(end) - self._at(start)) * 1000

    def holds(self) -> list[float]:
        """Return the milliseconds of CPU between each two readings."""
        return [(later - sooner) * 1000 for sooner, later in itertools.pairwise(self._cpu)]

    def clear(self) -> None:
        """Forget the readings so far."""
        self._clock.clear()
        self._cpu.clear()

    def _at(self, when: float) -> float:
        """Return the CPU time at a moment, assuming even use while the loop is held."""
        place = min(max(bisect.bisect_right(self._clock, when), 1), len(self._clock) - 1)
        (began, ends), (before, after) = (
            (of[place - 1], of[place]) for of in (self._clock, self._cpu)
        )
        share = min(max((when - began) / ((ends - began) or 1.0), 0.0), 1.0)
        return before + share * (after - before)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the figures by scene."""
    replica = Replica(clock=Clock(), engine_type=TimedEngine)
    replica.fleet(options.nodes, devices=DEVICES_PER_NODE, memory_mib=DEVICE_MIB)
    for number in range(options.nodes * DEVICES_PER_NODE):
        replica.news.claim_changed(holder(number, options.nodes, HELD_MIB))
    quota = {"metadata": {"name": "full", "namespace": "full", "resourceVersion": "1"},
             "spec": {"hard": {"limits.nvidia.com/gpumem": 1}}}  # fmt: skip
    replica.news.quota_changed(ResourceQuota.model_validate(quota))
    found: dict[str, dict[str, Any]] = {}
    async with serving(replica) as (folder, port), flooded(replica) as flood:
        running = asyncio.create_task(replica.engine.run())
        replica.engine.lead()
        keep_passes_short()
        for scene in ("room", "quota", "calm", *(f"flood-{rate}" for rate in options.floods)):
            kind = scene.partition("-")[0]
            asks = "calm" if kind == "flood" else kind
            waiting = [] if asks == "calm" else await wait_for_nothing(replica, asks)
            changing = asyncio.create_task(change(replica, options.nodes, is_on=bool(waiting)))
            await flood(int(scene.partition("-")[2] or 0))
            found[scene] = await one_scene(replica, options, asks, scene, (folder, port))
            await flood(0)
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            for uid in waiting:
                replica.news.pod_gone(uid)
            print(json.dumps({scene: found[scene]}), file=sys.stderr)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


async def one_scene(
    replica: Replica,
    options: argparse.Namespace,
    asks: str,
    scene: str,
    served: tuple[Path, int],
) -> dict[str, Any]:
    """Return the figures of the Filters of one scene."""
    times = LoopTimes()
    watching = asyncio.create_task(times.watch())
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "filters", *map(str, served), str(options.nodes)),
        *(str(options.candidates), asks, scene, str(options.seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await client.communicate()
    await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    calls: list[tuple[float, float]] = json.loads(said)
    holds = times.holds()
    return {
        "filter_cpu_ms": spread([times.used(*call) for call in calls]),
        "filter_ms": spread([(end - start) * 1000 for start, end in calls]),
        "loop_busy_ms": {"p99": at(holds, 0.99), "max": at(holds, 1)},
    }


async def wait_for_nothing(replica: Replica, asks: str) -> list[str]:
    """Create pods that are refused and wait; return their UIDs."""
    uids = []
    for number in range(WAITING):
        name = f"waits-{asks}-{number}"
        pod = a_pod(name, namespace=namespace_of(asks), containers=[asking(asks)])
        replica.news.pod_changed(pod)
        replica.offer(pod)
        uids.append(pod.metadata.uid)
    return uids


async def change(replica: Replica, nodes: int, *, is_on: bool) -> None:
    """End and start a small claim on some device, as pods do all the time."""
    chance, numbers = random.Random(3), itertools.count()
    while is_on:
        claim = holder(chance.randrange(nodes * DEVICES_PER_NODE), nodes, 64, next(numbers))
        replica.news.claim_changed(claim)
        await asyncio.sleep(CHANGE_EVERY_S / 2)
        replica.news.claim_gone(("default", claim.metadata.name), claim.metadata.uid)
        await asyncio.sleep(CHANGE_EVERY_S / 2)


def holder(number: int, nodes: int, mib: int, again: int = 0) -> VGPUClaim:
    node, index = number % nodes, number // nodes
    part = an_allocated_device(uuid=f"GPU-{node}-{index}", request="main", memory_mib=mib)
    return a_claim(
        f"holder-{mib}-{number}-{again}",
        requests=[a_request(name="main", memory=f"{mib}Mi")],
        allocation=an_allocation(part, node=f"node-{node:05d}"),
    )


def asking(asks: str) -> Any:
    return a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": ASKS_MIB[asks]})


def namespace_of(asks: str) -> str:
    return "full" if asks == "quota" else "default"


@asynccontextmanager
async def flooded(replica: Replica) -> AsyncIterator[Any]:
    """Run the pods' reflector on a server; yield a function that sets the events per second."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as name:
        folder, authority = Path(name), Authority()
        (folder / "ca.crt").write_bytes(authority.certificate)
        authority.leaf().write(folder)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "watch", name, str(port)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.readline()  # it listens
        trust = ssl.create_default_context(cafile=folder / "ca.crt")
        url, nobody = f"https://localhost:{port}", FixedCredentials()
        connection = Connection(url, trust, None, None, nobody)

        async def tell(rate: int) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{rate}\n".encode())
            await process.stdin.drain()

        async with open_pooled_http() as http:
            source = InSlices(Api(Transport(http, connection)), replica.engine.slices)
            followed = informers(source, replica.engine.observe, replica.state.config)
            (pods,) = (each for each in followed if each.resource == PODS)
            task = asyncio.create_task(pods.run())
            await pods.synced.wait()
            yield tell
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        process.terminate()
        await process.wait()


def large_pod() -> str:
    """Return a pending pod without a GPU, of many containers with many variables, as JSON."""
    variables = [{"name": f"VARIABLE_{at}", "value": "some text"} for at in range(500)]
    container = {"image": "registry.example/train:1", "env": variables,
                 "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}  # fmt: skip
    count = LARGE_BYTES // len(json.dumps(container)) + 1
    wire = a_pod("large", uid="uid-large").to_wire()
    wire["metadata"] |= {"namespace": "foreign", "resourceVersion": "1"}
    wire["spec"]["containers"] = [{**container, "name": f"main-{at}"} for at in range(count)]
    return json.dumps(wire)


async def watch(folder: Path, port: int) -> None:
    """Simulate the API server: one foreign pod that is annotated at the requested rate."""
    text, rate, version = large_pod(), 0, itertools.count(1_000_000)
    streams: list[web.StreamResponse] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            listed = f'{{"metadata":{{"resourceVersion":"{next(version)}"}},"items":[{text}]}}'
            return web.Response(text=listed, content_type="application/json")
        stream = web.StreamResponse()
        await stream.prepare(request)
        streams[:] = [stream]
        await asyncio.Event().wait()
        return stream

    def read_rate() -> None:
        nonlocal rate
        line = sys.stdin.readline()
        if not line:  # the bench has ended, for any reason
            os._exit(0)
        rate = int(line)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    await web.TCPSite(runner, "localhost", port, ssl_context=context).start()
    print("listens", flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, read_rate)
    while True:
        await asyncio.sleep(1 / rate if rate else 0.05)
        if rate and streams:
            newer = text.replace('"resourceVersion": "1"', f'"resourceVersion": "{next(version)}"')
            await streams[0].write(f'{{"type":"MODIFIED","object":{newer}}}\n'.encode())


def ask(
    folder: Path, port: int, *, nodes: int, candidates: int, asks: str, scene: str, seconds: float
) -> list[tuple[float, float]]:
    """Play kube-scheduler: return when each Filter was sent and answered."""
    connection = connection_to(folder, port)
    connection.connect()
    names = [f"node-{number:05d}" for number in range(nodes)]
    chance, calls = random.Random(11), list[tuple[float, float]]()
    ends = time.perf_counter() + seconds
    for number in itertools.count():
        if time.perf_counter() > ends:
            break
        name = f"{scene}-{number if asks == 'calm' else number % 32}"
        pod = a_pod(name, namespace=namespace_of(asks), resource_version=5_000_000_000,
                    containers=[asking(asks)])  # fmt: skip
        some = sorted(chance.sample(names, min(candidates, nodes)))
        raw = json.dumps({"Pod": pod.to_wire(), "NodeNames": some}).encode()
        select.select([], [], [], FILTER_EVERY_S)
        start = time.perf_counter()
        connection.request("POST", "/filter", body=raw)
        answer = json.loads(connection.getresponse().read())
        if number >= UNCOUNTED:
            calls.append((start, time.perf_counter()))
        if len(answer["NodeNames"] or ()) != (asks == "calm"):
            raise AssertionError(f"{name}: {len(answer['NodeNames'] or ())} nodes")
    return calls


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", folder, port]:
            uvloop.run(watch(Path(folder), int(port)))
        case ["filters", folder, port, nodes, candidates, asks, scene, seconds]:
            found = ask(
                Path(folder), int(port), nodes=int(nodes), candidates=int(candidates), asks=asks,
                scene=scene, seconds=float(seconds),
            )  # fmt: skip
            json.dump(found, sys.stdout)
        case _:
            main(sys.argv[1:])
