"""Measure a Filter call over mutual TLS: `filter_ms` of `make bench-placement`.

The real server, engine and ledger with 5,000 nodes of 8 devices and 100,000 claims, on an API
server in memory; the client is a process of its own with one kept connection, as kube-scheduler's.
Each granted pod is new to the operator, so that the decision falls in the call; it is held
afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builders import a_container, a_pod
from perf.waiting_bench import connection_to, serving
from replica import Replica
from vgpu_api.v1alpha1 import VGPUClaim

DEVICES_PER_NODE = 8
DEVICE_MIB = 40_960
GRANTS, WARM, COLD = 400, 200, 12
TOO_LARGE_MIB = 65_536


def requests(nodes: int, candidates: int) -> list[tuple[str, dict[str, Any]]]:
    """Return requests with their labels: grants, refusals of one class, refusals of new classes."""
    chance = random.Random(7)
    names = [f"node-{number:05d}" for number in range(nodes)]
    asked: list[tuple[str, int]] = [("grant", chance.choice((2048, 4096))) for _ in range(GRANTS)]
    asked += [("refuse_cold", TOO_LARGE_MIB + number) for number in range(COLD)]
    asked += [("refuse_warm", TOO_LARGE_MIB)] * (WARM + 1)
    return [
        (
            kind,
            {
                "Pod": a_pod_of(f"{candidates}-{number}", memory).to_wire(),
                "NodeNames": sorted(chance.sample(names, candidates)),
            },
        )
        for number, (kind, memory) in enumerate(asked)
    ]


def a_pod_of(name: str, memory_mib: int) -> Any:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": 10}
    return a_pod(f"pod-{name}", containers=[a_container(limits=limits)])


async def measure(*, nodes: int, claims: list[VGPUClaim]) -> dict[str, dict[str, float]]:
    """Return milliseconds by number of candidates and kind of answer.

    Args:
        nodes: The number of nodes, of 8 devices each, named as the claims name them.
        claims: The
        claims on them.
    """
    replica = Replica()
    replica.fleet(nodes, devices=DEVICES_PER_NODE, memory_mib=DEVICE_MIB)
    for claim in claims:
        replica.news.claim_changed(claim)
    gc.collect()
    gc.freeze()  # the garbage collector's passes over the whole fleet are not measured here
    async with serving(replica) as (folder, port):
        found = {}
        for candidates in (min(500, nodes), nodes):
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, str(folder), str(port), str(nodes)),
                *(str(candidates),),
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await client.communicate()
            found[str(candidates)] = json.loads(said)
    gc.unfreeze()
    return found


def ask(folder: Path, port: int, *, nodes: int, candidates: int) -> dict[str, float]:
    """Return the client's side: p50 and p99 in ms of each kind of answer, which is checked."""
    connection = connection_to(folder, port)
    times: dict[str, list[float]] = {}
    for kind, body in requests(nodes, candidates):
        raw = json.dumps(body).encode()
        start = time.perf_counter_ns()
        connection.request("POST", "/filter", body=raw)
        answer = connection.getresponse().read()
        took = (time.perf_counter_ns() - start) / 1e6
        granted = len(json.loads(answer)["NodeNames"])
        if granted != (1 if kind == "grant" else 0):
            raise AssertionError(f"{kind}: {granted} nodes granted")
        times.setdefault(kind, []).append(took)
    # the first request of its class is answered without a cache
    times["refuse_warm"] = times["refuse_warm"][1:]
    return {
        f"{kind}_{name}": round(sorted(measured)[int(len(measured) * share)], 2)
        for kind, measured in times.items()
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def main(arguments: Sequence[str]) -> None:
    folder, port, nodes, candidates = arguments
    found = ask(Path(folder), int(port), nodes=int(nodes), candidates=int(candidates))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
