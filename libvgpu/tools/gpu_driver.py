"""What the library takes for granted of a driver, and only hardware can answer.

Contexts that are reset with work on their way, NVML's samples by process, marks that show whose
timeslice runs on the card. The simulated driver does these as NVIDIA describes them, or by a guess.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline, Started, answers, case, environment

KERNEL_US, LONG_KERNEL_US = 500, 5_000
SHARE, BAR_POINTS = 50, 3.0
# Unused time is kept for so long (src/bucket.h), so after each reset that much more may run.
BURST_S, LIFE_S = 0.2, 1.0
RESETS_S, LAG_S, TIMESLICES_S, START_S = 6.0, 4.0, 2.0, 30.0
LATE_ALONE, LATE_BESIDE = 0.1, 0.2
MPS_PIPES = "/tmp/nvidia-mps"


class Facts:
    """The programs that ask.

    Args:
        spin: vgpu-spin.
        library: libvgpu.so.
        scale: All windows are so many times as long; below 1 for tests of this program itself.
    """

    def __init__(self, spin: Path, library: Path, *, scale: float = 1.0) -> None:
        self._spin, self._library, self._scale = spin, library, scale

    def rows(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Every question, one after the other on a card that is otherwise idle."""
        bodies = (
            (f"contexts reset under {SHARE} %", self._resets, RESETS_S),
            ("NVML's samples by process", self._lag, LAG_S),
            ("marks alone on the card", self._alone, TIMESLICES_S),
            ("marks beside a neighbour", self._beside, 2 * TIMESLICES_S),
        )
        return [
            case(name, body, limit_s=START_S + seconds, deadline=deadline)
            for name, body, seconds in bodies
        ]

    def _rounds(self, microseconds: int, own: Deadline) -> list[str]:
        found = self._one(["calibrate", str(microseconds)], own)
        return ["--rounds", str(found["rounds"]), "--us", str(found["us"])]

    def _one(self, words: list[str], own: Deadline, **settings: str) -> dict[str, Any]:
        env = environment(self._library, **settings)
        (found,) = answers([self._spin, *words], env=env, limit_s=own.left())
        return dict(found)

    def _seconds(self, seconds: float) -> str:
        return f"{seconds * self._scale:.3f}"

    def _resets(self, own: Deadline) -> dict[str, Any]:
        words = self._rounds(KERNEL_US, own)
        limit = {"CUDA_DEVICE_SM_LIMIT": str(SHARE), "GPU_CORE_UTILIZATION_POLICY": "force"}
        done = self._one(["reset", self._seconds(RESETS_S), *words], own, **limit)
        if not done["library"]:
            raise CaseError("the library was not loaded")
        share = done["per_second"] * float(words[-1]) / 1e4
        most = SHARE * (1 + BURST_S / LIFE_S) + BAR_POINTS
        wrong = [] if done["resets"] else ["no context was reset"]
        if not SHARE - BAR_POINTS <= share <= most:
            wrong.append(f"{share:.1f} % instead of {SHARE} to {most:.0f}")
        return {"share_percent": round(share, 2), "resets": done["resets"], "wrong": wrong}

    def _lag(self, own: Deadline) -> dict[str, Any]:
        words = self._rounds(KERNEL_US, own)
        found = self._one(["lag", self._seconds(LAG_S), *words], own)
        return {**found, "wrong": [] if found["samples"] else ["no sample was shown"]}

    def _alone(self, own: Deadline) -> dict[str, Any]:
        found = self._one(["timeslices", self._seconds(TIMESLICES_S)], own)
        late = found["late"] > LATE_ALONE
        return {**found, "wrong": [f"late in {found['late']:.0%} of looks"] if late else []}

    def _beside(self, own: Deadline) -> dict[str, Any]:
        words = self._rounds(LONG_KERNEL_US, own)
        env = environment(self._library)
        work = [self._spin, "run", self._seconds(2 * TIMESLICES_S), *words, "--gate", "1"]
        looks = [self._spin, "timeslices", self._seconds(TIMESLICES_S), "--gate", "1"]
        programs = [Started(words, env=env) for words in (work, looks)]
        try:
            for program in programs:
                program.first_answer(own.left())
            for program in programs:
                program.go()
            found = programs[1].finish(own.left())[0]
        finally:
            for program in programs:
                program.kill()
        early = found["late"] < LATE_BESIDE
        return {**found, "wrong": [f"late in {found['late']:.0%} of looks only"] if early else []}


def is_under_mps() -> bool:
    """Whether programs of this environment run under MPS: then all share one context."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES, "control").exists()
