"""A Filter beside watch events: `make bench-events` -> build/bench/events.json.

A half full cluster, the operator's engine, its reflectors and its extender in one loop, as in the
operator. A process of its own is the API server's watch: pods and claims by TLS, events at a rate,
half of them of pods without devices. Another is kube-scheduler: pods that are new to the operator,
a Filter each 20 ms by mutual TLS on a kept connection, and each of them gets a node.

    filter_ms        of the whole call, as its client sees it: sent, read, decided, answered
    empty_ms         of a call by the same client that the operator answers at once: what TLS, HTTP
                     and the client cost
    above_empty_ms   the first less the median of the second where nothing happens: has the bar
    decision_cpu_ms  what the engine took of it
    loop             how much of its core the operator used

by events a second; 0 is the baseline.
"""

from __future__ import annotations

import argparse
import asyncio
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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from builders import a_container, a_pod
from fixed_credentials import FixedCredentials
from perf.waiting_bench import TimedEngine, connection_to, serving, spread
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.connection import Connection
from vgpu_client.session import open_pooled_http
from vgpu_client.transport import Transport
from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.informers import InSlices, informers
from vgpu_operator.garbage_collection import keep_passes_short

DEVICES_PER_NODE = 8
DEVICE_MIB = 40_960
CANDIDATES = 500
FILTER_EVERY_S = 0.02
BAR_MS = 1.0
UNCOUNTED = 20
"""Calls at first: connections, and what a new leader ranks once."""
MANAGED = {
    "manager": "kubelet",
    "operation": "Update",
    "apiVersion": "v1",
    "time": "2026-01-01T00:00:00Z",
    "fieldsType": "FieldsV1",
    "subresource": "status",
    "fieldsV1": {
        "f:status": {
            "f:conditions": {
                f'k:{{"type":"{kind}"}}': {
                    ".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {},
                    "f:status": {}, "f:type": {},
                }
                for kind in ("ContainersReady", "Initialized", "PodReadyToStartContainers", "Ready")
            },
            "f:containerStatuses": {}, "f:hostIP": {}, "f:hostIPs": {}, "f:phase": {},
            "f:podIP": {}, "f:podIPs": {".": {}, 'k:{"ip":"10.0.0.1"}': {".": {}, "f:ip": {}}},
            "f:startTime": {},
        }
    },
}  # fmt: skip
"""The status that the kubelet writes to each pod, and a watch delivers."""
STATUS = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True", "lastProbeTime": None,
         "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("PodScheduled", "Initialized", "Ready", "ContainersReady")
    ],
    "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
    "qosClass": "Burstable",
    "containerStatuses": [
        {"name": "main", "ready": True, "started": True, "restartCount": 0,
         "image": "registry.example/train:1", "imageID": "registry.example/train@sha256:0",
         "containerID": "containerd://0", "lastState": {},
         "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    ],
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--claims", type=int, default=20_000)
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000])
    parser.add_argument("--seconds", type=float, default=20.0, help="at each rate")
    parser.add_argument("--out", type=Path, default=Path("build/bench/events.json"))
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "fleet": {"nodes": options.nodes, "devices": options.nodes * DEVICES_PER_NODE,
                  "claims": options.claims, "candidates": CANDIDATES},
        "bar_ms": BAR_MS,
        "events_a_second": uvloop.run(measure(options)),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    json.dump(report, sys.stdout, indent=2)
    print()


