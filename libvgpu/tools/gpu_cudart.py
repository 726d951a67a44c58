"""Checks CUDA's runtime library under the limit: cudaMalloc and its relatives.

Most programs reach the driver through it. It is not part of the driver, so a bare machine has none;
`GPU_CHECK_CUDART` names one in another place.
"""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from typing import Any

from gpu_case import Deadline, NotRun, answers, case, environment
from gpu_tools import Tools

CASE = Path(__file__).with_name("cudart_case.py")
LIMIT_S = 45.0
OUT_OF_MEMORY, SUCCESS = 2, 0
MEMORY = "The memory of a container stays within its limit"
PLACES = (
    "/usr/local/cuda*/lib64/libcudart.so*",
    "/usr/local/cuda*/targets/*/lib/libcudart.so*",
    "/usr/lib/*-linux-gnu/libcudart.so*",
    "/usr/lib64/libcudart.so*",
    "/opt/conda/lib/libcudart.so*",
)
IN_PACKAGES = "nvidia/*/lib/libcudart.so*"


def runtimes() -> list[str]:
    """Return the runtime libraries of this machine, the one that was asked for first."""
    found = [os.environ["GPU_CHECK_CUDART"]] if os.environ.get("GPU_CHECK_CUDART") else []
    for place in PLACES:
        found += sorted(glob.glob(place), reverse=True)
    for folder in filter(None, sys.path):
        found += sorted(glob.glob(str(Path(folder, IN_PACKAGES))), reverse=True)
    real = {str(Path(path).resolve()): None for path in found}
    return list(real)


def judged(found: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the calls of the runtime that did not answer as a limit must."""
    wrong = [] if found["library"] else ["the library was not loaded"]
    if found["init"] or found["end"]:
        wrong.append(f"the runtime answers {found['init']} at its start, {found['end']} at its end")
    if found["total"] != limit:
        wrong.append(f"cudaMemGetInfo shows {found['total']} of {limit} bytes")
    wrong += [
        f"{name}: {found[name][0]} and {found[name][1]}"
        for name in sorted(found)
        if name.startswith("cudaMalloc") and found[name] != [OUT_OF_MEMORY, SUCCESS]
    ]
    if found["launch"]:
        wrong.append(f"an empty kernel: {found['launch']}")
    return {"answers": found, "wrong": wrong, "limits": [MEMORY]}


class Runtime:
    """The runtime libraries of this machine; one is tried."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def rows(self, total: int, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the row of the first runtime that is found."""
        limit = total // 4 // (2 << 20) * (2 << 20)

        def body(own: Deadline) -> dict[str, Any]:
            files = runtimes()
            if not files:
                raise NotRun("no libcudart here; GPU_CHECK_CUDART may name one")
            env = environment(self._tools.library, CUDA_DEVICE_MEMORY_LIMIT=str(limit))
            command = [sys.executable, CASE, files[0], limit]
            found = answers(command, env=env, limit_s=own.left())[-1]
            return {"file": files[0], **judged(found, limit)}

        return [case("CUDA's runtime library", body, limit_s=LIMIT_S, deadline=deadline)]
