"""Write the figures of a bench into docs/measurements.md: `python -m perf.measurements BENCH`.

A promise has one row. The benches call this after a run at full size; rows of other benches stay as
they are, so each figure has the date of its own run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vgpu_local.programs import ROOT

PAGE = ROOT / "docs" / "measurements.md"
REPORTS = ROOT / "build" / "bench"
_HEAD = """\
<!-- Written by the benches; do not edit the table. -->

# Measurements

The figure that holds now for each promise, with its bar and the command that repeats it. Fleets
have 5,000 nodes with 8 GPUs each unless a row says otherwise. The machine has two cores; a figure
of CPU time says little about a run on a busy one, and the load average of the last minute is in the
column *load*. The limits of memory and compute are measured on a simulated device
([limits](limits.md)).

| Promise | Bar | Figure | Date | Load | Repeat |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """A row of the page.

    Attributes:
        text: The promise in words.
        bench: The bench, as in `make bench-BENCH`; its report has the same name.
        path: The keys of the figure in the report, joined by dots; `*` takes the worst of all.
        unit: The unit of figure and bar.
        bar: The upper bound of the figure, or with `least` the lower bound; None if it has no bar.
        least: True if a smaller figure is worse.
        report: The report's name if it is another.
    """

    text: str
    bench: str
    path: str
    unit: str
    bar: float | None = None
    least: bool = False
    report: str = ""


PROMISES = (
    Promise(
        "a decision with 100,000 claims, the slowest policy, median",
        "placement",
        "decision_us.*.p50",
        "µs",
        50,
    ),
    Promise(
        "taking a changed claim into the ledger, median", "placement", "apply_us.p50", "µs", 20
    ),
    Promise("rebuilding the ledger of 100,000 claims", "placement", "rebuild_s", "s", 10),
    Promise("memory for 100,000 claims and all devices", "placement", "rss_mib", "MiB", 1024),
    Promise(
        "why a request fits nowhere, found for the first time, at most",
        "placement",
        "refusal_ms.cold",
        "ms",
        400,
    ),
    Promise(
        "memory while 150,000 pods are listed, in parts of that afterwards",
        "start",
        "ratio",
        "",
        1.5,
    ),
    Promise(
        "memory of an operator, 20,000 nodes, 80,000 claims",
        "fleet",
        "sizes.20000.total_mib",
        "MiB",
    ),
    Promise("the same, for each device", "fleet", "sizes.20000.device.kb", "kB"),
    Promise("the same, for each claim", "fleet", "sizes.20000.claim.kb", "kB"),
    Promise("the same, for each pod with a slice", "fleet", "sizes.20000.pod.kb", "kB"),
    Promise("the same, for each node", "fleet", "sizes.20000.node.kb", "kB"),
    Promise("the first decision of a class there", "fleet", "sizes.20000.first_ms", "ms", 400),
    Promise(
        "a later one, of 500 offered nodes, median", "fleet", "sizes.20000.next_us", "µs", 2000
    ),
    Promise("the first round of a new leader there, CPU", "fleet", "sizes.20000.lead_s", "s"),
    Promise(
        "memory of an operator, 10,000 nodes, 40,000 claims",
        "fleet",
        "sizes.10000.total_mib",
        "MiB",
    ),
    Promise(
        "CPU of the loop between a Filter and its answer beside quota refusals, p99",
        "waiting",
        "scenes.quota.filter_cpu_ms.p99",
        "ms",
        10,
        report="crowd",
    ),
    Promise(
        "the same beside five large foreign pods a second, p99",
        "waiting",
        "scenes.flood-5.filter_cpu_ms.p99",
        "ms",
        10,
        report="crowd",
    ),
    Promise(
        "the same where nothing else happens: the baseline of both, p99",
        "waiting",
        "scenes.calm.filter_cpu_ms.p99",
        "ms",
        report="crowd",
    ),
    Promise(
        "a start of a container on a node with 150 pods, p99",
        "agent",
        "figures.prestart_p99_ms",
        "ms",
        50,
    ),
    Promise(
        "from a resize to the limit in force, p99", "agent", "figures.resize_ms_p99", "ms", 1000
    ),
    Promise("memory of an agent with 16 GPUs and 150 pods", "agent", "figures.rss_mib", "MiB", 200),
    Promise(
        "memory of an agent with 8 GPUs and no pod", "agent", "figures.idle_rss_mib", "MiB", 90
    ),
    Promise(
        "start of 150 pods at once on a node, with the stand-in kubelet",
        "agent",
        "figures.start_150_s",
        "s",
    ),
    Promise(
        "CPU of that agent while nothing changes, of one core",
        "agent",
        "figures.idle_cpu_percent",
        "%",
        3,
    ),
    Promise(
        "kube-apiserver's CPU of a pod, all agents connected, in plain pods of the same run",
        "cluster",
        "sizes.*.ratios.with_agents",
        "",
        4.2,
    ),
    Promise("the same without agents", "cluster", "sizes.*.ratios.without_agents", "", 3.5),
    Promise(
        "kube-apiserver's CPU of a thousand idle agents, cores",
        "cluster",
        "sizes.*.ratios.idle_cores_a_thousand",
        "",
        0.01,
    ),
    Promise(
        "a review of a pod at 200 pods a second, p99",
        "admission",
        "figures.review_ms_p99",
        "ms",
        10,
    ),
    Promise("CPU of a review", "admission", "figures.cpu_ms_a_review", "ms"),
    Promise(
        "CPU of the leader's Kopf handlers at rest, of a core",
        "controllers",
        "controllers.rest_percent",
        "%",
        1,
    ),
    Promise(
        "memory of the leader's Kopf handlers", "controllers", "controllers.more_mib", "MiB", 100
    ),
    Promise("start of the leader's Kopf handlers", "controllers", "controllers.start_s", "s", 30),
    Promise(
        "the page of the fleet with 20,000 claims, median", "web", "figures.fleet_ms_p50", "ms", 150
    ),
    Promise(
        "an allocation and its release, with the driver's own time",
        "libvgpu",
        "alloc_free_ns.cards_8",
        "ns",
    ),
    Promise("a launch without a share", "libvgpu", "launch_ns.unlimited", "ns"),
    Promise("a launch with a share, out of a paid chunk", "libvgpu", "launch_ns.limited", "ns"),
    Promise(
        "what a share adds to a launch of a kernel of 20 µs, mean",
        "libvgpu",
        "launch_throttled_ns.kernels_20us.mean",
        "ns",
        100,
    ),
    Promise(
        "the same of a kernel of 100 µs, mean",
        "libvgpu",
        "launch_throttled_ns.kernels_100us.mean",
        "ns",
        200,
    ),
    Promise("bytes over the memory limit", "libvgpu", "overshoot_bytes", "", 0),
    Promise(
        "memory of a killed process is free again, at most", "libvgpu", "kill_to_free_ms", "ms", 100
    ),
    Promise(
        "error of a compute share, mean of all scenes",
        "libvgpu",
        "limiter.mean_error_points.mean",
        "points",
        3,
    ),
    Promise(
        "error of a compute share, worst scene",
        "libvgpu",
        "limiter.mean_error_points.worst",
        "points",
        5,
    ),
    Promise(
        "the same beside kernels of 10 s, which nothing can stop",
        "libvgpu",
        "limiter.beside_long_points.worst",
        "points",
    ),
    Promise(
        "throughput in parts of what a share is due, mean of all scenes",
        "libvgpu",
        "limiter.throughput_of_share.mean",
        "",
        0.97,
        least=True,
    ),
    Promise(
        "throughput in parts of what a share is due, worst scene",
        "libvgpu",
        "limiter.throughput_of_share.worst",
        "",
        0.95,
        least=True,
    ),
    Promise(
        "error of a compute share in drawn mixes and real workloads, mean",
        "assumptions",
        "rows.nothing.mean_error_points",
        "points",
        1.5,
    ),
    Promise(
        "the same where a change-over costs 60 µs",
        "assumptions",
        "rows.a change-over costs 60 µs.mean_error_points",
        "points",
    ),
    Promise(
        "the same where NVML cannot be matched to processes",
        "assumptions",
        "rows.NVML cannot be matched.mean_error_points",
        "points",
    ),
)


