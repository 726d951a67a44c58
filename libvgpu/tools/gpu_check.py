"""Checks limits of memory and compute on whatever CUDA driver is here; made for a real one.

Memory at a quarter and at half of the first card by every call that the probe knows; compute at 25,
50 and 75 % with kernels of its own; what the library takes for granted of a driver; PyTorch, where
there is one. Needs Python alone: a machine with a GPU need not have the project's environment, nor
a network. Takes at most eight minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from gpu_case import FAILED, PASSED, SIMULATED, CaseError, Deadline
from gpu_compute import Bench
from gpu_driver import Facts, is_under_mps
from gpu_memory import Probe
from gpu_torch import Torch

BUILD = Path(__file__).resolve().parents[1] / "build"
LIBRARY = BUILD / "libvgpu.so"
SECONDS = 460.0
PARTS = ("memory", "driver", "compute", "pytorch")
# Only NVIDIA's own driver has either (the second under WSL).
REAL = ("/proc/driver/nvidia/version", "/dev/dxg")


def is_simulated() -> bool:
    """Whether what answers here can only be the simulated driver."""
    return "VGPU_FAKE_MACHINE" in os.environ or not any(Path(path).exists() for path in REAL)


def check_memory(probe: Probe, total: int) -> list[dict[str, Any]]:
    """The limit at a quarter and at half of the card; a check that cannot be done is wrong."""
    whole = total // (2 << 20) * (2 << 20)
    checks: list[dict[str, Any]] = []
    for share in (4, 2):
        limit = whole // share
        try:
            checks.append(probe.check(limit))
        except CaseError as error:
            checks.append({"limit_bytes": limit, "wrong": [str(error)]})
    return checks


def failures(findings: dict[str, Any]) -> list[str]:
    """A sentence for each promise that was not kept."""
    wrong = [
        f"{check['limit_bytes']} bytes: {sentence}"
        for check in findings.get("checks", [])
        for sentence in check["wrong"]
    ]
    failed = [row for row in _rows(findings) if row["outcome"] == FAILED]
    return wrong + [f"{row['case']}: {row['why']}" for row in failed]


def _rows(findings: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in ("driver", "compute", "pytorch") for row in findings.get(part, [])]


def main() -> int:
    """Check, print and write the findings; 1 when a promise is broken or there is no driver."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; default: all")
    parser.add_argument("--spin", type=Path, default=BUILD / "vgpu-spin")
    parser.add_argument("--scale", type=float, default=1.0, help="shorter windows prove nothing")
    asked = parser.parse_args()
    parts = asked.only or PARTS
    deadline = Deadline(SECONDS)
    probe = Probe(BUILD / "vgpu-probe", LIBRARY, deadline)
    try:
        card = probe.run("info")[0]["devices"][0]
    except (CaseError, LookupError) as error:
        print(f"gpu-check: no usable CUDA driver here, nothing was checked: {error}")
        return 1
    total = card["cuda_total"]
    simulated = is_simulated()
    findings: dict[str, Any] = {"card": card["name"], "total_bytes": total, "simulated": simulated}
    if "memory" in parts:
        findings["checks"] = check_memory(probe, total)
    findings["mps"] = is_under_mps()
    if "driver" in parts:
        findings["driver"] = Facts(asked.spin, LIBRARY, scale=asked.scale).rows(deadline)
    if "compute" in parts:
        findings["compute"] = Bench(asked.spin, LIBRARY, scale=asked.scale).rows(deadline)
    if "pytorch" in parts:
        findings["pytorch"] = Torch(LIBRARY, probe.used, scale=asked.scale).rows(total, deadline)
    for row in _rows(findings) if simulated else ():
        row["outcome"] = SIMULATED if row["outcome"] == PASSED else row["outcome"]
    findings["failures"] = failures(findings)
    text = json.dumps(findings, indent=1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(text + "\n")
    print(text)
    return int(bool(findings["failures"]))


if __name__ == "__main__":
    sys.exit(main())
