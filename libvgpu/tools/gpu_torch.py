"""PyTorch under the library: its allocators at the limit, its graphs, its share of compute.

Each case is a process of its own (torch_case.py) under whichever Python here has PyTorch. Without
one, or where it finds no card, one row says so; nothing passes that did not run on a card.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_case import (
    NOT_RUN,
    CaseError,
    Deadline,
    Started,
    answers,
    case,
    environment,
)
from gpu_compute import BAR_POINTS

CASE = Path(__file__).with_name("torch_case.py")
SHARES = (25, 50, 75)
ALLOCATORS = {
    "caching allocator": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
# PyTorch alone takes most of it to be imported and to make a context.
CASE_S = 45.0
IMPORT_S = 60.0
WINDOW_S, WARM_S = 5.0, 1.0
# A context, the libraries of CUDA and what the allocator leaves unused of its last segments.
OVERHEAD = 2 << 30
ASK = (
    "import json, torch; cuda = torch.cuda.is_available()\n"
    "card = torch.cuda.get_device_name(0) if cuda else ''\n"
    "print(json.dumps({'torch': torch.__version__, 'cuda': cuda, 'card': card}))"
)


class Torch:
    """PyTorch of this machine.

    Args:
        library: libvgpu.so.
        used: Bytes in use on the card, by NVML, without the library.
        scale: All windows are so many times as long; below 1 for tests of this program itself.
    """

    def __init__(self, library: Path, used: Callable[[], int], *, scale: float = 1.0) -> None:
        self._library, self._used, self._scale = library, used, scale
        self._python = ""

    def rows(self, total: int, deadline: Deadline) -> list[dict[str, Any]]:
        """Every case on a card of `total` bytes."""
        found = self._find(deadline)
        rows = [found]
        if not self._python:
            return rows
        for name, settings in ALLOCATORS.items():
            for part in (4, 2):
                rows.append(self._memory(name, settings, total, part, deadline))
        rows.append(self._graphs(total // 4, deadline))
        rows += self._shares("stream", [], SHARES, deadline)
        rows += self._shares("graph", ["--graph"], SHARES[1:2], deadline)
        return rows

    def _find(self, deadline: Deadline) -> dict[str, Any]:
        """Look for a Python with PyTorch; return the row that reports it."""
        why = []
        wanted = [os.environ.get("GPU_CHECK_PYTHON"), sys.executable, shutil.which("python3")]
        for python in dict.fromkeys([*filter(None, wanted), "/usr/bin/python3"]):
            try:
                seconds = min(IMPORT_S, deadline.left())
                (said,) = answers(
                    [python, "-c", ASK], env=environment(self._library), limit_s=seconds
                )
            except (CaseError, ValueError) as error:
                why.append(f"{python}: {error}")
                continue
            if said["cuda"]:
                self._python = python
                return {"case": "pytorch", "outcome": "found", "why": "", "python": python, **said}
            why.append(f"{python}: PyTorch {said['torch']} finds no card")
        return {"case": "pytorch", "outcome": NOT_RUN, "why": "; ".join(why)}

    def _memory(
        self, name: str, settings: dict[str, str], total: int, part: int, deadline: Deadline
    ) -> dict[str, Any]:
        limit = total // part // (2 << 20) * (2 << 20)

        def body(own: Deadline) -> dict[str, Any]:
            before = self._used()
            program = self._start(["memory", str(limit)], limit, **settings)
            try:
                full = program.first_answer(own.left())
                grown = self._used() - before
                (after,) = program.finish(own.left())
            finally:
                program.kill()
            wrong = []
            if full["total"] != limit:
                wrong.append(f"it sees {full['total']} of {limit} bytes")
            if not full["refused"] or full["held"] > limit:
                wrong.append(f"it took {full['held']} of {limit} bytes")
            if full["held"] < limit - OVERHEAD - limit // 32:
                wrong.append(f"it was refused at {full['held']} of {limit} bytes")
            if grown > limit + OVERHEAD:
                wrong.append(f"NVML shows {grown} bytes more in use than before")
            if not (after["again"] and after["works"]):
                wrong.append("it did not go on after it was refused")
            return {
                "limit_bytes": limit,
                "held_bytes": full["held"],
                "nvml_bytes": grown,
                "wrong": wrong + _missing(full),
            }

        return case(f"{name}, 1/{part} of the card", body, limit_s=CASE_S, deadline=deadline)

    def _graphs(self, limit: int, deadline: Deadline) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            (done,) = self._start(["graphs", str(limit)], limit).finish(own.left())
            wrong = [] if done["refused"] else ["a capture beyond the limit was not refused"]
            if not done["works"]:
                wrong.append("it did not go on after that")
            return {"refused_by": done["refused"], "wrong": wrong + _missing(done)}

        return case("graphs, 1/4 of the card", body, limit_s=CASE_S, deadline=deadline)

    def _shares(
        self, name: str, words: list[str], percents: tuple[int, ...], deadline: Deadline
    ) -> list[dict[str, Any]]:
        rates: list[float] = []

        def run(own: Deadline, **settings: str) -> dict[str, Any]:
            seconds = [str((WARM_S + WINDOW_S) * self._scale), str(WARM_S * self._scale)]
            command = [self._python, CASE, "rate", *seconds, *words]
            env = environment(self._library, **settings)
            (done,) = answers(command, env=env, limit_s=own.left())
            return done

        def unlimited(own: Deadline) -> dict[str, Any]:
            done = run(own)
            rates.append(done["per_second"])
            return {"launch_us": round(done["launch_us"], 1), "per_second": done["per_second"]}

        def limited(percent: int) -> Callable[[Deadline], dict[str, Any]]:
            def body(own: Deadline) -> dict[str, Any]:
                if not rates:
                    raise CaseError("there is no rate without a limit to compare with")
                share_is = {"CUDA_DEVICE_SM_LIMIT": str(percent)}
                done = run(own, GPU_CORE_UTILIZATION_POLICY="force", **share_is)
                share = 100 * done["per_second"] / rates[0]
                error = abs(share - percent)
                wrong = [f"{share:.1f} % instead of {percent}"] if error > BAR_POINTS else []
                return {
                    "share_percent": round(share, 2),
                    "error_points": round(error, 2),
                    "wrong": wrong + _missing(done),
                }

            return body

        first = case(f"{name}, no limit", unlimited, limit_s=CASE_S, deadline=deadline)
        return [first] + [
            case(f"{name}, {percent} %", limited(percent), limit_s=CASE_S, deadline=deadline)
            for percent in percents
        ]

    def _start(self, words: list[str], limit: int, **settings: str) -> Started:
        env = environment(self._library, CUDA_DEVICE_MEMORY_LIMIT=str(limit), **settings)
        return Started([self._python, CASE, *words], env=env)


def _missing(done: dict[str, Any]) -> list[str]:
    return [] if done["library"] else ["the library was not loaded"]