def main(benches: list[str]) -> None:
    """Write the rows of the benches that are named."""
    rows = dict(read(PAGE.read_text()) if PAGE.exists() else ())
    for promise in PROMISES:
        if promise.bench in benches:
            rows[promise.text] = row(promise)
    lines = [rows.get(promise.text) or unmeasured(promise) for promise in PROMISES]
    PAGE.write_text(_HEAD + "\n".join(lines) + "\n")


def read(page: str) -> Iterator[tuple[str, str]]:
    """Yield each row of a page by its promise."""
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| Promise"):
            yield line.split("|")[1].strip(), line


def row(promise: Promise) -> str:
    """Return the row of a promise, from its bench's report."""
    path = REPORTS / f"{promise.report or promise.bench}.json"
    report = json.loads(path.read_text())
    figure = worst(report, promise.path.split("."), least=promise.least)
    date = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    load = report.get("load_average")  # load averages of one, five and fifteen minutes
    return _row(promise, _amount(figure, promise.unit), date, _amount(load[0], "") if load else "")


def unmeasured(promise: Promise) -> str:
    """Return the row of a promise for which no run is recorded."""
    return _row(promise, "not measured", "", "")


def worst(report: Mapping[str, Any], path: list[str], *, least: bool) -> float:
    """Return the figure at the end of a path, or the worst of several."""
    if not path:
        return float(report)  # type: ignore[arg-type]
    key, *rest = path
    if key == "*":
        figures = [worst(each, rest, least=least) for each in report.values()]
        return min(figures) if least else max(figures)
    return worst(report[key], rest, least=least)


def _row(promise: Promise, figure: str, date: str, load: str) -> str:
    bar = "" if promise.bar is None else _amount(promise.bar, promise.unit)
    if bar:
        bar = ("≥ " if promise.least else "≤ ") + bar
    return f"| {promise.text} | {bar} | {figure} | {date} | {load} | `make bench-{promise.bench}` |"


def _amount(value: float, unit: str) -> str:
    shown = f"{value:,.2f}".rstrip("0").rstrip(".")
    return f"{shown} {unit}".strip()


if __name__ == "__main__":
    main(sys.argv[1:])
