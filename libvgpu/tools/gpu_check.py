"""Checks the memory limit on whatever CUDA driver this machine has; made for a real one.

Runs the probe under the library at a quarter and at half of the first card, by every call the
probe knows, and beside it the probe without the library, whose view of NVML is the truth. Needs
Python alone: a machine with a GPU need not have the project's environment, nor a network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BUILD = Path(__file__).resolve().parents[1] / "build"
KINDS = ("", "--managed", "--async", "--pitch")
HOLD_S = 5
# What the driver may lose to its own grains when memory is taken to the last byte.
SLACK = 64 << 20


class NoDriver(Exception):
    """There is no usable CUDA driver here."""


def probe(script: str, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Run the probe; one answer for each command.

    Args:
        script: Commands as `vgpu-probe run` takes them.
        limit: Bytes of every card; None runs without the library.

    Raises:
        NoDriver: The probe cannot work here.
    """
    done = subprocess.run(
        [BUILD / "vgpu-probe", "run", script],
        env=_environment(limit),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NoDriver((done.stderr or done.stdout).strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(limit: int) -> dict[str, Any]:
    """What happens under one limit: figures, and in `wrong` a sentence for each broken promise."""
    wrong = []
    (device,) = probe("info", limit=limit)[0]["devices"][:1]
    if device["cuda_total"] != limit or device["nvml_total"] != limit:
        wrong.append(f"views show {device['cuda_total']} and {device['nvml_total']}")
    refused = {}
    for kind in KINDS:
        too_much, fits, *_ = probe(
            f"alloc {limit + (4 << 20)} {kind}; alloc {limit // 2} {kind}; free", limit=limit
        )
        refused[kind or "--linear"] = too_much["result"]
        if (too_much["result"], fits["result"]) != (2, 0):
            wrong.append(f"{kind or 'linear'}: {too_much['result']} and {fits['result']}")
    # What a context takes by itself is part of the slice, where NVML says how much that is.
    room = device["cuda_free"]
    (filled,) = probe("fill --step 64M", limit=limit)
    if not room - SLACK <= filled["filled"] <= limit:
        wrong.append(f"filled to {filled['filled']} of {room}")
    held = limit // 2
    free = probe("info")[0]["devices"][0]["nvml_used"]
    with subprocess.Popen(
        [BUILD / "vgpu-probe", "hold", str(held), str(HOLD_S)],
        env=_environment(limit),
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()  # it has it
        used = probe("info")[0]["devices"][0]["nvml_used"]
        holder.kill()
    return {
        "limit_bytes": limit,
        "filled_bytes": filled["filled"],
        "context_bytes_counted": limit - room,
        "results_beyond_limit": refused,
        "uncounted_bytes_of_a_process": used - free - held - (limit - room),
        "wrong": wrong,
    }


def _environment(limit: int | None) -> dict[str, str]:
    ours = ("LD_PRELOAD", "VGPU_LIMIT_PAGE", "VGPU_USAGE_REGION")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    if limit is not None:
        env["LD_PRELOAD"] = str(BUILD / "libvgpu.so")
        env["CUDA_DEVICE_MEMORY_LIMIT"] = str(limit)
    return env


def main() -> int:
    """Check, print and write the findings; 1 when a promise is broken or there is no driver."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    try:
        card = probe("info")[0]["devices"][0]
    except (NoDriver, LookupError) as error:
        print(f"gpu-check: no usable CUDA driver here, nothing was checked: {error}")
        return 1
    total = card["cuda_total"]
    whole = total // (2 << 20) * (2 << 20)
    findings = {
        "card": card["name"],
        "total_bytes": total,
        "checks": [check(whole // share) for share in (4, 2)],
    }
    text = json.dumps(findings, indent=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    print(text)
    return int(any(one["wrong"] for one in findings["checks"]))


if __name__ == "__main__":
    sys.exit(main())
