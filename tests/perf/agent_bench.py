"""`make bench-agent`: one node's agent with 16 devices of 10 slots, and 150 pods on them.

The agent is a process of its own on the simulated driver; API server and kubelet are the stand-ins,
in this process. Claims and allocations are written by hand, as the operator writes them, so that
nothing but the agent is timed. Containers are processes that sleep: the figures are those of
bookkeeping, not of kernels.

    prestart_p99_ms     the agent's own histogram, over a hundred starts one after the other: the
                        upper end of the bucket of the 99th percentile, with the kubelet's List
    prestart_crowd_ms   the same of the other pods, ten at once: stand-ins and agent share the CPUs
    resize_ms_p99       from the write of a larger amount to the page that shows it
    start_150_s         from the first create of 150 pods at once until all run, on an agent of its
                        own
    idle_rss_mib        resident, with 8 devices and no pod, on an agent of its own
    scrape_ms_p99       one GET of /metrics with all series
    idle_cpu_percent    of one CPU, by /proc, while nothing changes
    rss_mib             resident, afterwards

Written to build/bench/agent.json with the bars beside the figures.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from agent_stage import Stage, a_stage, until
from perf.bench_report import report
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_nodeagent.enforcement.page import read_page

DEVICES, PODS_STARTED, ALONE, AT_ONCE = 16, 150, 100, 10
SHARE_MIB, LARGER_MIB = 1024, 1536
RESIZES, SCRAPES = 100, 50
IDLE_S = 20.0
STAGES = ("idle", "crowd", "pods")
FEW = 8
"""Devices of an ordinary node."""
BARS = {
    "prestart_p99_ms": 50.0,
    "resize_ms_p99": 1000.0,
    "rss_mib": 200.0,
    "idle_rss_mib": 90.0,
    "idle_cpu_percent": 3.0,
}
OUT = Path("build/bench/agent.json")


async def measured(stage: Stage) -> dict[str, float]:
    """Return all figures, in the order in which they disturb each other least."""
    none = dict.fromkeys(await prestarts(stage), 0.0)
    claims = await start_pods(stage, range(ALONE), at_once=1)
    alone = await prestarts(stage)
    figures = {"prestart_p99_ms": p99_ms(none, alone, count=ALONE)}
    claims += await start_pods(stage, range(ALONE, PODS_STARTED), at_once=AT_ONCE)
    crowd = p99_ms(alone, await prestarts(stage), count=PODS_STARTED - ALONE)
    figures["prestart_crowd_ms"] = crowd
    figures |= await scrape_ms(stage)
    figures["idle_cpu_percent"] = await idle_cpu_percent(stage)
    figures |= await resize_ms(stage, claims)
    figures["rss_mib"] = rss_mib(stage.pid)
    return figures


async def start_pods(stage: Stage, numbers: Iterable[int], *, at_once: int) -> list[dict[str, Any]]:
    """Start the pods, some of them at once; return their claims when all run."""
    gate = asyncio.Semaphore(at_once)

    async def start(number: int) -> dict[str, Any]:
        async with gate:
            claim = await stage.start_pod(number, memory_mib=SHARE_MIB)
            await until(lambda: runs(stage, number))
            return claim

    return list(await asyncio.gather(*(start(number) for number in numbers)))


async def runs(stage: Stage, number: int) -> bool:
    return await stage.phase(number) == "Running"


async def prestarts(stage: Stage) -> dict[float, float]:
    """Return how many PreStarts took at most this many seconds, by number of seconds."""
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(await scraped(stage))
        for sample in family.samples
        if sample.name == "vgpu_agent_prestart_duration_seconds_bucket"
    }


def p99_ms(before: dict[float, float], after: dict[float, float], *, count: int) -> float:
    """Return the upper end of the 99th percentile's bucket, for the calls between two readings."""
    between = {edge: after[edge] - before[edge] for edge in after}
    total = max(between.values())
    assert total >= count
    return min(edge for edge, value in between.items() if value >= 0.99 * total) * 1000


async def scraped(stage: Stage) -> str:
    async with aiohttp.ClientSession() as session, session.get(stage.metrics) as answer:
        return await answer.text()


