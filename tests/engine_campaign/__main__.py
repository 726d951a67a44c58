"""`make campaign [SEED= RUNS=]` plays runs with consecutive seeds.

Exits with 1 if any broke a rule.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

from .campaign import Verdict, run, shrunk


def main() -> int:
    """Run the campaigns."""
    parser = argparse.ArgumentParser(prog="make campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many, with consecutive seeds")
    parser.add_argument("--trace", action="store_true", help="print what happened, do not shrink")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have an order that runs share
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "engine_campaign", *sys.argv[1:]])
    logging.disable()
    failed, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.runs):
        verdict = run(seed)
        if options.trace:
            print(*verdict.trace, sep="\n")
        if verdict.findings:
            failed += 1
            _show(verdict if options.trace else shrunk(verdict), time.monotonic() - began)
    print(f"{options.runs} runs, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _show(verdict: Verdict, after_s: float) -> None:
    print(f"seed {verdict.seed}, after {after_s:.1f} s, {len(verdict.steps)} steps:")
    print(*(f"  {step.name} after {step.after_s}" for step in verdict.steps), sep="\n")
    print(*(f"  {finding}" for finding in verdict.findings[:10]), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
