"""The conclusions of the check for real drivers from artificial series, answers and sources."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "libvgpu" / "tools"
SOURCES = sorted([*TOOLS.glob("gpu_*.py"), TOOLS / "entry_case.py", TOOLS / "cudart_case.py"])


Part = Callable[[str], ModuleType]
"""Returns a module of the check by its name."""


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    """Return a module of the check by its name."""
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module


def who(**lists: Any) -> dict[str, Any]:
    """Return an answer of `vgpu-measure who` of PID 7 with 300 MiB, shown by its own PID."""
    shown = {"result": 0, "entries": [[7, 300 << 20]]}
    none: dict[str, Any] = {"result": 0, "entries": []}
    names = ("compute", "graphics", "mps", "compute_v1", "details")
    samples = {"result": 0, "entries": [[7, 90, 1]]}
    return {
        "pid": 7,
        "nspid": [7],
        "used_before": 0,
        "used_after": 300 << 20,
        "before": dict.fromkeys(names, none),
        "after": {**dict.fromkeys(names, none), "compute": lists.get("compute", shown)},
        "samples": lists.get("samples", samples),
        "samples_info": samples,
        "accounting": none,
    }


def test_a_pid_of_another_namespace_fails(part: Part) -> None:
    """A rented container whose driver shows the PIDs of the host, 645400 for our 7."""
    pids = part("gpu_pids")
    foreign = {"result": 0, "entries": [[645400, 300 << 20]]}
    found = pids.described(who(compute=foreign, samples=foreign), outer=7)
    assert (found["speaks"]["compute"], found["speaks"]["samples"]) == ("unknown", "hidden")
    verdict = pids.judged(found)
    assert len(verdict["wrong"]) == 2
    assert "A share of compute is kept." in verdict["limits"]


@pytest.mark.parametrize(
    ("compute", "samples", "speaks", "shown"),
    [
        ([42, 300 << 20], [42, 90, 1], ("outer", "outer"), 300 << 20),
        ([7, 0], [42, 90, 1], ("own", "outer"), 0),
        ([7, (1 << 64) - 1], [7, 90, 1], ("own", "own"), "not available"),
    ],
)
def test_the_language_of_each_call_is_told_apart(
    part: Part, compute: list[int], samples: list[int], speaks: tuple[str, str], shown: object
) -> None:
    """Closed modules; open ones of r535 to r560; newer open ones."""
    pids = part("gpu_pids")
    answer = who(
        compute={"result": 0, "entries": [compute]}, samples={"result": 0, "entries": [samples]}
    )
    found = pids.described(answer, outer=42)
    assert (found["speaks"]["compute"], found["speaks"]["samples"]) == speaks
    assert found["memory_shown"]["compute"] == shown
    assert pids.judged(found)["wrong"] == []


def test_a_list_that_hides_the_process_or_fails_is_wrong(part: Part) -> None:
    pids = part("gpu_pids")
    for answer in ({"result": 0, "entries": []}, {"result": 3, "entries": []}):
        verdict = pids.judged(pids.described(who(compute=answer), outer=42))
        assert len(verdict["wrong"]) == 1


def test_a_drift_is_found_through_the_noise_of_calls(part: Part) -> None:
    host = [n * 20_000.0 for n in range(200)]
    device = [us * (1 + 120e-6) + (n % 3) * 4 for n, us in enumerate(host)]
    assert part("gpu_series").drift_ppm(host, device) == pytest.approx(120, abs=1)


def test_turns_are_read_from_the_ends_of_kernels(part: Part) -> None:
    between = ([500.0] * 3 + [500.0 + 1_800.0]) * 20
    found = part("gpu_series").turns_us(between, 500.0)
    assert set(found["others"]) == {1_800.0}
    assert set(found["own"]) == {2_000.0}


def test_change_overs_that_cost_the_device_fail(part: Part) -> None:
    """Turns of 2 ms, and 0.2 ms lost at each change: both together get 2 / 2.2 of the device."""
    between = ([500.0] * 3 + [500.0 + 2_400.0]) * 20
    alone = {"per_second": 2000.0}
    both = [{"per_second": 2000.0 / 2.2, "between_us": between}] * 2
    row = part("gpu_driver").judge_turns(alone, both, 500.0)
    assert row["wrong"] == ["two processes together run at 90.9% of one: change-overs are not free"]
    assert row["change_over_us"] == pytest.approx(200, rel=0.02)
    free = [{"per_second": 1000.0, "between_us": between}] * 2
    assert part("gpu_driver").judge_turns(alone, free, 500.0)["wrong"] == []


def samples_of(percents: dict[int, int], *, wall: float = 1e15, lag: float = 1e5) -> Any:
    """Return a second of samples by the wall clock, one each tenth of a second and PID."""
    rows = [
        [1e6 + n * 1e5 + lag, wall + n * 1e5 + lag, wall + n * 1e5, pid, percent]
        for n in range(1, 40)
        for pid, percent in percents.items()
    ]
    return {"samples": rows}


DONE = {"began_us": 1e6, "ended_us": 5e6, "busy_percent": 25.0}


def test_samples_that_agree_with_the_work_pass(part: Part) -> None:
    driver = part("gpu_driver")
    row = driver.judge_samples(samples_of({7: 25}), [DONE], period_ms=100, others=0)
    assert row["wrong"] == []
    assert (row["clock"], row["lag_ms"]["median"]) == ("wall", 100.0)


def test_samples_of_a_second_are_not_judged_by_the_one_at_the_edge(part: Part) -> None:
    driver = part("gpu_driver")
    rows = [[2e6 + n * 1e6, 1e15 + n * 1e6 + 1e5, 1e15 + n * 1e6, 7, 100] for n in range(3)]
    busy = {**DONE, "busy_percent": 100.0}
    row = driver.judge_samples({"samples": rows}, [busy], period_ms=1000, others=0)
    assert row["shown_percent"] == {7: 75.0}
    assert row["wrong"] == []


@pytest.mark.parametrize(
    ("percents", "count", "why"),
    [
        ({7: 60}, 1, "25.0 % of work is shown as"),
        ({7: 25, 8: 25}, 1, "1 processes are shown as PIDs [7, 8]"),
        ({7: 25, 8: 95}, 2, "add up to 120 %"),
    ],
)
def test_samples_that_disagree_with_the_work_fail(
    part: Part, percents: dict[int, int], count: int, why: str
) -> None:
    driver = part("gpu_driver")
    row = driver.judge_samples(samples_of(percents), [DONE] * count, period_ms=100, others=0)
    assert why in "; ".join(row["wrong"])


def test_no_sample_at_all_fails(part: Part) -> None:
    row = part("gpu_driver").judge_samples({"samples": []}, [DONE], period_ms=100, others=0)
    assert row["wrong"] == ["no sample was shown"]


def test_costs_beyond_the_promise_fail_and_noise_does_not(part: Part) -> None:
    costs = part("gpu_costs")
    direct = {"library": False, "launch": [2000.0], "alloc_free": [9000.0]}
    near = {"library": True, "launch": [2150.0], "alloc_free": [9100.0]}
    far = {"library": True, "launch": [4000.0], "alloc_free": [9000.0]}
    assert costs.judged_calls(direct, {"memory": near, "share": near})["wrong"] == []
    found = costs.judged_calls(direct, {"memory": far, "share": near})
    assert found["wrong"] == ["launch costs 2000 ns more with a limit of memory"]
    assert found["limits"] == ["A kernel launch costs little more."]
    bare = costs.judged_calls(direct, {"memory": direct, "share": near})
    assert bare["wrong"] == ["memory: the library was not loaded"]


def test_a_look_up_that_leads_past_the_library_fails(part: Part) -> None:
    entry = part("gpu_entry")
    calls = [entry.LookUp("cuMemAlloc", 3020, 0), entry.LookUp("cuMemAlloc", 2000, 0)]
    bare = [["libcuda.so.1", "cuMemAlloc_v2"], ["libcuda.so.1", "cuMemAlloc"]]
    names = {"cuMemAlloc_v2"}
    kept = [["libvgpu.so", "cuMemAlloc_v2"], ["libcuda.so.1", "cuMemAlloc"]]
    assert entry.judged_library(calls, bare, kept, names)["wrong"] == []
    found = entry.judged_library(calls, bare, bare, names)
    assert found["past_the_library"] == ["cuMemAlloc 3020 flags 0"]
    hidden = entry.judged_library(calls[:1], [["libcuda.so.1", None]], [bare[0]], names)
    assert hidden["wrong"]


def test_every_constant_that_a_finding_may_name_is_in_the_sources(part: Part) -> None:
    constants = part("gpu_constants")
    named: set[tuple[str, str]] = set()
    for path in SOURCES:
        named |= set(re.findall(r'"((?:src|fake)/\w+\.[ch])", "(\w+)"', path.read_text()))
    assert len(named) >= 9
    for file, name in named:
        assert constants.constant(file, name) > 0, (file, name)
    with pytest.raises(constants.UnknownConstant):
        constants.constant("src/calibrate.c", "NO_SUCH_NAME")


def test_every_limit_that_a_finding_may_name_is_a_row_of_the_document() -> None:
    """A change of a promise's wording must also change what the check says about it."""
    text = (ROOT / "docs" / "limits.md").read_text()
    named: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                starts = ("A share of", "A kernel launch", "An allocation and", "A process starts")
                if node.value.startswith(
                    (*starts, "The memory of a", "The whole", "Every process")
                ):
                    named.add(node.value)
    assert len(named) >= 6
    for name in named:
        assert f"| {name}" in text, name


