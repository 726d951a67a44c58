"""Part 2, memory: limits for every call that the probe knows, and for many processes at once.

It runs the probe under the library, and beside it the probe without the library, whose view of NVML
is the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_case import CaseError, Deadline, NotRun, Started, answers, case, environment
from gpu_tools import UNSHARE, Tools

KINDS = ("", "--managed", "--async", "--pitch", "--pool", "--physical", "--array")
HOLD_S = 5
PROBE_S = 60.0
PROCESSES = 9
LOOK_S, SAME_LOOKS = 0.5, 4
# The bytes that the driver may lose to its own granularity when memory is used to the last byte.
SLACK = 64 << 20
LIMIT, EXACT, VIEWS = (
    "The memory of a container stays within its limit",
    "The whole limit can be used.",
    "Every process sees its slice as its GPU, by CUDA and by NVML.",
)


class Memory:
    """Runs vgpu-probe with and without the library."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def run(
        self, script: str, own: Deadline, *, limit: int | None = None, **settings: str
    ) -> list[dict[str, Any]]:
        """Return one answer for each command.

        Args:
            script: Commands as `vgpu-probe run` takes them.
            own: The time it has.
            limit: Bytes of every card; None runs without the library.
            settings: More settings of the library.

        Raises:
            CaseError: The probe cannot work here.
        """
        env = self._environment(limit, **settings)
        return answers([self._tools.probe, "run", script], env=env, limit_s=_seconds(own))

    def rows(
        self, total: int, deadline: Deadline, *, may_unshare: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows: a quarter and a half of the device, and many processes at once."""
        whole = total // (2 << 20) * (2 << 20)

        def inside(own: Deadline) -> dict[str, Any]:
            if not may_unshare:
                raise NotRun("this user may not make a PID namespace (root may)")
            return self.check_namespace(whole // 4, own)

        bodies: tuple[tuple[str, Callable[[Deadline], dict[str, Any]]], ...] = (
            ("memory, 1/4 of the device", lambda own: self.check(whole // 4, own)),
            ("memory, 1/2 of the device", lambda own: self.check(whole // 2, own)),
            (
                f"memory of {PROCESSES} processes of a container",
                lambda own: self.check_processes(whole // 4, own),
            ),
            (f"memory of {PROCESSES} processes in a PID namespace", inside),
        )
        for name, body in bodies:
            yield case(name, body, limit_s=PROBE_S, deadline=deadline)

    def check(self, limit: int, own: Deadline) -> dict[str, Any]:
        """Return the results under one limit.

        Raises:
            CaseError: A step failed or timed out.
        """
        wrong: list[str] = []
        limits: list[str] = []
        device = self.run("info", own, limit=limit)[0]["devices"][0]
        if device["cuda_total"] != limit or device["nvml_total"] != limit:
            wrong.append(f"views show {device['cuda_total']} and {device['nvml_total']}")
            limits.append(VIEWS)
        refused = {}
        for kind in KINDS:
            script = f"alloc {limit + (4 << 20)} {kind}; alloc {limit // 2} {kind}; free"
            too_much, fits, *_ = self.run(script, own, limit=limit)
            refused[kind or "--linear"] = too_much["result"]
            if (too_much["result"], fits["result"]) != (2, 0):
                wrong.append(f"{kind or 'linear'}: {too_much['result']} and {fits['result']}")
                limits.append(LIMIT)
        # What a context takes by itself is part of the slice, where NVML says how much that is.
        room = device["cuda_free"]
        filled = self.run("fill --step 64M", own, limit=limit)[-1]["filled"]
        if not room - SLACK <= filled <= limit:
            wrong.append(f"filled to {filled} of {room}")
            limits.append(EXACT)
        held = limit // 2
        free = self.used(own)
        counted = limit - room
        uncounted = self._used_while_holding(held, limit, own) - free - held - counted
        if uncounted > SLACK:
            wrong.append(f"{uncounted} bytes of a process are on the device and nobody counts them")
            limits.append(LIMIT)
        return {
            "limit_bytes": limit,
            "filled_bytes": filled,
            "context_bytes_counted": counted,
            "left_of_the_limit_bytes": room - filled,
            "results_beyond_limit": refused,
            "uncounted_bytes_of_a_process": uncounted,
            "wrong": wrong,
            "limits": sorted(set(limits)),
        }

    def check_processes(self, limit: int, own: Deadline) -> dict[str, Any]:
        """Return the use of the device when the processes of a container ask for all of the limit.

        With their contexts it does not fit, so the last of them must be refused.
        """
        before = self.used(own)
        each = limit // PROCESSES // (2 << 20) * (2 << 20)
        with TemporaryDirectory() as folder:
            env = self._environment(limit, VGPU_USAGE_REGION=str(Path(folder, "region")))
            command = [self._tools.probe, "hold", str(each), f"{PROBE_S:.0f}"]
            programs: list[Started] = []
            results = []
            try:
                for _ in range(PROCESSES):
                    programs.append(Started(command, env=env))
                    results.append(programs[-1].first_answer(_seconds(own))["result"])
                held = self.used(own) - before
            finally:
                for program in programs:
                    program.kill()
        over = held - limit
        wrong = [f"the device holds {over} bytes more than the limit"] if over > SLACK else []
        if results[0]:
            wrong.append(f"the first process is answered with {results[0]}")
        return {
            "limit_bytes": limit,
            "held_bytes": held,
            "over_bytes": over,
            "results": results,
            "wrong": wrong,
            "limits": [LIMIT],
        }

    def check_namespace(self, limit: int, own: Deadline) -> dict[str, Any]:
        """Return the same for processes that start at once in a PID namespace.

        No agent writes their PIDs: all of this may happen before its first look.
        """
        before = self.used(own)
        each = limit // PROCESSES // (2 << 20) * (2 << 20)
        start = f'"$0" hold {each} {PROBE_S:.0f} &'
        with TemporaryDirectory() as folder:
            env = self._environment(limit, VGPU_USAGE_REGION=str(Path(folder, "region")))
            script = " ".join([start] * PROCESSES) + " wait"
            command = [*UNSHARE, "sh", "-c", script, self._tools.probe]
            container = Started(command, env=env)
            try:
                held = self._settled(own) - before
            finally:
                container.kill()
        over = held - limit
        wrong = [f"the device holds {over} bytes more than the limit"] if over > SLACK else []
        if held < each:
            wrong.append(f"the processes together hold {held} bytes")
        figures = {"limit_bytes": limit, "held_bytes": held, "over_bytes": over}
        return {**figures, "wrong": wrong, "limits": [LIMIT]}

    def _settled(self, own: Deadline) -> int:
        """Return the use of the device when it has not changed for some looks."""
        seen: list[int] = []
        while len(seen) < SAME_LOOKS or len(set(seen[-SAME_LOOKS:])) > 1:
            seen.append(self.used(own))
            time.sleep(min(LOOK_S, own.left()))
        return seen[-1]

    def used(self, own: Deadline) -> int:
        """Return the bytes in use on the first device, as an unlimited process reads NVML."""
        used: int = self.run("info", own)[0]["devices"][0]["nvml_used"]
        return used

    def _used_while_holding(self, held: int, limit: int, own: Deadline) -> int:
        command = [self._tools.probe, "hold", str(held), str(HOLD_S)]
        holder = Started(command, env=self._environment(limit))
        try:
            holder.first_answer(_seconds(own))  # it has it
            return self.used(own)
        finally:
            holder.kill()

    def _environment(self, limit: int | None, **settings: str) -> dict[str, str]:
        own = {} if limit is None else {"CUDA_DEVICE_MEMORY_LIMIT": str(limit), **settings}
        return environment(self._tools.library, **own)


def _seconds(own: Deadline) -> float:
    if not own.left():
        raise CaseError("no time left for it")
    return min(PROBE_S, own.left())
