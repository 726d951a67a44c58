"""`make bench-start`: the memory of an operator that lists the pods of a large cluster.

The same pods come to two operators, each a process of its own: to one in pages of a list, as at a
start or after a gap of the watch, and to the other one by one in a stream, which holds no more at a
time than what is kept. The most that the first takes is compared with what the second has in the
end. Pods are as an API server sends them, with managed fields; some ask for a device.

    listed_peak_mib     resident at most, while all is listed
    listed_after_mib    resident afterwards
    steady_mib          resident after the stream
    ratio               of the first to the last, which has the bar

Written to build/bench/start.json with the bar beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import orjson

from builders import a_container, a_pod
from replica import Replica
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.transport import Object, Transport
from vgpu_operator.engine.informers import informers

BARS = {"ratio": 1.5}
WAYS = ("listed", "streamed")
_VERSION = "1000000"
_NUMBER = "424242"
"""The placeholder in a template for each pod's number, which has as many digits."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=150_000)
    parser.add_argument("--gpu-in", type=int, default=4, help="one pod in so many asks for a GPU")
    parser.add_argument("--out", type=Path, default=Path("build/bench/start.json"))
    options = parser.parse_args(arguments)
    found = {way: in_a_process(way, options.pods, options.gpu_in) for way in WAYS}
    report = {
        "load_average": os.getloadavg(),
        "pods": options.pods,
        "gpu_pods": options.pods // options.gpu_in,
        "bytes_a_pod": len(template(asks=False)),
        "listed_peak_mib": found["listed"]["peak_mib"],
        "listed_after_mib": found["listed"]["after_mib"],
        "steady_mib": found["streamed"]["after_mib"],
        "ratio": round(found["listed"]["peak_mib"] / found["streamed"]["after_mib"], 2),
        "bars": BARS,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def in_a_process(way: str, pods: int, gpu_in: int) -> dict[str, float]:
    """Return the memory of an operator that gets its pods in one of the `WAYS`."""
    command = [sys.executable, __file__, "child", way, str(pods), str(gpu_in)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(child.stdout)
    return found


class Pages:
    """A transport to an API server that has only pods.

    Args:
        way: One of the `WAYS`: in a list or in a stream.
        pods: The number of pods.
        gpu_in: One of this many pods requests a device.
    """

    def __init__(self, way: str, pods: int, gpu_in: int) -> None:
        self._pods, self._gpu_in, self._way = pods, gpu_in, way
        self._templates = {asks: template(asks=asks) for asks in (False, True)}
        self.streamed = asyncio.Event()

    def _pod(self, number: int) -> bytes:
        made = self._templates[number % self._gpu_in == 0]
        return made.replace(_NUMBER.encode(), b"%06d" % number)

    async def read(self, path: str, params: Mapping[str, str], *, timeout_s: float) -> Object:
        """Return a page of a list."""
        metadata = {"resourceVersion": _VERSION}
        if path != PODS.path() or self._way != "listed":
            return {"metadata": metadata, "items": []}
        start = int(params.get("continue", 0))
        end = min(start + int(params["limit"]), self._pods)
        if end < self._pods:
            metadata["continue"] = str(end)
        items = b",".join(self._pod(number) for number in range(start, end))
        page: Object = orjson.loads(
            b'{"metadata":' + orjson.dumps(metadata) + b',"items":[' + items + b"]}"
        )
        return page

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, inactivity_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the events of a kind."""
        yield self._lines(path)

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        if path != PODS.path():
            await asyncio.Event().wait()
        if self._way == "streamed":
            for number in range(self._pods):
                pod = self._pod(number).replace(b'"9000000"', b'"%d"' % (2_000_000 + number))
                yield b'{"type":"ADDED","object":' + pod + b"}"
                if number % 50 == 0:
                    await asyncio.sleep(0)
        self.streamed.set()
        await asyncio.Event().wait()


def template(*, asks: bool) -> bytes:
    """Return a running pod on the wire, with what API servers and kubelets add to it."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096} if asks else {"cpu": "500m"}
    name = f"service-7d9c5b8f6d-{_NUMBER}"
    pod = a_pod(name, node=f"node-{_NUMBER[:4]}", phase="Running",
                containers=[a_container(limits=limits)], scheduler="default-scheduler")  # fmt: skip
    wire = pod.to_wire()
    wire["apiVersion"], wire["kind"] = "v1", "Pod"
    wire["metadata"] |= {
        "resourceVersion": "9000000",
        "uid": f"00000000-0000-4000-8000-000000{_NUMBER}",
        "labels": {f"app.kubernetes.io/{key}": "service" for key in ("name", "part-of", "version")},
        "managedFields": [
            {"manager": manager, "operation": "Update", "apiVersion": "v1",
             "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
             "fieldsV1": {f"f:{part}": {f"k:{{{key}}}": {".": {}, "f:value": {}}
                                        for key in range(20)}
                          for part in ("metadata", "spec", "status")}}
            for manager in ("kube-controller-manager", "kubelet")
        ],
    }  # fmt: skip
    wire["spec"]["volumes"] = [
        {"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt",
                           "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}
    ]  # fmt: skip
    wire["spec"]["containers"][0] |= {
        "image": "registry.example/service:1.2.3",
        "env": [{"name": f"VARIABLE_{number}", "value": "a value"} for number in range(15)],
    }
    wire["spec"]["tolerations"] = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": 300} for key in ("not-ready", "unreachable")
    ]  # fmt: skip
    wire["status"] |= {
        "conditions": [
            {"type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for type_ in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "podIPs": [{"ip": "10.0.0.1"}],
        "containerStatuses": [
            {"name": "main", "ready": True, "containerID": f"containerd://{_NUMBER * 10}",
             "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        ],
    }  # fmt: skip
    return orjson.dumps(wire)


async def memory(way: str, pods: int, gpu_in: int) -> dict[str, float]:
    """Return an operator's memory in MiB: the maximum, and once it has seen all pods."""
    server = Pages(way, pods, gpu_in)
    replica = Replica(clock=Clock())
    replica.leading = False
    reflectors = informers(
        Api(cast(Transport, server)), replica.engine.observe, replica.state.config
    )
    tasks = [asyncio.create_task(each.run()) for each in (replica.engine, *reflectors)]
    for reflector in reflectors:
        await reflector.synced.wait()
    await server.streamed.wait()
    replica.engine.observe_all()
    there = sum(1 for _ in replica.cache.pods())
    assert there == -(-pods // gpu_in), f"{there} pods that ask for a device"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gc.collect()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mib": round(peak_kib / 1024, 1), "after_mib": round(resident_mib(), 1)}


def resident_mib() -> float:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        chosen, pod_count, one_in = sys.argv[2:]
        figures: dict[str, Any] = asyncio.run(memory(chosen, int(pod_count), int(one_in)))
        print(json.dumps(figures))
    else:
        main(sys.argv[1:])