def test_the_check_is_written_for_python_3_8() -> None:
    """A machine with a GPU may have no newer one."""
    for path in SOURCES:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        assert "from __future__ import annotations" in path.read_text()
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Match | ast.TryStar), path


@pytest.mark.parametrize(
    ("files", "version", "simulated"),
    [
        ({"proc/driver/nvidia/version": "NVRM version: ... 570.86.15 ..."}, "570.86.15", False),
        ({"proc/driver/nvidia/version": "NVRM version: ... 550.54.14 ..."}, "570.86.15", True),
        ({"dev/nvidiactl": ""}, "570.86.15", False),
        ({"dev/dxg": ""}, "570.86.15", False),
        ({"dev/nvidiactl": ""}, "", True),
        ({}, "570.86.15", True),
    ],
)
def test_a_driver_is_real_by_its_version_file_or_its_device_nodes(
    part: Part,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    version: str,
    simulated: bool,
) -> None:
    monkeypatch.delenv("VGPU_FAKE_MACHINE", raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = part("gpu_machine")
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    assert machine.is_simulated(version, proc=proc, dev=dev) is simulated


@pytest.mark.parametrize(
    ("line", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01", "closed"),
        ("", "unknown"),
    ],
)
def test_the_flavour_of_the_kernel_module_is_read(
    part: Part, tmp_path: Path, line: str, flavour: str
) -> None:
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(line)
    assert part("gpu_machine").kernel_module(tmp_path)["flavour"] == flavour


MACHINE = {
    "device": "H100",
    "uuid": "GPU-1",
    "driver": "570",
    "cuda": 12080,
    "simulated": False,
    "mig": None,
    "total_bytes": 80 << 30,
    "multiprocessors": 0,
}
FAILED = {
    "case": "clock",
    "outcome": "failed",
    "why": "too fast",
    "limits": ["A share of compute is kept."],
    "calibrations": [
        {"constant": "a", "is": 1.0, "measured": 9.0, "unit": "ns", "fits": False},
        {"constant": "b", "is": 1.0, "measured": 1.0, "unit": "ns", "fits": True},
    ],
}


def test_a_report_names_the_limits_and_constants_that_are_wrong(part: Part, tmp_path: Path) -> None:
    report = part("gpu_report")
    found = report.Report(tmp_path / "gpu.json", MACHINE)
    found.begin("1")
    found.add("1", FAILED)
    found.add("1", {"case": "fine", "outcome": "passed", "why": "", "limits": ["not this"]})
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["schema"] == report.SCHEMA
    assert written["failures"] == ["clock: too fast"]
    assert written["limits_shown_wrong"] == {"A share of compute is kept.": ["clock"]}
    assert [one["constant"] for one in written["calibrations"]] == ["a", "b"]
    assert written["parts"]["1"]["complete"] is False
    text = report.summary(written)
    assert "does not fit: a is 1 ns, measured 9 (clock)" in text
    assert "b is" not in text


def test_the_other_part_of_the_same_machine_is_kept_and_of_another_is_not(
    part: Part, tmp_path: Path
) -> None:
    report, path = part("gpu_report"), tmp_path / "gpu.json"
    first = report.Report(path, MACHINE)
    first.begin("1")
    first.add("1", FAILED)
    first.end("1")
    second = report.Report(path, MACHINE)
    second.begin("2")
    second.end("2")
    assert sorted(json.loads(path.read_text())["parts"]) == ["1", "2"]
    assert json.loads(path.read_text())["failures"] == ["clock: too fast"]
    other = report.Report(path, {**MACHINE, "uuid": "GPU-2"})
    other.begin("2")
    assert sorted(json.loads(path.read_text())["parts"]) == ["2"]


def test_an_answer_that_nobody_expected_fails_its_own_case_alone(part: Part) -> None:
    gpu_case = part("gpu_case")

    def body(own: Any) -> dict[str, Any]:
        raise KeyError("us")

    row = gpu_case.case("odd", body, limit_s=1, deadline=gpu_case.Deadline(10))
    assert row["outcome"] == "failed"
    assert row["why"] == "cannot be explained: KeyError: 'us'"
