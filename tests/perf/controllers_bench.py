"""`make bench-controllers`: the cost of Kopf handlers in the leader, on a real control plane.

A process that has loaded the operator watches, each time a new one,

    controllers    what `controllers/` watches: ConfigMaps and webhook configurations
    devices        all GPUDevices, with a handler that does nothing
    nodes          all Nodes, the same, while each is written once in five minutes by its kubelet

and for each

    start_s        until the handlers have seen every object
    start_cpu_s    CPU of the process in that time
    more_mib       resident memory, beyond that of the loaded operator
    rest_percent   CPU at rest, of a core, beyond that of the idle process
    delay_ms       the most that anything in the other event loop had to wait during the start

The last two show why those kinds are not watched through Kopf. Written to
build/bench/controllers.json with the bars beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import kopf

import vgpu_operator.app
from perf.cluster_bench.paper import (
    DEVICES_PER_NODE,
    UNTAINTED,
    kinds_are_served,
    make_devices,
    make_nodes,
    node_name,
)
from vgpu_api.resources import CONFIG_MAPS, GPU_DEVICES, NODES, Resource
from vgpu_client.api import Api
from vgpu_client.recorder import Recorder, Regarding
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import apply, install
from vgpu_local.programs import NAMESPACE, ROOT
from vgpu_operator import kopf_frame
from vgpu_operator.certificates.parts import keeper_of
from vgpu_operator.config import OperatorConfig, parse
from vgpu_operator.controllers.controllers import Controllers

BARS = {"start_s": 30, "more_mib": 100, "rest_percent": 1}
KINDS: dict[str, Resource] = {"devices": GPU_DEVICES, "nodes": NODES}
STATUS_S = 300.0
"""The time between two reports of a kubelet whose node does not change."""
_LOOK_S = 0.01
_IDLE_WORKERS_S = 10.0
"""Kopf ends the task of an object that has not changed for five seconds."""
_LIMIT_S = 300.0
_UNSERVED = 1
"""A port on which no webhook answers."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--rest", type=float, default=30.0, help="seconds at rest")
    parser.add_argument("--out", type=Path, default=Path("build/bench/controllers.json"))
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Options(apiserver_args=UNTAINTED)) as plane,
    ):
        apply(plane, ROOT / "crds")
        asyncio.run(furnish(plane, options.nodes))
        install(plane, Path(folder), webhook_port=_UNSERVED)
        asyncio.run(configure(plane))
        found = {"controllers": child(plane, "controllers", 1, options.rest)}
        count = DEVICES_PER_NODE * options.nodes
        found["devices"] = child(plane, "devices", count, options.rest)
        with reporting(plane, options.nodes):
            found["nodes"] = child(plane, "nodes", options.nodes, options.rest)
    report = {
        "load_average": os.getloadavg(),
        "nodes_watched": options.nodes,
        "devices_watched": count,
        **found,
        "bars": BARS,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    missed = [key for key, bar in BARS.items() if found["controllers"][key] > bar]
    return 1 if missed else 0


async def furnish(plane: ControlPlane, nodes: int) -> None:
    """Create nodes and their devices."""
    async with Api.connect(str(plane.kubeconfig)) as api:
        await kinds_are_served(api)
        await make_devices(api, plane.etcd_socket, await make_nodes(api, nodes))


async def configure(plane: ControlPlane) -> None:
    """Create a ConfigMap that is reported."""
    wrong = {
        "metadata": {"name": "vgpu-config-wrong", "namespace": NAMESPACE},
        "data": {"config.yaml": "nvidia: {defaultCores: 101}"},
    }
    async with Api.connect(str(plane.kubeconfig)) as api:
        await api.create(CONFIG_MAPS, wrong)


@contextmanager
def reporting(plane: ControlPlane, nodes: int) -> Iterator[None]:
    """Write the status of every node once in five minutes, as kubelets do."""
    stop = threading.Event()

    async def report() -> None:
        async with Api.connect(str(plane.kubeconfig)) as api:
            began = time.monotonic()
            for number in itertools.count():
                due = began + number * STATUS_S / nodes
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if stop.is_set():
                    return
                ready = {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastHeartbeatTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
                await api.merge_patch(
                    NODES,
                    node_name(number % nodes),
                    {"status": {"conditions": [ready]}},
                    subresource="status",
                )

    thread = threading.Thread(target=lambda: asyncio.run(report()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def child(plane: ControlPlane, watched: str, objects: int, rest_s: float) -> dict[str, float]:
    """Return the cost, measured in a separate process."""
    command = [sys.executable, __file__, "child", str(plane.kubeconfig), watched, str(objects)]
    done = subprocess.run([*command, str(rest_s)], check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class Seen:
    """The objects that handlers have seen, by UID; stands in for the recorder of events."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self.events = 0

    def record(self, regarding: Regarding, **_: str) -> None:
        """Note the object of an event."""
        self.note(regarding.uid)

    def note(self, uid: str) -> None:
        """Note an object."""
        self.uids.add(uid)
        self.events += 1


class PlainHandlers:
    """A thread with Kopf and one handler that records the objects it is called for."""

    def __init__(self, config: OperatorConfig, kind: Resource, seen: Seen) -> None:
        self._config = config
        self._kind = kind
        self._seen = seen

    async def run(self) -> None:
        """Run until the process ends."""
        threading.Thread(target=lambda: asyncio.run(self._watch()), daemon=True).start()
        await asyncio.Event().wait()

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        kind = self._kind

        @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)
        async def note(uid: str | None, **_: Any) -> None:
            self._seen.note(str(uid))

        await kopf_frame.watch(registry, self._config, stop=asyncio.Event(), named={})


async def cost(kubeconfig: str, watched: str, objects: int, rest_s: float) -> dict[str, float]:
    """Watch the objects, and measure this process."""
    assert vgpu_operator.app  # loaded, as in the operator
    arguments = [
        f"--kubeconfig={kubeconfig}",
        "--certificates=secrets",
        "--service-name=vgpu-extender",
        "--advertise-address=127.0.0.1",
    ]
    config, seen, delays = parse(arguments, {}), Seen(), list[float]()
    async with Api.connect(kubeconfig) as api:
        handlers: Controllers | PlainHandlers
        if watched == "controllers":
            handlers = Controllers(config, cast(Recorder, seen), keeper_of(api, config))
        else:
            handlers = PlainHandlers(config, KINDS[watched], seen)
        looking = asyncio.create_task(look(delays))
        idle = await percent(rest_s)
        memory, began, cpu = resident_mib(), time.monotonic(), time.process_time()
        delays.clear()
        running = asyncio.create_task(handlers.run())
        while len(seen.uids) < objects:
            assert time.monotonic() < began + _LIMIT_S, f"{len(seen.uids)} of {objects} seen"
            await asyncio.sleep(_LOOK_S)
        found = {
            "start_s": round(time.monotonic() - began, 1),
            "start_cpu_s": round(time.process_time() - cpu, 1),
            "delay_ms": round(1000 * max(delays, default=0.0), 1),
        }
        await asyncio.sleep(_IDLE_WORKERS_S)
        events = seen.events
        found["rest_percent"] = round(await percent(rest_s) - idle, 2)
        found["rest_events"] = seen.events - events
        found["more_mib"] = round(resident_mib() - memory, 1)
        for task in (running, looking):
            task.cancel()
        await asyncio.gather(running, looking, return_exceptions=True)
    return found


async def look(delays: list[float]) -> None:
    """Record the delay of each short sleep in this loop."""
    while True:
        due = time.perf_counter() + _LOOK_S
        await asyncio.sleep(_LOOK_S)
        delays.append(time.perf_counter() - due)


async def percent(seconds: float) -> float:
    """Return the CPU of this process over this long, in percent of a core."""
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - cpu) / (time.monotonic() - began)


def resident_mib() -> float:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        figures = asyncio.run(cost(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
        print(json.dumps(figures))
        sys.stdout.flush()
        os._exit(0)  # without waiting for Kopf, which is never stopped
    sys.exit(main(sys.argv[1:]))
