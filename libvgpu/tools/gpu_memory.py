"""Whether limits of memory hold on a card, by every call that the probe knows.

Runs the probe under the library, and beside it the probe without the library, whose view of NVML is
the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline, Started, answers, environment

KINDS = ("", "--managed", "--async", "--pitch", "--pool", "--physical", "--array")
HOLD_S = 5
PROBE_S = 60.0
# What the driver may lose to its own grains when memory is taken to the last byte.
SLACK = 64 << 20


class Probe:
    """vgpu-probe, with and without the library.

    Args:
        program: vgpu-probe.
        library: libvgpu.so.
        deadline: No run of it ends later; none may begin after it.
    """

    def __init__(self, program: Path, library: Path, deadline: Deadline) -> None:
        self._program, self._library, self._deadline = program, library, deadline

    def run(self, script: str, *, limit: int | None = None) -> list[dict[str, Any]]:
        """One answer for each command.

        Args:
            script: Commands as `vgpu-probe run` takes them.
            limit: Bytes of every card; None runs without the library.

        Raises:
            CaseError: The probe cannot work here.
        """
        command = [self._program, "run", script]
        return answers(command, env=self._environment(limit), limit_s=self._seconds())

    def check(self, limit: int) -> dict[str, Any]:
        """What happens under one limit: figures, and in `wrong` a sentence a broken promise.

        Raises:
            CaseError: It could not be done, or not in time.
        """
        wrong = []
        (device,) = self.run("info", limit=limit)[0]["devices"][:1]
        if device["cuda_total"] != limit or device["nvml_total"] != limit:
            wrong.append(f"views show {device['cuda_total']} and {device['nvml_total']}")
        refused = {}
        for kind in KINDS:
            script = f"alloc {limit + (4 << 20)} {kind}; alloc {limit // 2} {kind}; free"
            too_much, fits, *_ = self.run(script, limit=limit)
            refused[kind or "--linear"] = too_much["result"]
            if (too_much["result"], fits["result"]) != (2, 0):
                wrong.append(f"{kind or 'linear'}: {too_much['result']} and {fits['result']}")
        # What a context takes by itself is part of the slice, where NVML says how much that is.
        room = device["cuda_free"]
        (filled,) = self.run("fill --step 64M", limit=limit)
        if not room - SLACK <= filled["filled"] <= limit:
            wrong.append(f"filled to {filled['filled']} of {room}")
        held = limit // 2
        free = self.used()
        used = self._used_while_holding(held, limit)
        return {
            "limit_bytes": limit,
            "filled_bytes": filled["filled"],
            "context_bytes_counted": limit - room,
            "results_beyond_limit": refused,
            "uncounted_bytes_of_a_process": used - free - held - (limit - room),
            "wrong": wrong,
        }

    def used(self) -> int:
        """Bytes in use on the first card, by NVML, as an unlimited process reads it."""
        used: int = self.run("info")[0]["devices"][0]["nvml_used"]
        return used

    def _used_while_holding(self, held: int, limit: int) -> int:
        command = [self._program, "hold", str(held), str(HOLD_S)]
        holder = Started(command, env=self._environment(limit))
        try:
            holder.first_answer(self._seconds())  # it has it
            return self.used()
        finally:
            holder.kill()

    def _seconds(self) -> float:
        if not self._deadline.left():
            raise CaseError("no time left for it")
        return min(PROBE_S, self._deadline.left())

    def _environment(self, limit: int | None) -> dict[str, str]:
        settings = {} if limit is None else {"CUDA_DEVICE_MEMORY_LIMIT": str(limit)}
        return environment(self._library, **settings)
