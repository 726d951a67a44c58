"""Part 1: checks that driver and device behave as the library assumes.

Nothing of the library runs here. Every case keeps its raw series, so that the simulated driver can
be set from them; it fails if an assumption of the library does not hold, and names the constants
that the series confirm or refute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpu_case import Deadline, NotRun, Started, case, environment
from gpu_constants import at_least, at_most, calibration, constant
from gpu_series import (
    drift_ppm,
    lateness_us,
    living,
    median,
    samples,
    shown_percent,
    spread,
    sums_by_stamp,
    turns_us,
)
from gpu_tools import Tools

START_S = 20.0
SHORT_US, KERNEL_US, LONG_KERNEL_US, LONGER_US = 20, 500, 5_000, 50_000
COMPUTE = "A share of compute is kept."
LAUNCH = "A kernel launch costs little more."
ALLOCATION = "An allocation and its release cost little more."
START = "A process starts as fast."

CONTEXTS = 8
NVML_CALLS = 200
# The library asks every 50 ms while kernels run (src/calibrate.h) and may take 1 % of the time.
NVML_PART = 0.01
# An NVML that starts slower than this breaks the promise of a process's start (docs/limits.md).
INIT_MS = 5.0

# The largest age of a sample that NVML shows (src/calibrate.c counts on less).
LATEST_S = 1.5
DUTY, DUTY_POINTS, SUM_POINTS = 25, 4.0, 8.0
# Between the clocks of device and host; and so late a mark may be in its context's turn.
DRIFT = 1e-4
NEAR_US = 50.0
MARK_EVERY_US = 250
PAIR_POINTS, PAIR_US = 0.1, 3.0
CHANGE_OVER_LOSS = 0.03
CONTEXT_S = 0.5


def _row(wrong: list[str], limits: list[str], **figures: Any) -> dict[str, Any]:
    return {"wrong": wrong, "limits": limits if wrong else [], **figures}


UNDER_MPS = "under MPS all processes share a context: there are no turns"
IN_MIG = "NVML has no samples of processes on a device in MIG mode"


class Facts:
    """Measures facts, one after the other, on a device that is otherwise idle.

    Args:
        tools: The programs.
        mps: True if programs run under MPS.
        mig: True if the device is in MIG mode.
    """

    def __init__(self, tools: Tools, *, mps: bool = False, mig: bool = False) -> None:
        self._tools, self._mps, self._mig = tools, mps, mig
        self._period_ms = 0.0  # of NVML's samples, from the first series of them

    def rows(self, deadline: Deadline) -> Iterator[dict[str, Any]]:
        """Measure; yield a row for each case."""
        for name, body, seconds in self.bodies():
            yield case(
                name, self._where_possible(name, body), limit_s=START_S + seconds, deadline=deadline
            )

    def _where_possible(
        self, name: str, body: Callable[[Deadline], dict[str, Any]]
    ) -> Callable[[Deadline], dict[str, Any]]:
        """Return the body, or a body that reports why this device cannot be measured."""
        turns = name.startswith(("turns", "marks beside"))
        why = UNDER_MPS if self._mps and turns else ""
        why = IN_MIG if self._mig and name.startswith("NVML's samples") else why

        def not_run(own: Deadline) -> dict[str, Any]:
            raise NotRun(why)

        return not_run if why else body

    def bodies(self) -> list[tuple[str, Callable[[Deadline], dict[str, Any]], float]]:
        """Return name, body and seconds of each case, the likeliest to surprise first."""
        spread_over = (
            ("NVML's samples of a device that is always busy", LONG_KERNEL_US, 0, 0, 4.0),
            ("NVML's samples of kernels of 50 ms, 25 % of the time", LONGER_US, 200, 0, 6.0),
            ("NVML's samples of kernels of 500 ms, 25 % of the time", 500_000, 2_000, 0, 10.0),
            ("NVML's samples of the same beside a full neighbour", LONGER_US, 200, 1, 6.0),
            ("NVML's samples of two processes", LONGER_US, 200, 2, 6.0),
        )
        found: list[tuple[str, Callable[[Deadline], dict[str, Any]], float]] = [
            ("memory of contexts and modules", self._memory, 2.0),
            ("cost of NVML's calls with 1 context", lambda own: self._nvml(1, own), 5.0),
            (f"cost of NVML's calls with {CONTEXTS} contexts", self._nvml_crowded, 10.0),
        ]
        for name, kernel_us, period_ms, others, seconds in spread_over:
            found.append((name, self._samples(kernel_us, period_ms, others, seconds), seconds))
        found += [
            ("clock of events", self._clock, 5.0),
            ("marks alone on the device", self._marks_alone, 3.0),
            ("marks beside kernels of 5 ms", self._marks_beside(LONG_KERNEL_US), 3.0),
            ("marks beside kernels of 50 ms", self._marks_beside(LONGER_US), 3.0),
            ("marks while a long kernel of the same process runs", self._marks_own, 3.0),
            ("a neighbour of a process that marks", self._marked, 5.0),
        ]
        for kernel_us in (5, SHORT_US, 100):
            found.append((f"event pairs around {kernel_us} us", self._pairs(kernel_us), 4.0))
        for kernel_us in (SHORT_US, KERNEL_US, LONGER_US):
            found.append((f"turns of two processes, {kernel_us} us", self._turns(kernel_us), 5.0))
        return [
            *found,
            ("launches that wait in a queue", self._queue, 2.0),
            ("contexts made and ended", self._contexts, 5.0),
            ("an event of a context that was reset", self._dead_event, 2.0),
            ("streams and graphs", self._streams, 3.0),
        ]

    def _measure(self, own: Deadline, *words: object, **settings: str) -> dict[str, Any]:
        return self._tools.one([self._tools.measure, *words], own, **settings)

    # Memory and NVML.

    def _memory(self, own: Deadline) -> dict[str, Any]:
        words = self._tools.rounds(KERNEL_US, own)
        found = self._measure(own, "memory", 1, *words)
        by_stage = {name: numbers for name, *numbers in found["stages"]}
        base = by_stage["start"][0]
        of_device = {name: numbers[0] - base for name, numbers in by_stage.items()}
        listed = {name: numbers[2] for name, numbers in by_stage.items() if numbers[2] >= 0}
        wrong = []
        if of_device["context"] <= 0:
            wrong.append("a context takes nothing of the device")
        if of_device["64 MiB"] - of_device["second module"] < 64 << 20:
            wrong.append("64 MiB that were allocated are not seen on the device")
        return _row(
            wrong,
            ["The memory of a container stays within its limit"],
            context_bytes=of_device["context"],
            module_bytes=of_device["module"] - of_device["context"],
            first_launch_bytes=of_device["launch"] - of_device["module"],
            second_module_bytes=of_device["second module"] - of_device["launch"],
            left_after_reset_bytes=of_device["reset"],
            listed_bytes=listed,
            series=found["stages"],
        )

    def _nvml(self, contexts: int, own: Deadline) -> dict[str, Any]:
        found = self._measure(own, "nvml", max(20, int(NVML_CALLS * self._tools.scale)))
        figures = {name: spread(values) for name, values in found.items()}
        tick_us = constant("src/calibrate.h", "VGPU_TICK_NS") / 1e3
        asking = sum(figures[name]["median"] for name in ("list", "samples", "by_uuid"))
        wrong, limits = [], []
        if asking > tick_us * NVML_PART:
            wrong.append(f"asking NVML takes {asking:.0f} us of every {tick_us:.0f}")
            limits += [LAUNCH, ALLOCATION]
        if figures["init"]["median"] > INIT_MS * 1e3:
            wrong.append(f"starting NVML takes {figures['init']['median'] / 1e3:.0f} ms")
            limits.append(START)
        slow = at_most("src/throttle.c", "SLOW_NS", figures["samples"]["p99"] * 1e3)
        return _row(wrong, limits, contexts=contexts, us=figures, calibrations=[slow], series=found)

    def _nvml_crowded(self, own: Deadline) -> dict[str, Any]:
        env = environment(self._tools.library)
        command = [self._tools.measure, "hold", "1", "--gate", "1"]
        holders = [Started(command, env=env) for _ in range(CONTEXTS)]
        try:
            for holder in holders:
                holder.first_answer(own.left())
            found = self._nvml(CONTEXTS, own)
            for holder in holders:
                holder.go()
                holder.finish(own.left())
            return found
        finally:
            for holder in holders:
                holder.kill()

    def _samples(
        self, kernel_us: int, period_ms: int, others: int, seconds: float
    ) -> Callable[[Deadline], dict[str, Any]]:
        def body(own: Deadline) -> dict[str, Any]:
            words = self._tools.work(kernel_us, own)
            window = self._tools.seconds(seconds)
            part = ["--percent", DUTY if period_ms else 100, "--period", period_ms or 100]
            duty = [self._tools.spin, "duty", window, *words, *part]
            watched = self._tools.seconds(seconds + LATEST_S)
            commands: list[list[object]] = [[self._tools.measure, "samples", watched], duty]
            if others == 1:
                full = self._tools.work(LONG_KERNEL_US, own)
                commands.append([self._tools.spin, "run", window, *full])
            elif others == 2:
                commands.append(duty)
            seen, *done = self._tools.at_once(commands, own)
            if not period_ms:
                self._period_ms = samples(seen["samples"])["period_ms"]
            return judge_samples(seen, done, period_ms=self._period_ms, others=others)

        return body

    # Clocks, marks, turns.

    def _clock(self, own: Deadline) -> dict[str, Any]:
        found = self._measure(own, "clock", self._tools.seconds(4), "--every", "20000")
        drift = drift_ppm(found["host_us"], found["device_us"])
        wrong = []
        if abs(drift) > DRIFT * 1e6:
            wrong.append(f"the device's clock differs from the host's by {drift:.0f} ppm")
        return _row(wrong, [COMPUTE], drift_ppm=round(drift, 2), series=found)

    # No limit rests on marks. When they come tells whether the limiter could use them.

    def _late(self, found: dict[str, Any]) -> tuple[float, list[float]]:
        """Return the fraction of looks outside the process's turn, and the lateness."""
        late = lateness_us(found["host_us"], found["device_us"], drift=DRIFT)
        others = found["waiting"] + sum(one > NEAR_US for one in late)
        return others / found["looks"] if found["looks"] else 0.0, late

    def _marks_alone(self, own: Deadline) -> dict[str, Any]:
        found = self._measure(own, "marks", self._tools.seconds(3))
        part, late = self._late(found)
        return _row([], [], late=round(part, 4), late_us=spread(late), series=found)

    def _marks_beside(self, kernel_us: int) -> Callable[[Deadline], dict[str, Any]]:
        def body(own: Deadline) -> dict[str, Any]:
            work = self._tools.work(kernel_us, own)
            run = [self._tools.spin, "run", self._tools.seconds(4), *work]
            marks = [self._tools.measure, "marks", self._tools.seconds(3)]
            found, _ = self._tools.at_once([marks, run], own)
            part, late = self._late(found)
            return _row([], [], late=round(part, 4), late_us=spread(late), series=found)

        return body

    def _marks_own(self, own: Deadline) -> dict[str, Any]:
        rounds = self._tools.kernel(LONGER_US, own)["rounds"]
        found = self._measure(own, "marks", self._tools.seconds(3), "--own", rounds)
        part, late = self._late(found)
        return _row([], [], late=round(part, 4), late_us=spread(late), series=found)

    def _marked(self, own: Deadline) -> dict[str, Any]:
        work = self._tools.work(KERNEL_US, own)
        run = [self._tools.spin, "run", self._tools.seconds(3), *work]
        (alone,) = self._tools.at_once([run], own)
        marks = [self._tools.measure, "marks", self._tools.seconds(3), "--every", MARK_EVERY_US]
        found, beside = self._tools.at_once([marks, run], own)
        return _row(
            [],
            [],
            neighbour_keeps=round(beside["per_second"] / alone["per_second"], 4),
            per_second_alone=alone["per_second"],
            per_second_beside=beside["per_second"],
            series=found,
        )

    def _pairs(self, kernel_us: int) -> Callable[[Deadline], dict[str, Any]]:
        def body(own: Deadline) -> dict[str, Any]:
            kernel, long = self._tools.kernel(kernel_us, own), self._tools.kernel(5_000, own)
            words = ["--rounds", kernel["rounds"]]
            found = self._measure(own, "pairs", self._tools.seconds(1), *words)
            # By rounds of a long kernel: the rate of short ones is that of launches.
            known = kernel["rounds"] * long["us"] / long["rounds"]
            seen = {name: median(found[name]["us"]) for name in ("tenth", "each")}
            rate = found["none"]["per_second"]
            wrong = [
                f"event pairs round kernels ({name}) measure {us:.1f} us of {known:.1f}"
                for name, us in seen.items()
                if abs(us - known) > max(PAIR_US, known * PAIR_POINTS)
            ]
            return _row(
                wrong,
                [COMPUTE],
                known_us=round(known, 3),
                measured_us={name: round(us, 3) for name, us in seen.items()},
                between_launches_us=round(1e6 / rate, 3),
                rate_kept={name: round(found[name]["per_second"] / rate, 4) for name in seen},
                series=found,
            )

        return body

    def _turns(self, kernel_us: int) -> Callable[[Deadline], dict[str, Any]]:
        def body(own: Deadline) -> dict[str, Any]:
            kernel = self._tools.kernel(kernel_us, own)
            words = ["--rounds", kernel["rounds"]]
            command = [self._tools.measure, "turns", self._tools.seconds(2), *words]
            (alone,) = self._tools.at_once([command], own)
            both = self._tools.at_once([command, command], own)
            return judge_turns(alone, both, kernel["us"])

        return body

    # Queues, contexts, streams.

    def _queue(self, own: Deadline) -> dict[str, Any]:
        rounds = self._tools.kernel(LONGER_US, own)["rounds"] * 6
        found = self._measure(own, "queue", 1, "--rounds", rounds)
        depth = found["depth"]
        wrong = [] if depth else [f"{len(found['launch_us'])} launches do not wait for the device"]
        return _row(
            wrong,
            [COMPUTE],
            depth=depth,
            calibrations=[calibration("fake/engine.h", "ENGINE_DEPTH", depth, unit="launches")],
            series=found,
        )

    def _contexts(self, own: Deadline) -> dict[str, Any]:
        found = self._measure(own, "contexts", 5)
        made, ended = median(found["made_ms"]), median(found["ended_ms"])
        wrong = []
        if made + ended > CONTEXT_S * 1e3:
            wrong.append(f"a context that does not fit costs {made + ended:.0f} ms to try")
        return _row(
            wrong,
            [START],
            made_ms=made,
            ended_ms=ended,
            comes_back_at_its_address=found["same_address"] == found["count"],
            series=found,
        )

    def _dead_event(self, own: Deadline) -> dict[str, Any]:
        found = self._measure(own, "dead-event", 1)
        wrong = ["an event of a context that was reset is used"] if not found["result"] else []
        return _row(wrong, [], result=found["result"])

    def _streams(self, own: Deadline) -> dict[str, Any]:
        words = self._tools.rounds(100, own)
        found = self._measure(own, "streams", self._tools.seconds(1), *words)
        one = found["one_stream_per_second"]
        side_by_side = found["four_streams_per_second"] / one
        in_graph = found["in_graphs_per_second"] / one
        wrong = [] if in_graph > 0.8 else [f"kernels in a graph run at {in_graph:.0%}"]
        if side_by_side < 0.9:
            wrong.append(f"kernels in four streams run at {side_by_side:.0%}")
        return _row(
            wrong,
            [COMPUTE],
            side_by_side=round(side_by_side, 3),
            in_graphs=round(in_graph, 3),
            series=found,
        )


