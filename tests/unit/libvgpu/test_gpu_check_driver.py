"""Part 1 of the check for real drivers: it passes the simulated one and fails odd ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Check

pytestmark = pytest.mark.real_time

GENERATIONS = ("11.4", "12.2", "12.8", "13.5")
# Kernels of 20 µs in two processes, and marks every 250 µs, take seconds of a busy processor.
SLOW = ("turns of two processes, 20 us", "event pairs around 5 us", "event pairs around 20 us")


def facts(check: Check, *wanted: str, but: tuple[str, ...] = SLOW) -> dict[str, dict[str, Any]]:
    """Measure the cases whose names contain one of these words, or all cases without words.

    Those in `but` are left out.
    """
    driver, case = check.module("gpu_driver"), check.module("gpu_case")
    found = {}
    for name, body, seconds in driver.Facts(check.tools()).bodies():
        if name not in but and (not wanted or any(word in name for word in wanted)):
            limit_s = driver.START_S + seconds
            found[name] = case.case(name, body, limit_s=limit_s, deadline=check.deadline())
    assert found
    return found


def why(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["why"] for name, row in rows.items() if row["outcome"] != "passed"}


def test_the_simulated_driver_is_as_the_library_takes_it_to_be(check: Check) -> None:
    found = facts(check)
    assert why(found) == {}
    busy = found["NVML's samples of a device that is always busy"]
    assert (busy["clock"], busy["period_ms"]) == ("wall", 100.0)
    assert found["memory of contexts and modules"]["context_bytes"] == 300 << 20
    assert found["launches that wait in a queue"]["depth"] == 512
    assert found["turns of two processes, 500 us"]["turn_of_others_us"] == 2000.0
    assert all(row["series"] for name, row in found.items() if "reset" not in name)


def test_every_constant_that_is_compared_fits_the_simulator(check: Check) -> None:
    rows = facts(check, "samples of a device", "turns of two processes, 500", "queue")
    compared = [one for row in rows.values() for one in row["calibrations"]]
    assert len(compared) >= 7
    assert [one["constant"] for one in compared if not one["fits"]] == []


@pytest.mark.parametrize("fault", ["fast-clock", "slow-clock"])
def test_a_device_clock_beyond_the_allowed_drift_fails(check: Check, fault: str) -> None:
    real = check.stage.environment(limited=False)["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    check.driver("faulty", FAULTY_DRIVER=fault, FAULTY_DRIVER_REAL=real)
    row = facts(check, "clock of events")["clock of events"]
    assert row["outcome"] == "failed"
    assert row["drift_ppm"] == pytest.approx(300 if fault == "fast-clock" else -300, abs=3)


def test_a_drift_that_the_check_allows_for_makes_no_mark_late(check: Check) -> None:
    """Without a term for drift, 50 ppm would make most looks late."""
    series = check.module("gpu_series")
    host = [500.0] * 6000
    late = series.lateness_us(host, [us * (1 + 50e-6) for us in host], drift=1e-4)
    assert max(late) == 0
    assert max(series.lateness_us(host, [us * (1 + 50e-6) for us in host], drift=0.0)) > 50


def test_marks_that_come_at_once_whoever_s_turn_it_is_are_told_and_fail_nothing(
    check: Check,
) -> None:
    real = check.stage.environment(limited=False)["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    check.driver("faulty", FAULTY_DRIVER="marks-at-once", FAULTY_DRIVER_REAL=real)
    found = facts(check, "marks alone", "marks beside")
    assert found["marks alone on the device"]["outcome"] == "passed"
    for name in ("marks beside kernels of 5 ms", "marks beside kernels of 50 ms"):
        assert found[name]["outcome"] == "passed"
        assert found[name]["late"] < 0.2


def test_a_sample_that_is_longer_than_the_library_waits_for_does_not_fit(check: Check) -> None:
    check.machine("context_mib=300", "sample_ms=4000")
    name = "NVML's samples of a device that is always busy"
    row = facts(check, name)[name]
    assert row["outcome"] == "failed"


def test_a_context_that_costs_nothing_fails(check: Check) -> None:
    check.machine("context_mib=0")
    row = facts(check, "memory of contexts")["memory of contexts and modules"]
    assert row["outcome"] == "failed"
    assert row["why"] == "a context takes nothing of the device"
    pids = check.module("gpu_pids").Pids(check.tools())
    (seen, _) = pids.rows(check.deadline(), may_unshare=False)
    assert seen["outcome"] == "failed"
    assert seen["why"].startswith("a context takes ")


def test_an_nvml_that_takes_milliseconds_fails(check: Check) -> None:
    """It is called in launches and allocations, which should cost next to nothing."""
    check.stage.control("slow", "0", "3")
    row = facts(check, "calls with 1 context")["cost of NVML's calls with 1 context"]
    assert row["outcome"] == "failed"
    assert row["us"]["list"]["median"] >= 3000
    assert "A kernel launch costs little more." in row["limits"]
    (slow,) = row["calibrations"]
    assert (slow["constant"], slow["fits"]) == ("libvgpu/src/throttle.c: SLOW_NS", False)


@pytest.mark.parametrize(
    ("function", "case"),
    [
        ("nvmlDeviceGetComputeRunningProcesses", "PIDs as this check sees them"),
        ("nvmlDeviceGetProcessUtilization", "NVML's samples of a device that is always busy"),
    ],
)
def test_an_nvml_call_that_answers_with_an_error_fails_its_case(
    check: Check, function: str, case: str
) -> None:
    check.stage.control("error", "0", function, "999")
    if case.startswith("PIDs"):
        pids = check.module("gpu_pids").Pids(check.tools())
        row, _ = pids.rows(check.deadline(), may_unshare=False)
    else:
        row = facts(check, case)[case]
    assert row["outcome"] == "failed"
    assert "no answer (999)" in row["why"] or row["why"] == "no sample was shown"


def test_pids_are_compared_outside_a_namespace_and_in_one(check: Check) -> None:
    pids = check.module("gpu_pids").Pids(check.tools())
    outside, inside = pids.rows(check.deadline(), may_unshare=os.geteuid() == 0)
    assert outside["outcome"] == "passed", outside["why"]
    assert outside["own_pid"] == outside["outer_pid"]
    assert outside["memory_shown"]["compute"] == outside["context_bytes_of_device"]
    assert inside["outcome"] == "passed", inside["why"]
    assert (inside["own_pid"], inside["nspid"]) == (1, [1])
    assert inside["outer_pid"] > 1


def test_without_the_right_to_a_namespace_the_case_is_not_run(check: Check) -> None:
    pids = check.module("gpu_pids").Pids(check.tools())
    _, inside = pids.rows(check.deadline(), may_unshare=False)
    assert inside["outcome"] == "not run"


@pytest.mark.parametrize("cuda", GENERATIONS)
def test_drivers_of_every_generation_are_measured(check: Check, cuda: str) -> None:
    check.machine("context_mib=300", f"cuda={cuda}")
    if cuda == "11.4":
        check.driver("driver_11_4")
    found = facts(check, "memory of contexts", "pairs around 100", "queue", "streams", "contexts")
    assert why(found) == {}
    entries = check.module("gpu_entry").Entries(check.tools().library)
    (row,) = entries.driver_rows(check.deadline())
    assert row["outcome"] == "passed", row["why"]
    assert row["form"] == ("cuGetProcAddress" if cuda == "11.4" else "cuGetProcAddress_v2")
    (row,) = entries.library_rows(check.deadline())
    assert row["outcome"] == "passed", row["why"]
    assert row["looked_up"] > 300


def test_a_driver_without_cugetprocaddress_is_measured(check: Check) -> None:
    check.machine("context_mib=300", "cuda=11.0")
    check.driver("driver_11_0")
    found = facts(check, "memory of contexts", "pairs around 100", "queue")
    assert why(found) == {}
    (row,) = check.module("gpu_entry").Entries(check.tools().library).driver_rows(check.deadline())
    assert row["outcome"] == "not run"


@pytest.mark.parametrize(
    ("mode", "prefixes", "count"),
    [("mps", ("turns", "marks beside"), 5), ("mig", ("NVML's samples",), 5)],
)
def test_what_mps_and_mig_do_away_with_is_not_run(
    check: Check, mode: str, prefixes: tuple[str, ...], count: int
) -> None:
    driver = check.module("gpu_driver")
    part = driver.Facts(check.tools(), **{mode: True})
    check.monkeypatch.setattr(part, "bodies", lambda: [(n, no_body, 0.1) for n in names(check)])
    found = {row["case"]: row["outcome"] for row in part.rows(check.deadline())}
    without = {name for name, outcome in found.items() if outcome == "not run"}
    assert without == {name for name in found if name.startswith(prefixes)}
    assert len(without) == count


def names(check: Check) -> list[str]:
    return [name for name, _, _ in check.module("gpu_driver").Facts(check.tools()).bodies()]


def no_body(own: object) -> dict[str, Any]:
    return {}


def test_a_driver_that_never_answers_fails_every_case_within_the_deadline(check: Check) -> None:
    hangs = check.stage.folder / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    driver = check.module("gpu_driver")
    check.monkeypatch.setattr(driver, "START_S", 0.1)
    tools = check.tools(spin=hangs, measure=hangs)
    rows = list(driver.Facts(tools).rows(check.deadline(1)))
    assert {row["outcome"] for row in rows} == {"failed"}
    assert rows[-1]["why"].startswith("no time left for it")
