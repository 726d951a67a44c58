"""Runs the benches of the library and writes their figures, with the ratios to a direct call."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: The limiter is measured on so many draws of its scenes; BENCH_SEEDS says otherwise.
SEEDS = 24
_LIMITER = "bench_limiter"


def measured(program: Path, *arguments: str) -> dict[str, Any]:
    """Return the figures that a bench program prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    command = [program, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def over_seeds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one report of the limiter out of several, each of as many scenes.

    The worst value of a figure is the worst of all; its mean is over all scenes. For throughput and
    Jain, low is bad.
    """
    first = runs[0]
    joined: dict[str, Any] = {
        "seeds": [run["seed"] for run in runs],
        "scenes": sum(run["scenes"] for run in runs),
    }
    for name, figure in first.items():
        if not isinstance(figure, dict):
            continue
        values = [run[name] for run in runs]
        if name == "missed":
            joined[name] = {kind: sum(value[kind] for value in values) for kind in figure}
            continue
        pick = min if name in ("throughput_of_share", "jain") else max
        joined[name] = {
            "worst": pick(value["worst"] for value in values),
            "mean": round(sum(value["mean"] for value in values) / len(values), 3),
        }
    return joined


def limiter(program: Path, count: int) -> dict[str, Any]:
    """Return the limiter's report over `count` seeds drawn now, measured on all processors."""
    seeds = [str(random.SystemRandom().randrange(1, 1 << 32)) for _ in range(count)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda seed: measured(program, seed)["limiter"], seeds))
    return {"limiter": over_seeds(runs)}


def with_ratios(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures; those with a direct call also have their ratio to it."""
    ratios = {
        f"{name}.{kind}": round(value / group["direct"], 2)
        for name, group in figures.items()
        if isinstance(group, dict) and group.get("direct")
        for kind, value in group.items()
        if kind != "direct"
    }
    return {**figures, "ratios": ratios}


def main() -> int:
    """Run every bench named on the command line; the first argument is the file to write."""
    out, *programs = map(Path, sys.argv[1:])
    figures: dict[str, Any] = {}
    count = int(os.environ.get("BENCH_SEEDS") or SEEDS)
    for program in programs:
        figures |= limiter(program, count) if program.name == _LIMITER else measured(program)
    figures = with_ratios(figures) | {"load_average": os.getloadavg()}
    text = json.dumps(figures, indent=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
