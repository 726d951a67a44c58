"""`make chaos [SEED= RUNS= JOBS= CLUSTER= MODE=]`: campaigns with consecutive seeds."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from vgpu_local.chaos.campaign import run
from vgpu_local.chaos.verdict import Verdict
from vgpu_local.programs import ROOT

_SHOWN = 20


def main() -> int:
    """Run the campaigns; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many, with consecutive seeds")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--cluster", choices=["standin", "real"], default="standin")
    parser.add_argument("--mode", choices=["extender", "claims"], default="extender")
    options = parser.parse_args()
    if options.mode == "claims" and options.cluster != "real":
        parser.error("--mode claims: the stand-in allocates no ResourceClaims; add --cluster real")
    if options.runs == 1:
        return _one(options.seed, options.cluster, options.mode)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.seed, options.seed + options.runs)
        one = partial(_in_a_process, cluster=options.cluster, mode=options.mode)
        for done in pool.map(one, seeds):
            print(done.stdout, end="", flush=True)
            failed += done.returncode != 0
    print(f"{options.runs} runs, {failed} failed", flush=True)
    return 1 if failed else 0


def _in_a_process(seed: int, cluster: str, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vgpu_local.chaos", "--seed", str(seed), "--cluster", cluster]
    command += ["--mode", mode]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def _one(seed: int, cluster: str, mode: str) -> int:
    kept: Path = ROOT / "build" / "chaos" / str(seed)
    verdict = run(seed, kept, on=cluster, mode=mode)
    print(verdict.line(), *_details(verdict, kept), sep="\n", flush=True)
    return 1 if verdict.findings else 0


def _details(verdict: Verdict, kept: Path) -> Iterator[str]:
    yield from (f"  slow: {what}" for what in verdict.slow[:_SHOWN])
    yield from (f"  {finding}" for finding in verdict.findings[:_SHOWN])
    if (more := len(verdict.findings) - _SHOWN) > 0:
        yield f"  and {more} more"
    if verdict.findings:
        yield f"  logs and history: {kept}"


if __name__ == "__main__":
    raise SystemExit(main())
