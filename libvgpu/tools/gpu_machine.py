"""Describes the machine that is checked: the kind of its driver, and the rights of this user."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MPS_PIPES = "/tmp/nvidia-mps"
SIMULATED_MACHINE = "/run/vgpu-fake/machine"  # as libvgpu/fake/machine.h
FIRST_NAMESPACE = "pid:[4026531836]"
# Signs of NVIDIA's own driver; the last is that of WSL. A sandbox may hide the first.
VERSION, SIGNS = "driver/nvidia/version", ("nvidiactl", "dxg")
_TRY_S = 10


def kernel_module(proc: Path = Path("/proc")) -> dict[str, str]:
    """Return the flavour and the version line of NVIDIA's kernel module.

    The flavour is `unknown` if the version file cannot be read.
    """
    try:
        line = (proc / VERSION).read_text().splitlines()[0]
    except (OSError, IndexError):
        return {"flavour": "unknown", "line": ""}
    return {"flavour": "open" if "Open Kernel Module" in line else "closed", "line": line}


def is_simulated(
    nvml_version: str, *, proc: Path = Path("/proc"), dev: Path = Path("/dev")
) -> bool:
    """Return True if only the simulated driver can have answered.

    A real driver shows a device node or its version in /proc; where it shows the version, NVML's
    is the same. The simulated driver may run beside a real one.
    """
    if "VGPU_FAKE_MACHINE" in os.environ or Path(SIMULATED_MACHINE).exists():
        return True
    line = kernel_module(proc)["line"]
    if line:
        return nvml_version not in line
    return not (nvml_version and any((dev / sign).exists() for sign in SIGNS))


def is_under_mps() -> bool:
    """Return True if programs of this environment run under MPS: then all share one context."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES, "control").exists()


def allows(*words: str) -> bool:
    """Return True if this user may run `unshare` with these arguments."""
    if not shutil.which("unshare"):
        return False
    try:
        done = subprocess.run(
            ["unshare", *words, "true"], capture_output=True, timeout=_TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def describe(card: dict[str, Any], who: dict[str, Any]) -> dict[str, Any]:
    """Return the report's description of the machine.

    Args:
        card: The first device, as vgpu-probe describes it.
        who: The answer of `vgpu-measure who`; empty if it failed.
    """
    driver = str(who.get("driver", ""))
    space = os.readlink("/proc/self/ns/pid")
    return {
        "device": card["name"],
        "uuid": card["uuid"],
        "total_bytes": card["cuda_total"],
        "driver": driver,
        "cuda": who.get("cuda", 0),
        "kernel_module": kernel_module(),
        "simulated": is_simulated(driver),
        "mps": is_under_mps(),
        "mig": who.get("mig"),
        "multiprocessors": who.get("multiprocessors", 0),
        "compute_capability": who.get("compute_capability", ""),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "root": os.geteuid() == 0,
        "pid_namespace": "first" if space == FIRST_NAMESPACE else space,
        "may_unshare_pids": allows("--pid", "--fork", "--mount-proc"),
        "may_unshare_mounts": allows("--mount"),
    }
