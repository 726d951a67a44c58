"""Runs programs as processes on a simulated machine, on which the loader finds the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vgpu_local.programs import driver_environment


def machine_environment(machine: Path) -> dict[str, str]:
    """Return this process's environment, with the machine's driver and without any devices."""
    led = ("CUDA_", "NVIDIA_", "LD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(led)}
    return {**clean, **driver_environment(machine)}


def returned(program: str, environment: Mapping[str, str], *arguments: str) -> Any:
    """Return the result of the program's coroutine `main`, through JSON."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(json.dumps(asyncio.run(main())))", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
