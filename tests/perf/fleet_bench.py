"""`make bench-fleet`: time and memory of an operator's engine for 10,000 and 20,000 nodes of 8.

Each size is a process of its own: nodes, devices, agents' pods, claims and their pods come as a
watch delivers them, kind by kind, four claims a node. After that the engine leads and decides.

    KIND.cpu_us         to decode and apply one object
    KIND.kb             resident memory that one adds
    lead_s              the first round of a new leader
    first_ms, next_us   the first decision of a class of requests, and the median of those after it
    silent_ms           one look for silent agents
    total_mib           resident in the end

Written to build/bench/fleet.json with the bars beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from builders import a_container, a_device, a_node, a_pod, an_agent_pod
from perf.placement_bench import DEVICE_MIB, DEVICES_PER_NODE, claim_on, rss_mib
from replica import Replica
from vgpu_api.agent_pods import device_mark
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.names import pod_claim_name
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_operator.engine import events
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.nodes.agents import describe_silent
from vgpu_operator.engine.pod_reading import PodReader
from vgpu_operator.engine.scheduling.refusal import Refusal

CLAIMS_PER_NODE = 4
DECISIONS = 200
OFFERED = 500
"""The nodes that kube-scheduler offers, which looks at a sample of a large cluster."""
SIZES = (10_000, 20_000)
BARS = {"first_ms": 400.0, "next_us": 2000.0}
LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 20}


def main(arguments: Sequence[str]) -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=Path("build/bench/fleet.json"))
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "load_average": os.getloadavg(),
        "devices_per_node": DEVICES_PER_NODE,
        "claims_per_node": CLAIMS_PER_NODE,
        "bars": BARS,
        "sizes": {},
    }
    for nodes in options.sizes:
        command = [sys.executable, __file__, "child", str(nodes)]
        child = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        report["sizes"][str(nodes)] = json.loads(child.stdout)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def objects_of(kind: str, nodes: int) -> Iterator[bytes]:
    """Yield the objects of a kind as they come from the API server."""
    for node in range(nodes):
        name = f"node-{node:05d}"
        if kind == "node":
            yield on_the_wire(a_node(name))
        elif kind == "device":
            for index in range(DEVICES_PER_NODE):
                yield on_the_wire(
                    a_device(
                        uuid=f"GPU-{node}-{index}", node=name, index=index, memory_mib=DEVICE_MIB
                    )
                )
    for number in range(nodes * CLAIMS_PER_NODE if kind in ("claim", "pod") else 0):
        pod = pod_on(number, nodes)
        yield pod if kind == "pod" else claim_of(number, nodes)


def agents_of(replica: Replica, nodes: int) -> Iterator[bytes]:
    """Yield the pods of agents that know their devices."""
    for node in range(nodes):
        name = f"node-{node:05d}"
        mark = device_mark(replica.ledger.devices(name))
        yield on_the_wire(an_agent_pod(name, mark=mark))


def pod_on(number: int, nodes: int) -> bytes:
    """Return the pod of the claim with this number."""
    container = a_container(limits=LIMITS)
    node = f"node-{number % nodes:05d}"
    return on_the_wire(a_pod(f"pod-{number}", node=node, phase="Running", containers=[container]))


def claim_of(number: int, nodes: int) -> bytes:
    """Return the claim of the pod with this number."""
    raw = claim_on(number, nodes).to_wire()
    name, uid = f"pod-{number}", f"uid-of-pod-{number}"
    raw["metadata"] |= {
        "name": pod_claim_name(name, uid),
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
        ],
    }
    raw["status"]["reservedFor"] = {"podName": name, "podUID": uid}
    return orjson.dumps(raw)


def on_the_wire(built: Any) -> bytes:
    """Return an object as JSON."""
    return orjson.dumps(built.to_wire())


async def measure(nodes: int) -> dict[str, Any]:
    """Return the figures of one size."""
    replica = Replica()
    engine, reader = replica.engine, PodReader(ClusterConfig(), has_room=False)
    kinds: dict[str, Callable[[Any], Event]] = {
        "node": lambda raw: events.NodeObserved(Node.model_validate(raw)),
        "device": lambda raw: events.DeviceObserved(GPUDevice.read(raw)),
        "claim": lambda raw: events.ClaimObserved(VGPUClaim.read(raw)),
        "agent": lambda raw: events.PodObserved(reader.read(raw)),
        "pod": lambda raw: events.PodObserved(reader.read(raw)),
    }
    found: dict[str, Any] = {}
    for kind, event_of in kinds.items():
        gc.collect()
        gc.freeze()
        before, spent, count = rss_mib(), 0.0, 0
        texts = agents_of(replica, nodes) if kind == "agent" else objects_of(kind, nodes)
        for text in texts:
            began = time.process_time()
            engine.observe(event_of(orjson.loads(text)))
            if count % 100 == 0:
                engine.observe_all()
            spent += time.process_time() - began
            count += 1
        engine.observe_all()
        gc.collect()
        added = rss_mib() - before
        found[kind] = {
            "count": count,
            "cpu_us": round(spent * 1e6 / count, 1),
            "kb": round(added * 1024 / count, 2),
        }
    began = time.process_time()
    engine.lead()
    for _ in engine.round():
        pass
    found["lead_s"] = round(time.process_time() - began, 2)
    found |= decisions(replica, nodes)
    began = time.process_time()
    for _ in describe_silent(replica.state):
        pass
    found["silent_ms"] = round((time.process_time() - began) * 1000, 2)
    found["total_mib"] = rss_mib()
    return found


def decisions(replica: Replica, nodes: int) -> dict[str, float]:
    """Return the time of the first Filter of a class of requests, and of later ones."""
    offered = range(0, nodes, max(1, nodes // OFFERED))
    names = frozenset(f"node-{node:05d}" for node in offered)
    took = []
    for number in range(DECISIONS):
        pod = a_pod(f"new-{number}", containers=[a_container(limits=LIMITS)])
        began = time.process_time()
        outcome = replica.engine.filter(pod, names)
        took.append(time.process_time() - began)
        assert not isinstance(outcome, Refusal), outcome
    return {
        "first_ms": round(took[0] * 1000, 1),
        "next_us": round(statistics.median(took[1:]) * 1e6, 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(asyncio.run(measure(int(sys.argv[2])))))
    else:
        main(sys.argv[1:])
