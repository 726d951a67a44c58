"""`make chaos [SEED= RUNS=]`: campaigns with consecutive seeds, a line each."""

from __future__ import annotations

import argparse
from pathlib import Path

from vgpu_local.chaos.campaign import run
from vgpu_local.programs import ROOT

_SHOWN = 20


def main() -> int:
    """Run them; the exit code is 1 when any failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many, with consecutive seeds")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.runs):
        kept: Path = ROOT / "build" / "chaos" / str(seed)
        verdict = run(seed, kept)
        print(verdict.line(), flush=True)
        for what in verdict.slow[:_SHOWN]:
            print(f"  slow: {what}", flush=True)
        if verdict.findings:
            failed += 1
            for finding in verdict.findings[:_SHOWN]:
                print(f"  {finding}", flush=True)
            if (more := len(verdict.findings) - _SHOWN) > 0:
                print(f"  and {more} more", flush=True)
            print(f"  logs and history: {kept}", flush=True)
    print(f"{options.runs} runs, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
