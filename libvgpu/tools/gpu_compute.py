"""Part 2, compute: measures how well shares hold, alone and in company.

The share is the rate of kernels of known work under the limit divided by the rate without one, both
by the device's own clock. NVML's figure for the device is reported too but decides nothing: it
counts in whole percents of samples, and the use of everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_agent import Agent
from gpu_case import FAILED, PASSED, CaseError, Deadline, NotRun, Started, case, environment
from gpu_pids import child_of
from gpu_series import mean
from gpu_tools import UNSHARE, Tools, share

# docs/limits.md: a mean error of 3 points; a single case in company may be off by more.
BAR_POINTS, BAR_IN_COMPANY = 3.0, 5.0
# A share must hold over any window of max(5 s, 30 times the longest launch / share).
WINDOW_S, LAUNCHES = 5.0, 30
# In company the first seconds are not exact (docs/limits.md).
WARM_S, WARM_IN_COMPANY_S = 1.0, 4.0
UNLIMITED_S = 2.0
# The time to start a process, a context and a module.
START_S = 30.0
COMPUTE = "A share of compute is kept."

GRAPH = (100, 50)  # microseconds of a kernel, kernels of a graph
#: Length of a kernel in microseconds, and the shares at which it runs alone.
ALONE: tuple[tuple[int, tuple[int, ...]], ...] = (
    (20, (10, 25, 50, 75)),
    (500, (25, 75)),
    (5_000, (10, 25, 50, 75)),
    (50_000, (25, 50, 75)),
)
GRAPH_SHARES = (25, 50)
#: Kernels and share of each tenant of a device.
COMPANY: tuple[tuple[tuple[int, int], ...], ...] = (
    ((5_000, 25), (5_000, 50)),
    ((500, 10), (500, 75)),
    ((50_000, 50), (20, 50)),
    ((50_000, 25), (20, 75)),
    ((5_000, 20), (500, 30), (50_000, 50)),
)
ONE_CONTAINER = (500, 50)

LONE, LONE_SHARE, LONE_LEAST = 5_000, 25, 90.0
# Long kernels: a process takes about half a second to start on a real device, and leaves it idle.
ONCE_US, ONCE_SHARE, ONCE_S = 1_000_000, 25, 16.0

RESET_US, RESET_SHARE = 500, 50
# Unused time is kept for so long (src/bucket.h), so after each reset that much more may run.
BURST_S, LIFE_S, RESETS_S = 0.2, 1.0, 6.0


@dataclass(frozen=True)
class Work:
    """One kind of launch, and its rate without a limit."""

    name: str
    words: list[str]
    launch_us: float
    per_second: float

    def window_s(self, percent: int) -> float:
        """Return the seconds over which a share of this percentage must hold."""
        return max(WINDOW_S, LAUNCHES * self.launch_us / 1e6 * 100 / percent)


class Shares:
    """Shares of compute on a device that is otherwise idle."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._works: dict[str, Work] = {}

    def rows(self, deadline: Deadline, *, may_unshare: bool) -> Iterator[dict[str, Any]]:
        """Measure; yield a row for each case, and one with the mean error of all."""
        errors: list[float] = []
        for row in self._cases(deadline, may_unshare=may_unshare):
            found = row.get("error_points", [])
            errors += found if isinstance(found, list) else [found]
            yield row
        yield mean_error(errors)

    def _cases(self, deadline: Deadline, *, may_unshare: bool) -> Iterator[dict[str, Any]]:
        for kernel_us, percents in ALONE:
            name = f"kernels of {kernel_us} us"
            yield self._unlimited(name, kernel_us, 0, deadline)
            for percent in percents:
                yield self._alone(name, percent, deadline)
        graph = f"graphs of {GRAPH[1]} kernels of {GRAPH[0]} us"
        yield self._unlimited(graph, *GRAPH, deadline)
        for percent in GRAPH_SHARES:
            yield self._alone(graph, percent, deadline)
        for tenants in COMPANY:
            yield self._company(tenants, deadline)
        yield self._one_container(deadline)
        yield from self._special(deadline, may_unshare=may_unshare)

    # Without a limit.

    def _unlimited(
        self, name: str, kernel_us: int, nodes: int, deadline: Deadline
    ) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            work = self._measured(name, kernel_us, nodes, own)
            free = {"CUDA_DEVICE_SM_LIMIT": "100"}
            loaded = self._tools.one(self._run(work.words, 0, UNLIMITED_S), own, **free)
            return {
                "kernel_us": work.launch_us / max(1, nodes),
                "per_second": work.per_second,
                "with_the_library": round(loaded["per_second"] / work.per_second, 4),
                "wrong": [] if loaded["library"] else ["the library was not loaded"],
            }

        limit_s = START_S * 2 + UNLIMITED_S * 2
        return case(f"{name}, no limit", body, limit_s=limit_s, deadline=deadline)

    def _measured(self, name: str, kernel_us: int, nodes: int, own: Deadline) -> Work:
        if name not in self._works:
            kernel = self._tools.kernel(kernel_us, own)
            launch_us = kernel["us"] * max(1, nodes)
            words = ["--rounds", str(kernel["rounds"]), "--us", str(launch_us)]
            words += ["--graph", str(nodes)] if nodes else []
            direct = self._tools.one(self._run(words, 0, UNLIMITED_S), own)
            if direct["library"] or not direct["per_second"]:
                raise CaseError(f"no rate without a limit: {direct}")
            rate = direct["per_second"]
            self._works[name] = Work(name, words, launch_us=launch_us, per_second=rate)
        return self._works[name]

    def _kernels(self, kernel_us: int, own: Deadline) -> Work:
        return self._measured(f"kernels of {kernel_us} us", kernel_us, 0, own)

    # With limits.

    def _alone(self, name: str, percent: int, deadline: Deadline) -> dict[str, Any]:
        def body(own: Deadline) -> dict[str, Any]:
            if name not in self._works:
                raise CaseError("its rate without a limit is not known")
            work = self._works[name]
            window_s = work.window_s(percent)
            (done,), seen = self._together([work], WARM_S, window_s, own, [share(percent)])
            return {"nvml_percent": seen, **_judge(work, percent, done, BAR_POINTS)}

        known = self._works.get(name)
        limit_s = START_S + WARM_S + (known.window_s(percent) if known else WINDOW_S)
        return case(f"{name}, {percent} %", body, limit_s=limit_s, deadline=deadline)

    def _company(self, tenants: Sequence[tuple[int, int]], deadline: Deadline) -> dict[str, Any]:
        window_s = max(
            max(WINDOW_S, LAUNCHES * kernel_us / 1e6 * 100 / percent)
            for kernel_us, percent in tenants
        )

        def body(own: Deadline) -> dict[str, Any]:
            works = [self._kernels(kernel_us, own) for kernel_us, _ in tenants]
            shares = [share(percent) for _, percent in tenants]
            done, seen = self._together(works, WARM_IN_COMPANY_S, window_s, own, shares)
            verdicts = [
                _judge(work, percent, one, BAR_IN_COMPANY)
                for work, (_, percent), one in zip(works, tenants, done)
            ]
            return {
                "nvml_percent": seen,
                "share_percent": [one["share_percent"] for one in verdicts],
                "error_points": [one["error_points"] for one in verdicts],
                "wrong": [sentence for one in verdicts for sentence in one["wrong"]],
                "limits": [COMPUTE],
            }

        named = " and ".join(f"{percent} % of {us} us" for us, percent in tenants)
        limit_s = START_S + WARM_IN_COMPANY_S + window_s
        return case(f"containers of {named}", body, limit_s=limit_s, deadline=deadline)

    def _one_container(self, deadline: Deadline) -> dict[str, Any]:
        kernel_us, percent = ONE_CONTAINER

        def body(own: Deadline) -> dict[str, Any]:
            work = self._kernels(kernel_us, own)
            window_s = work.window_s(percent)
            with TemporaryDirectory() as folder:
                one = {**share(percent), "VGPU_USAGE_REGION": str(Path(folder, "region"))}
                done, seen = self._together(
                    [work, work], WARM_IN_COMPANY_S, window_s, own, [one, one]
                )
            both = {**done[0], "per_second": sum(one["per_second"] for one in done)}
            return {"nvml_percent": seen, **_judge(work, percent, both, BAR_POINTS)}

        name = f"two processes of one container of {percent} %"
        limit_s = START_S + WARM_IN_COMPANY_S + WINDOW_S
        return case(name, body, limit_s=limit_s, deadline=deadline)

    # Special cases.

    def _special(self, deadline: Deadline, *, may_unshare: bool) -> Iterator[dict[str, Any]]:
        lone = "a lone tenant of policy Default"

        def lone_inside(own: Deadline) -> dict[str, Any]:
            if not may_unshare:
                raise NotRun("this user may not make a PID namespace (root may)")
            return self._lone(UNSHARE, own)

        bodies: tuple[tuple[str, Callable[[Deadline], dict[str, Any]], float], ...] = (
            (lone, lambda own: self._lone((), own), WARM_IN_COMPANY_S + WINDOW_S),
            (f"{lone} in a PID namespace", lone_inside, WARM_IN_COMPANY_S + WINDOW_S),
            ("a process for each kernel", self._once, ONCE_S),
            (f"contexts reset under {RESET_SHARE} %", self._resets, RESETS_S),
        )
        for name, body, seconds in bodies:
            yield case(name, body, limit_s=START_S + seconds, deadline=deadline)

    def _lone(self, prefix: Sequence[str], own: Deadline) -> dict[str, Any]:
        """Check that the policy Default does not limit a lone process whose PID the agent wrote."""
        work, agent = self._kernels(LONE, own), Agent()
        with TemporaryDirectory() as folder:
            region = Path(folder, "region")
            agent.make_region(region)
            settings = {**share(LONE_SHARE, "default"), "VGPU_USAGE_REGION": str(region)}
            command = [*prefix, *self._run(work.words, WARM_IN_COMPANY_S, WINDOW_S)]
            program = Started(
                [*command, "--gate", "1"], env=environment(self._tools.library, **settings)
            )
            try:
                program.first_answer(own.left())
                outer = child_of(program.pid) if prefix else program.pid
                written = agent.write_host_pids(region, [outer])
                self._tools.look(own)
                program.go()
                done = program.finish(own.left())[-1]
            finally:
                program.kill()
        got = 100 * done["per_second"] / work.per_second
        wrong = [] if done["library"] else ["the library was not loaded"]
        if got < LONE_LEAST:
            wrong.append(f"{got:.1f} % of the device, though nobody else computes")
        return {
            "share_percent": round(got, 2),
            "host_pids_written": written,
            "wrong": wrong,
            "limits": [COMPUTE],
        }

    def _once(self, own: Deadline) -> dict[str, Any]:
        """Measure kernels that each have a process of their own, all in one container."""
        kernel = self._tools.kernel(ONCE_US, own)
        words = ["once", "1", "--rounds", str(kernel["rounds"])]
        runs: list[dict[str, Any]] = []
        with TemporaryDirectory() as folder:
            one = {**share(ONCE_SHARE), "VGPU_USAGE_REGION": str(Path(folder, "region"))}
            window_us = ONCE_S * 1e6 * self._tools.scale
            while not runs or runs[-1]["ended_us"] - runs[0]["began_us"] < window_us:
                runs.append(self._tools.one([self._tools.spin, *words], own, **one))
        span_us = runs[-1]["ended_us"] - runs[0]["began_us"]
        got = 100 * kernel["us"] * len(runs) / span_us
        # One more kernel than due may have run when the time is over.
        most = ONCE_SHARE + BAR_IN_COMPANY + 100 * kernel["us"] / span_us
        wrong = [] if all(run["library"] for run in runs) else ["the library was not loaded"]
        if got > most:
            wrong.append(f"{got:.1f} % instead of {ONCE_SHARE} to {most:.0f}")
        return {
            "share_percent": round(got, 2),
            "processes": len(runs),
            "wrong": wrong,
            "limits": [COMPUTE],
            "series": runs,
        }

    def _resets(self, own: Deadline) -> dict[str, Any]:
        kernel = self._tools.kernel(RESET_US, own)
        command = [self._tools.spin, "reset", self._tools.seconds(RESETS_S)]
        words = ["--rounds", str(kernel["rounds"]), "--us", str(kernel["us"])]
        done = self._tools.one([*command, *words], own, **share(RESET_SHARE))
        if not done["library"]:
            raise CaseError("the library was not loaded")
        got = done["per_second"] * kernel["us"] / 1e4
        most = RESET_SHARE * (1 + BURST_S / LIFE_S) + BAR_POINTS
        wrong = [] if done["resets"] else ["no context was reset"]
        if not RESET_SHARE - BAR_POINTS <= got <= most:
            wrong.append(f"{got:.1f} % instead of {RESET_SHARE} to {most:.0f}")
        return {
            "share_percent": round(got, 2),
            "resets": done["resets"],
            "wrong": wrong,
            "limits": [COMPUTE],
        }

    # Programs.

    def _together(
        self,
        works: Sequence[Work],
        warm_s: float,
        window_s: float,
        own: Deadline,
        shares: Sequence[dict[str, str]],
    ) -> tuple[list[dict[str, Any]], float | None]:
        """Run one program for each share at once; return their answers, and NVML's mean percent."""
        commands: list[list[object]] = [self._run(work.words, warm_s, window_s) for work in works]
        watch = [self._tools.spin, "watch", f"{(warm_s + window_s) * self._tools.scale:.3f}"]
        *done, seen = self._tools.at_once([*commands, watch], own, *shares, {})
        if not all(one["library"] for one in done):
            raise CaseError("the library was not loaded")
        return done, seen["percent"] if seen["samples"] else None

    def _run(self, words: list[str], warm_s: float, window_s: float) -> list[object]:
        seconds = (warm_s + window_s) * self._tools.scale
        warm = f"{warm_s * self._tools.scale:.3f}"
        return [self._tools.spin, "run", f"{seconds:.3f}", *words, "--warm", warm]


def _judge(work: Work, percent: int, done: dict[str, Any], bar: float) -> dict[str, Any]:
    """Return the measured share of a run, and its faults."""
    if not done["per_second"]:
        raise CaseError("nothing ran in the time that counts")
    got = 100 * done["per_second"] / work.per_second
    error = abs(got - percent)
    wrong = [f"{got:.1f} % instead of {percent}"] if error > bar else []
    return {
        "share_percent": round(got, 2),
        "error_points": round(error, 2),
        "wrong": wrong,
        "limits": [COMPUTE],
    }


def mean_error(errors: Sequence[float]) -> dict[str, Any]:
    """Return the row of all cases that have an error."""
    name = "mean error of all shares"
    if not errors:
        return {"case": name, "outcome": FAILED, "why": "no share was measured", "limits": []}
    average = mean(errors)
    wrong = average > BAR_POINTS
    return {
        "case": name,
        "outcome": FAILED if wrong else PASSED,
        "why": f"{average:.1f} points" if wrong else "",
        "limits": [COMPUTE] if wrong else [],
        "points": round(average, 3),
        "shares": len(errors),
    }
