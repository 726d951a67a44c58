"""Measures how the error of compute shares grows on devices that differ from the nominal one.

Each row is the bench of the limiter with one setting of the device changed (bench/device.h).
All rows see the same scenes, drawn by the same seeds. BENCH_SEEDS says how many seeds.
"""

from __future__ import annotations

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import measured, over_seeds

SEEDS = 1
#: Drawn mixes of neighbours, what tenants of real clusters run, and a neighbour of long kernels.
FAMILIES = ("mixed", "work", "beside_long")
ROWS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "timeslices of 6 ms": ("slice_us=6000",),
    "a change-over costs 60 µs": ("switch_us=60",),
    "NVML's figure off by up to 6 points": ("noise_points=6",),
    "NVML looks 20 times a sample": ("looks=20",),
    "NVML cannot be matched": ("unmatched=1",),
    "unmatched, change-over 60 µs": ("unmatched=1", "switch_us=60"),
    "unmatched, timeslices of 6 ms": ("unmatched=1", "slice_us=6000"),
    "the device's clock 50 ppm fast": ("clock_ppm=50",),
    "the device's clock 100 ppm slow": ("clock_ppm=-100",),
    "turns and launches in a drawn order": ("shuffled=1",),
}


def row(program: Path, settings: tuple[str, ...], seeds: list[str]) -> dict[str, Any]:
    """Return the figures of one device over all seeds."""
    options = [word for family in FAMILIES for word in ("-f", family)]
    options += [word for setting in settings for word in ("-d", setting)]
    figures = over_seeds([measured(program, *options, seed)["limiter"] for seed in seeds])
    error, throughput = figures["mean_error_points"], figures["throughput_of_share"]
    return {
        "settings": list(settings),
        "scenes": figures["scenes"],
        "mean_error_points": error["mean"],
        "worst_error_points": error["worst"],
        "worst_ripple_points": figures["ripple_points"]["worst"],
        "scenes_beyond_5_points": figures["missed"]["error"],
        "worst_throughput": throughput["worst"],
        "mean_throughput": throughput["mean"],
        "scenes_below_95_percent": figures["missed"]["throughput"],
        "beside_long_points": figures["beside_long_points"]["worst"],
    }


def line(name: str, figures: dict[str, Any]) -> str:
    """Return the row as a line of a Markdown table."""
    return (
        f"| {name} | {figures['mean_error_points']:.2f} | {figures['worst_error_points']:.1f} "
        f"| {figures['scenes_beyond_5_points']} "
        f"| {figures['worst_throughput']:.2f} / {figures['mean_throughput']:.3f} "
        f"| {figures['scenes_below_95_percent']} | {figures['beside_long_points']:.1f} |"
    )


def main() -> int:
    """Write the table to the first argument's file, with the bench that the second names."""
    out, program = map(Path, sys.argv[1:])
    count = int(os.environ.get("BENCH_SEEDS") or SEEDS)
    seeds = [str(random.SystemRandom().randrange(1, 1 << 32)) for _ in range(count)]
    print("seeds", *seeds, flush=True)
    print(
        "| different | mean error | worst | > 5 | throughput, worst / mean | < 95 % | beside 10 s |"
    )
    print("|---|---|---|---|---|---|---|")
    table: dict[str, Any] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, figures in zip(
            ROWS,
            pool.map(lambda settings: row(program, settings, seeds), ROWS.values()),
            strict=True,
        ):
            table[name] = figures
            print(line(name, figures), flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {"seeds": seeds, "rows": table, "load_average": os.getloadavg()}
    out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
