"""How well shares of compute hold on a card: vgpu-spin's kernels under a limit, beside none.

The share is the rate of kernels of known work under the limit divided by the rate without one, both
by the card's own clock. NVML's figure for the card stands beside it and decides nothing: it counts
in whole percents of samples, and the use of all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpu_case import CaseError, Deadline, Started, answers, case, environment

# design/libvgpu.md: mean error over any window of max(5 s, 30 times the longest launch / share).
BAR_POINTS = 3.0
WINDOW_S, LAUNCHES = 5.0, 30
# In company the first seconds are not exact (docs/limits.md).
WARM_S, WARM_IN_COMPANY_S = 1.0, 4.0
UNLIMITED_S = 2.0
# To start a process, a context and a module.
START_S = 30.0

KERNELS_US = (20, 500, 5_000, 50_000)
SHARES = (25, 50, 75)
GRAPH_KERNELS, GRAPH_KERNEL_US = 50, 100


class Work:
    """One kind of launch, and how fast it goes without a limit."""

    def __init__(self, name: str, words: list[str], *, launch_us: float, per_second: float) -> None:
        self.name, self.words = name, words
        self.launch_us, self.per_second = launch_us, per_second

    def window_s(self, percent: int) -> float:
        """Seconds over which a share of so many percent must hold."""
        return max(WINDOW_S, LAUNCHES * self.launch_us / 1e6 * 100 / percent)


class Bench:
    """The programs it is measured with.

    Args:
        spin: vgpu-spin.
        library: libvgpu.so.
        scale: All windows are so many times as long; below 1 for tests of this program itself.
    """

    def __init__(self, spin: Path, library: Path, *, scale: float = 1.0) -> None:
        self._spin, self._library, self._scale = spin, library, scale

    def rows(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Every case, measured one after the other on a card that is otherwise idle."""
        rows = []
        works: list[Work] = []
        for kernel_us in KERNELS_US:
            rows.append(
                self._unlimited(f"kernels of {kernel_us} us", kernel_us, 0, works, deadline)
            )
        name = f"graphs of {GRAPH_KERNELS} kernels of {GRAPH_KERNEL_US} us"
        rows.append(self._unlimited(name, GRAPH_KERNEL_US, GRAPH_KERNELS, works, deadline))
        for work in works:
            for percent in SHARES:
                rows.append(self._alone(work, percent, deadline))
        company = next((work for work in works if work.launch_us >= 400), None)
        if company is not None:
            rows.append(self._neighbours(company, (25, 50), deadline))
            rows.append(self._neighbours(company, (50, 50), deadline))
            rows.append(self._one_container(company, 50, deadline))
        return rows

    def _unlimited(
        self, name: str, kernel_us: int, graph: int, works: list[Work], deadline: Deadline
    ) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            (found,) = self._answers(["calibrate", str(kernel_us)], own)
            words = ["--rounds", str(found["rounds"]), *(["--graph", str(graph)] if graph else [])]
            launch_us = found["us"] * max(1, graph)
            words += ["--us", str(launch_us)]
            (direct,) = self._answers(self._run(words, 0, UNLIMITED_S), own)
            if direct["library"] or not direct["per_second"]:
                raise CaseError(f"no rate without a limit: {direct}")
            works.append(Work(name, words, launch_us=launch_us, per_second=direct["per_second"]))
            free = {"CUDA_DEVICE_SM_LIMIT": "100"}
            (loaded,) = self._answers(self._run(words, 0, UNLIMITED_S), own, **free)
            return {
                "kernel_us": found["us"],
                "per_second": direct["per_second"],
                "with_the_library": round(loaded["per_second"] / direct["per_second"], 4),
                "wrong": [] if loaded["library"] else ["the library was not loaded"],
            }

        limit_s = START_S * 2 + UNLIMITED_S * 2
        return case(f"{name}, no limit", body, limit_s=limit_s, deadline=deadline)

    def _alone(self, work: Work, percent: int, deadline: Deadline) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            (done,), seen = self._together(work, WARM_S, window_s, own, [_share(percent)])
            return {"nvml_percent": seen, **_judge(work, percent, done)}

        window_s = work.window_s(percent)
        limit_s = START_S + WARM_S + window_s
        return case(f"{work.name}, {percent} %", body, limit_s=limit_s, deadline=deadline)

    def _neighbours(
        self, work: Work, percents: tuple[int, int], deadline: Deadline
    ) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            shares = [_share(percent) for percent in percents]
            done, seen = self._together(work, WARM_IN_COMPANY_S, window_s, own, shares)
            verdicts = [_judge(work, percents[i], one) for i, one in enumerate(done)]
            return {
                "nvml_percent": seen,
                "share_percent": [one["share_percent"] for one in verdicts],
                "error_points": [one["error_points"] for one in verdicts],
                "wrong": [sentence for one in verdicts for sentence in one["wrong"]],
            }

        window_s = work.window_s(min(percents))
        name = f"{work.name}, two containers of {percents[0]} and {percents[1]} %"
        limit_s = START_S + WARM_IN_COMPANY_S + window_s
        return case(name, body, limit_s=limit_s, deadline=deadline)

    def _one_container(self, work: Work, percent: int, deadline: Deadline) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as folder:
                share = {**_share(percent), "VGPU_USAGE_REGION": str(Path(folder, "region"))}
                shares = [share, share]
                done, seen = self._together(work, WARM_IN_COMPANY_S, window_s, own, shares)
            both = {**done[0], "per_second": sum(one["per_second"] for one in done)}
            return {"nvml_percent": seen, **_judge(work, percent, both)}

        window_s = work.window_s(percent)
        name = f"{work.name}, two processes of one container of {percent} %"
        limit_s = START_S + WARM_IN_COMPANY_S + window_s
        return case(name, body, limit_s=limit_s, deadline=deadline)

    def _together(
        self,
        work: Work,
        warm_s: float,
        window_s: float,
        own: Deadline,
        shares: list[dict[str, str]],
    ) -> tuple[list[dict[str, Any]], float | None]:
        """Run one program for each of `shares` at once; what they say, and NVML's mean percent."""
        command = [self._spin, *self._run(work.words, warm_s, window_s), "--gate", "1"]
        watch = [self._spin, "watch", f"{(warm_s + window_s) * self._scale:.3f}"]
        programs = [Started(command, env=environment(self._library, **share)) for share in shares]
        try:
            for program in programs:
                program.first_answer(own.left())
            for program in programs:
                program.go()
            programs.append(Started(watch, env=environment(self._library)))
            *done, seen = [program.finish(own.left())[0] for program in programs]
        finally:
            for program in programs:
                program.kill()
        if not all(one["library"] for one in done):
            raise CaseError("the library was not loaded")
        return done, seen["percent"] if seen["samples"] else None

    def _run(self, words: list[str], warm_s: float, window_s: float) -> list[str]:
        seconds = (warm_s + window_s) * self._scale
        return ["run", f"{seconds:.3f}", *words, "--warm", f"{warm_s * self._scale:.3f}"]

    def _answers(self, words: list[str], own: Deadline, **settings: str) -> list[dict[str, Any]]:
        env = environment(self._library, **settings)
        return answers([self._spin, *words], env=env, limit_s=own.left())


def _share(percent: int) -> dict[str, str]:
    return {"CUDA_DEVICE_SM_LIMIT": str(percent), "GPU_CORE_UTILIZATION_POLICY": "force"}


def _judge(work: Work, percent: int, done: dict[str, Any]) -> dict[str, Any]:
    """The share that a run came to, and whether that is what was promised."""
    if not done["per_second"]:
        raise CaseError("nothing ran in the time that counts")
    share = 100 * done["per_second"] / work.per_second
    error = abs(share - percent)
    wrong = [f"{share:.1f} % instead of {percent}"] if error > BAR_POINTS else []
    return {"share_percent": round(share, 2), "error_points": round(error, 2), "wrong": wrong}