def judge_samples(
    seen: dict[str, Any], done: list[dict[str, Any]], *, period_ms: float, others: int
) -> dict[str, Any]:
    """Return the findings of a series of NVML's samples, compared with the work really done.

    Args:
        seen: The answer of `vgpu-measure samples`.
        done: The answers of the programs that worked; the first is the one of known duty.
        period_ms: The time between two samples, as a device that is always busy shows it.
        others: 0: it was alone; 1: beside a full neighbour; 2: beside one like it.
    """
    rows = seen["samples"]
    if not rows:
        return _row(["no sample was shown"], [COMPUTE], series=seen)
    found = {**samples(rows), "period_ms": period_ms}
    wrong = []
    began, ended = done[0]["began_us"], done[0]["ended_us"]
    shown = {
        pid: round(
            shown_percent(rows, pid, period_us=period_ms * 1e3, began_us=began, ended_us=ended),
            2,
        )
        for pid in living(rows, began_us=began, ended_us=ended)
    }
    due = done[0]["busy_percent"]
    # The first and the last sample lie only in part within the time.
    points = DUTY_POINTS + due * period_ms * 1e3 / (ended - began)
    if not any(abs(percent - due) <= points for percent in shown.values()):
        wrong.append(f"{due:.1f} % of work is shown as {sorted(shown.values())}")
    if len(shown) != len(done):
        wrong.append(f"{len(done)} processes are shown as PIDs {sorted(shown)}")
    sums = sums_by_stamp(rows, period_ms * 500)
    if max(sums) > 100 + SUM_POINTS:
        wrong.append(f"the processes' samples add up to {max(sums):.0f} %")
    period_ns = period_ms * 1e6
    calibrations = [
        at_least("src/calibrate.c", "SHORTEST_NS", period_ns),
        at_most("src/calibrate.c", "GAP_NS", period_ns),
        calibration("fake/machine_file.c", "sample_ns", period_ns),
        calibration("fake/machine_file.c", "lag_ns", found["lag_ms"]["median"] * 1e6),
    ]
    return _row(
        wrong,
        [COMPUTE],
        **found,
        shown_percent=shown,
        due_percent=due,
        beside=others,
        largest_sum=max(sums),
        calibrations=calibrations,
        series=seen,
    )