class CountingEngine(TimedEngine):
    """An engine that also counts the events.

    Attributes:
        seen: The number of events.
    """

    seen = 0

    def observe(self, event: Event) -> None:
        self.seen += 1
        super().observe(event)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return figures by events per second."""
    replica = Replica(clock=Clock(), engine_type=CountingEngine)
    assert isinstance(replica.engine, CountingEngine)
    replica.fleet(options.nodes, devices=DEVICES_PER_NODE, memory_mib=DEVICE_MIB)
    found: dict[str, dict[str, Any]] = {}
    at_rest = 0.0
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(watching(replica, options))
        running = asyncio.create_task(replica.engine.run())
        replica.engine.lead()
        await quiet(replica.engine)
        keep_passes_short()
        folder, port = await stack.enter_async_context(serving(replica))
        for rate in [0, *options.rates]:
            await watch.tell(rate)
            await asyncio.sleep(1)
            replica.engine.filters.clear()
            seen, used = replica.engine.seen, time.process_time()
            began = time.perf_counter()
            asked = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "filters", str(folder), str(port)),
                *(str(options.nodes), f"rate{rate}", str(options.seconds)),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            said, _ = await asked.communicate()
            took = time.perf_counter() - began
            times = json.loads(said)
            at_rest = at_rest or spread(times["empty_ms"])["p50"]
            found[str(rate)] = {
                **{name: spread(of) for name, of in times.items()},
                "above_empty_ms": spread([ms - at_rest for ms in times["filter_ms"]]),
                "decision_cpu_ms": spread(replica.engine.filters),
                "loop": round((time.process_time() - used) / took, 2),
                "events": round((replica.engine.seen - seen) / took),
            }
            print(json.dumps({rate: found[str(rate)]}), file=sys.stderr)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


async def quiet(engine: CountingEngine) -> None:
    """Return when nothing has happened for three seconds: devices are shown late."""
    seen = -1
    while engine.seen != seen:
        seen = engine.seen
        await asyncio.sleep(3)


async def objects(claims: int, nodes: int) -> dict[str, list[str]]:
    """Claims, their running pods, and half as many pods without devices, as JSON by plural.

    One pod is scheduled, and the others are as it became, with other names.
    """
    model = Replica()
    model.device(uuid="GPU-00000-0", node="node-00000", memory_mib=DEVICE_MIB)
    pod = model.offered("holder-00000", uid="uid-holder-00000", limits=limits_of(8192))
    await model.bound()
    known = model.cache.pod(pod.metadata.uid)
    assert known is not None
    claim = model.claim_of(pod).to_wire()
    holder = {**known.pod.to_wire(), "status": STATUS}
    plain = a_pod("plain-00000", uid="uid-plain-00000", node="node-00000").to_wire()
    plain["status"] = STATUS
    for wire in (holder, plain, claim):
        wire["metadata"] |= {"managedFields": [MANAGED], "resourceVersion": "1"}
    known_uid, allocation = claim["metadata"]["uid"], claim["status"]["allocation"]["id"]
    found: dict[str, list[str]] = {PODS.plural: [], VGPU_CLAIMS.plural: []}
    texts = [json.dumps(wire) for wire in (holder, claim, plain)]
    for number in range(claims):
        node, index = number % nodes, number // nodes % DEVICES_PER_NODE
        words = {
            "holder-00000": f"holder-{number:05d}", "node-00000": f"node-{node:05d}",
            "GPU-00000-0": f"GPU-{node}-{index}", "gpu-00000-0": f"gpu-{node}-{index}",
            allocation: f"a110c000-0000-4000-8000-{number:012d}",
            known_uid: f"uid-of-claim-{number:05d}", "plain-00000": f"plain-{number:05d}",
        }  # fmt: skip
        of_one = texts
        for word, by in words.items():
            of_one = [text.replace(word, by) for text in of_one]
        found[PODS.plural].append(of_one[0])
        found[VGPU_CLAIMS.plural].append(of_one[1])
        if number % 2 == 0:
            found[PODS.plural].append(of_one[2])
    return found


def limits_of(memory_mib: int) -> dict[str, int]:
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": 10}


class Watched:
    """A process that serves lists and watches, with events at a given rate."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, rate: int) -> None:
        """Send this many events per second from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rate}\n".encode())
        await self._process.stdin.drain()


@asynccontextmanager
async def watching(replica: Replica, options: argparse.Namespace) -> AsyncIterator[Watched]:
    """Read pods and claims by list and watch, as the operator does."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory() as name:
        folder, authority = Path(name), Authority()
        (folder / "ca.crt").write_bytes(authority.certificate)
        authority.leaf().write(folder)
        for plural, texts in (await objects(options.claims, options.nodes)).items():
            (folder / plural).write_text("\n".join(texts))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "watch", name, str(port)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        await process.stdout.readline()  # it listens
        trust = ssl.create_default_context(cafile=folder / "ca.crt")
        url, nobody = f"https://localhost:{port}", FixedCredentials()
        connection = Connection(url, trust, None, None, nobody)
        async with open_pooled_http() as http:
            api = Api(Transport(http, connection))
            source = InSlices(api, replica.engine.slices)
            followed = [
                each
                for each in informers(source, replica.engine.observe, replica.state.config)
                if each.resource in (PODS, VGPU_CLAIMS)
            ]
            tasks = [asyncio.create_task(each.run()) for each in followed]
            for each in followed:
                await each.synced.wait()
            yield Watched(process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        process.terminate()
        await process.wait()


async def watch(folder: Path, port: int) -> None:
    """Simulate the API server."""
    version, rate = itertools.count(1_000_000), 0
    texts = {name: (folder / name).read_text().split("\n") for name in ("pods", "vgpuclaims")}
    streams: dict[str, web.StreamResponse] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        plural = request.path.rsplit("/", 1)[1]
        if "watch" not in request.query:
            items = ",".join(texts[plural])
            listed = f'{{"metadata":{{"resourceVersion":"{next(version)}"}},"items":[{items}]}}'
            return web.Response(text=listed, content_type="application/json")
        stream = streams[plural] = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.Event().wait()
        return stream

    def read_rate() -> None:
        nonlocal rate
        rate = int(sys.stdin.readline() or "0")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    await web.TCPSite(runner, "localhost", port, ssl_context=context).start()
    print("listens", flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, read_rate)
    events, due = changes(texts, version), time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        due = max(due, time.perf_counter() - 0.05) if rate else time.perf_counter()
        while rate and due < time.perf_counter():
            due += 1 / rate
            plural, event = next(events)
            await streams[plural].write(event)


def changes(texts: dict[str, list[str]], version: Iterator[int]) -> Iterator[tuple[str, bytes]]:
    """Yield newer versions: one of a pod without devices, then of a pod with devices or a claim."""
    plain = [text for text in texts["pods"] if '"plain-' in text]
    holders = [text for text in texts["pods"] if '"plain-' not in text]
    claims = texts["vgpuclaims"]
    chance = random.Random(5)
    for plural, of in itertools.cycle(
        [("pods", plain), ("pods", holders), ("pods", plain), ("vgpuclaims", claims)]
    ):
        text = of[chance.randrange(len(of))]
        newer = text.replace('"resourceVersion": "1"', f'"resourceVersion": "{next(version)}"')
        yield plural, f'{{"type":"MODIFIED","object":{newer}}}\n'.encode()


def ask(
    folder: Path, port: int, *, nodes: int, prefix: str, seconds: float
) -> dict[str, list[float]]:
    """Play kube-scheduler: return the times of its calls in ms, without the first Filters."""
    connection = connection_to(folder, port)
    connection.connect()
    names = [f"node-{number:05d}" for number in range(nodes)]
    chance, times = random.Random(11), {"filter_ms": list[float](), "empty_ms": list[float]()}
    ends = time.perf_counter() + seconds
    for number in itertools.count():
        if time.perf_counter() > ends:
            return times
        pod = new_pod(f"{prefix}-{number}")
        candidates = sorted(chance.sample(names, min(CANDIDATES, nodes)))
        raw = json.dumps({"Pod": pod.to_wire(), "NodeNames": candidates}).encode()
        calls = {"empty_ms": ("GET", "/readyz"), "filter_ms": ("POST", "/filter", raw)}
        for name, call in calls.items():
            select.select([], [], [], FILTER_EVERY_S / 2)
            start = time.perf_counter()
            connection.request(*call)
            answer = connection.getresponse().read()
            if number >= UNCOUNTED:
                times[name].append((time.perf_counter() - start) * 1000)
        if len(json.loads(answer)["NodeNames"]) != 1:
            raise AssertionError(f"{pod.metadata.name} was granted no node of a half full cluster")
    raise AssertionError("unreachable")


def new_pod(name: str) -> Pod:
    """Return a pod that is newer than everything that was listed."""
    containers = [a_container(limits=limits_of(4096))]
    return a_pod(name, resource_version=5_000_000_000, containers=containers)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", folder, port]:
            uvloop.run(watch(Path(folder), int(port)))
        case ["filters", folder, port, nodes, prefix, seconds]:
            found = ask(
                Path(folder), int(port), nodes=int(nodes), prefix=prefix, seconds=float(seconds)
            )
            json.dump(found, sys.stdout)
        case _:
            main(sys.argv[1:])