async def scrape_ms(stage: Stage) -> dict[str, float]:
    """Return the duration of a scrape; it includes the series of all claims."""
    text = ""
    for _ in range(100):
        text = await scraped(stage)
        if text.count("\nvgpu_claim_memory_used_bytes{") == PODS_STARTED:
            break
        await asyncio.sleep(0.1)
    assert text.count("\nvgpu_claim_memory_used_bytes{") == PODS_STARTED
    took = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        await scraped(stage)
        took.append((time.perf_counter() - began) * 1000)
    return {
        "scrape_ms_median": statistics.median(took),
        "scrape_ms_p99": sorted(took)[int(0.99 * len(took))],
        "scrape_bytes": float(len(text)),
    }


async def resize_ms(stage: Stage, claims: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Grow a hundred claims one after the other; includes the operator's three writes."""
    took = []
    for number, claim in enumerate(claims[:RESIZES]):
        name = claim["metadata"]["name"]
        page = Path(stage.kubelet.environment("default", name, "main")["VGPU_LIMIT_PAGE"])
        asked = {"requests": [{"name": "main", "memory": f"{LARGER_MIB}Mi", "cores": 5}]}
        given = dict(claim["status"]["allocation"])
        given["devices"] = [stage.device(number, LARGER_MIB)]
        began = time.perf_counter()
        await stage.api.merge_patch(VGPU_CLAIMS, name, {"spec": asked}, namespace="default")
        await stage.api.merge_patch(
            VGPU_CLAIMS,
            name,
            {"status": {"allocation": given}},
            namespace="default",
            subresource="status",
        )
        annotations = {ANNOTATION_REQUEUE: f"generation {LARGER_MIB}"}
        changes = {"metadata": {"annotations": annotations}}
        await stage.api.merge_patch(PODS, name, changes, namespace="default")
        await until(lambda page=page: says(page, LARGER_MIB), pause_s=0.001)  # type: ignore[misc]
        took.append((time.perf_counter() - began) * 1000)
    return {
        "resize_ms_median": statistics.median(took),
        "resize_ms_p99": sorted(took)[int(0.99 * len(took))],
    }


async def says(page: Path, memory_mib: int) -> bool:
    limits = read_page(page).devices  # empty while a change of it takes longer than a reader waits
    return [limit.memory_bytes for limit in limits] == [memory_mib << 20]


async def idle_cpu_percent(stage: Stage) -> float:
    """Return the agent's CPU time while nothing changes, in percent of one CPU."""
    await asyncio.sleep(5)  # wait for the work that the starts left behind
    began, before = time.monotonic(), cpu_s(stage.pid)
    await asyncio.sleep(IDLE_S)
    return 100 * (cpu_s(stage.pid) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


async def run(folder: Path) -> dict[str, float]:
    """Set up the stage, measure, and tear it down."""
    idle_folder, crowd_folder, pods_folder = (folder / name for name in STAGES)
    async with a_stage(idle_folder, devices=FEW, pods=10, log_level="WARNING") as stage:
        idle = {"idle_cpu_percent_of_8": await idle_cpu_percent(stage)}
        idle["idle_rss_mib"] = rss_mib(stage.pid)
    most = PODS_STARTED + 10
    async with a_stage(crowd_folder, devices=DEVICES, pods=most, log_level="WARNING") as stage:
        began = time.monotonic()
        await start_pods(stage, range(PODS_STARTED), at_once=PODS_STARTED)
        idle["start_150_s"] = time.monotonic() - began
    async with a_stage(pods_folder, devices=DEVICES, pods=most, log_level="WARNING") as stage:
        return {**idle, **await measured(stage)}


def main() -> int:
    """Measure, write the results, and fail if a figure is above its bar."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder:
        for name in STAGES:
            (Path(folder) / name).mkdir()
        figures = asyncio.run(run(Path(folder)))
    shape = {"cards": DEVICES, "slots": DEVICES * 10, "pods": PODS_STARTED}
    return report(figures, bars=BARS, shape=shape, out=OUT)


if __name__ == "__main__":
    sys.exit(main())