def judge_turns(
    alone: dict[str, Any], both: list[dict[str, Any]], kernel_us: float
) -> dict[str, Any]:
    """Return the length of a turn and the cost of a change-over from the ends of kernels."""
    turns = turns_us(both[0]["between_us"], kernel_us)
    others_us, own_us = median(turns["others"]), median(turns["own"])
    rate = sum(one["per_second"] for one in both) / alone["per_second"]
    # Two changes a round of both turns.
    cost_us = max(0.0, 1 - rate) * (others_us + own_us) / 2
    wrong = []
    if not turns["others"]:
        wrong.append("two processes do not take turns")
    if rate < 1 - CHANGE_OVER_LOSS:
        wrong.append(f"two processes together run at {rate:.1%} of one: change-overs are not free")
    calibrations = []
    # A kernel that is longer than a turn ends only after several turns of both.
    if turns["others"] and 2 * kernel_us < others_us and kernel_us <= KERNEL_US:
        calibrations = [
            calibration("src/probe.c", "TIMESLICE_NS", others_us * 1e3),
            calibration("src/cost.c", "HALF_TIMESLICE_NS", others_us * 500),
            calibration("fake/machine_file.c", "slice_ns", others_us * 1e3),
        ]
    return _row(
        wrong,
        [COMPUTE],
        both_keep=round(rate, 4),
        turn_of_others_us=round(others_us, 1),
        own_turn_us=round(own_us, 1),
        change_over_us=round(cost_us, 2),
        calibrations=calibrations,
        series={"alone": alone, "both": both},
    )
