"""`make bench-web`: the web page at 5,000 nodes of 8 devices with 20,000 claims.

The server is a process of its own, filled with objects as a reflector decodes them. A claim changes
20 times a second and the client waits longer than that between two questions, so that no document
is served twice.

    fill_s          to decode and take in everything; rows_s: to make the rows of all nodes
    rss_mib         resident after all questions; rss_filled_mib: before them
    first_page_ms   `me` and `fleet`, on a connection of their own
    NAME_ms_p50     from request to answer of a view; NAME_kib: its size
    what_if_ms_p50  one pod; what_if_64_ms: as many as a question may have

Written to build/bench/web.json with the bars beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from bench_report import report

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_client.listen import listen
from vgpu_operator.engine import events
from vgpu_operator.engine.events import Event
from vgpu_operator.web.history import History
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.server import WebServer
from vgpu_operator.web.sight import Visitors
from vgpu_operator.web.what_if import MOST_PODS
from web_fleet import RIGHTS, a_fleet, a_holder, name_of
from web_world import Reviews

VIEWS = {
    "me": "/me",
    "fleet": "/fleet",
    "nodes": "/nodes",
    "nodes_sorted": "/nodes?sort=-memory&page=50",
    "node": f"/nodes/{name_of(1)}",
    "claims": "/claims",
    "waiting": "/claims?state=Waiting&sort=since",
    "claim": "/claims/robotics/train-00005-gpu",
}
POD = (
    "{kind: Pod, metadata: {name: p%d, namespace: vision}, spec: {containers: [{name: a, image: x, "
    "resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4096}}}]}}\n"
)
BARS = {
    "fleet_ms_p50": 150, "nodes_ms_p50": 150, "claims_ms_p50": 150, "claim_ms_p50": 500,
    "what_if_ms_p50": 500, "rss_mib": 768,
}  # fmt: skip
CHANGE_EVERY_S = 0.05


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--claims", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default=Path("build/bench/web.json"))
    options = parser.parse_args(arguments)
    command = [sys.executable, __file__, "child", str(options.nodes), str(options.claims)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        started = json.loads(child.stdout.readline())
        port = started.pop("port")
        figures = {**started, **asked(port, options.rounds)}
        ended, _ = child.communicate("end\n")
        figures["rss_mib"] = json.loads(ended)["rss_mib"]
    shape = {"nodes": options.nodes, "claims": options.claims, "note": options.note,
             "load_average": os.getloadavg()}  # fmt: skip
    return report(figures, bars=BARS, shape=shape, out=options.out)


def asked(port: int, rounds: int) -> dict[str, float]:
    """Return milliseconds by kind of request."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": "Bearer admin"}

    def ask(path: str, body: str | None = None) -> Any:
        method = "GET" if body is None else "POST"
        connection.request(method, f"/api/v1{path}", body=body, headers=headers)
        answer = connection.getresponse()
        raw = answer.read()
        assert answer.status == 200, raw
        return len(raw)

    figures: dict[str, float] = {}
    started = time.perf_counter()
    for view in ("me", "fleet"):
        ask(VIEWS[view])
    figures["first_page_ms"] = (time.perf_counter() - started) * 1000
    for name, path in VIEWS.items():
        figures[f"{name}_kib"] = ask(path) / 1024
        times = sorted(timed(partial(ask, path)) for _ in changes(rounds))
        figures |= {f"{name}_ms_p50": times[rounds // 2], f"{name}_ms_max": times[-1]}
    times = sorted(timed(lambda: ask("/what-if", POD % 0)) for _ in changes(rounds))
    figures |= {"what_if_ms_p50": times[rounds // 2], "what_if_ms_max": times[-1]}
    many = "---\n".join(POD % number for number in range(MOST_PODS))
    figures["what_if_64_ms"] = timed(lambda: ask("/what-if", many))
    return figures


def changes(rounds: int) -> Iterator[int]:
    """Yield this many numbers; the cluster changes before each of them."""
    for number in range(rounds):
        time.sleep(2 * CHANGE_EVERY_S)
        yield number


def timed(act: Callable[[], object]) -> float:
    """Return the duration in milliseconds."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


async def serve(nodes: int, claims: int) -> None:
    """Serve until a line is read."""
    mirror = Mirror(ClusterConfig(), Clock())
    took = 0.0
    for event in a_fleet(nodes, claims):
        raw, type_ = wire_of(event)
        started = time.perf_counter()
        mirror.observe(received(raw, type_))
        took += time.perf_counter() - started
        if type_ is VGPUClaim:
            await asyncio.sleep(0)
    gc.collect()
    rows_ms = timed(mirror.nodes)
    listening, synced = listen("127.0.0.1", 0), asyncio.Event()
    synced.set()
    visitors = Visitors(Reviews(RIGHTS))  # type: ignore[arg-type]
    history = History(None, Clock())
    async with WebServer(mirror, visitors, history, listening, tls=None, synced=synced):
        changing = asyncio.create_task(change(mirror, nodes))
        port = listening.getsockname()[1]
        figures = {"fill_s": took, "rows_s": rows_ms / 1000, "rss_filled_mib": resident_mib()}
        print(json.dumps({"port": port, **figures}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        changing.cancel()
    print(json.dumps({"rss_mib": resident_mib()}))


async def change(mirror: Mirror, nodes: int) -> None:
    """Change one claim of the fleet again and again."""
    version = 2
    while True:
        claim = a_holder(version * 12, nodes)
        metadata = claim.metadata.model_copy(update={"resource_version": str(version)})
        mirror.observe(events.ClaimObserved(claim.model_copy(update={"metadata": metadata})))
        version += 1
        await asyncio.sleep(CHANGE_EVERY_S)


def wire_of(event: Event) -> tuple[bytes, type[Node] | type[GPUDevice] | type[VGPUClaim]]:
    """Return the object of an event as it is on the wire, and its kind."""
    match event:
        case events.NodeObserved(found) | events.DeviceObserved(found):
            return orjson.dumps(found.to_wire()), type(found)
        case events.ClaimObserved(found):
            return orjson.dumps(found.to_wire()), VGPUClaim
        case _:
            raise TypeError(event)


def received(raw: bytes, type_: type[Node] | type[GPUDevice] | type[VGPUClaim]) -> Event:
    """Return the event of an object as a reflector decodes it."""
    found = type_.model_validate(orjson.loads(raw))
    if isinstance(found, Node):
        return events.NodeObserved(found)
    if isinstance(found, GPUDevice):
        return events.DeviceObserved(found)
    return events.ClaimObserved(found)


def resident_mib() -> float:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        asyncio.run(serve(int(sys.argv[2]), int(sys.argv[3])))
    else:
        sys.exit(main(sys.argv[1:]))
