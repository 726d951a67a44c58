"""The check for real drivers as a whole, on the simulated driver and without any.

It needs root, which CI has, for the place of a container and PID namespaces.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Check

pytestmark = pytest.mark.real_time

TOOL = Path(__file__).resolve().parents[3] / "libvgpu" / "tools" / "gpu_check.py"
CONTEXT = 300 << 20
# Replaces vgpu-probe: a device that holds the allocations and a context for each process.
BLIND = """
import json, os, sys, time
from pathlib import Path
here, limit = Path(sys.argv[0]).parent, int(os.environ.get("CUDA_DEVICE_MEMORY_LIMIT", 0))

def used():
    held = [path for path in here.glob("hold-*") if Path("/proc", path.name[5:]).exists()]
    return sum(int(path.read_text()) for path in held)

def answer(word, *numbers):
    if word == "info":
        views = dict.fromkeys(("cuda_total", "nvml_total", "cuda_free"), limit)
        return {"devices": [{**views, "nvml_used": used()}]}
    if word == "fill":
        return {"filled": limit}
    return {"result": 2 if numbers and int(numbers[0]) > limit else 0}

if sys.argv[1] == "hold":
    Path(here, f"hold-{os.getpid()}").write_text(str(int(sys.argv[2]) + (300 << 20)))
    print(json.dumps({"result": 0}), flush=True)
    time.sleep(float(sys.argv[3]))
else:
    for command in sys.argv[2].split(";"):
        word, *numbers = command.split()
        print(json.dumps(answer(word, *[one for one in numbers if one.isdigit()])))
"""
STAND_IN = """
#include <stddef.h>
typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemGetInfo_v2(size_t *, size_t *), cuMemAlloc_v2(address *, size_t);
extern int cuMemFree_v2(address), cuCtxSynchronize(void);
static int start(void)
{
    void *context;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}
int cudaFree(void *at) { return at ? cuMemFree_v2((address)at) : start(); }
int cudaMemGetInfo(size_t *free, size_t *total) { return cuMemGetInfo_v2(free, total); }
int cudaMalloc(void **out, size_t bytes) { return cuMemAlloc_v2((address *)out, bytes); }
int cudaGetLastError(void) { return 0; }
int cudaDeviceSynchronize(void) { return cuCtxSynchronize(); }
"""


def run(check: Check, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    tools = check.tools()
    programs = ("--spin", tools.spin, "--measure", tools.measure, "--library", tools.library)
    return subprocess.run(
        [sys.executable, TOOL, out, *programs, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def rows(findings: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    return {row["case"]: row for row in findings["parts"][part]["rows"]}


def test_both_parts_are_written_to_one_file_and_printed_as_one_table(
    check: Check, tmp_path: Path
) -> None:
    out = tmp_path / "bench" / "gpu.json"
    first = run(check, out, "--part", "1", "--only", "pids", "--only", "entries")
    assert first.returncode == 0, first.stdout + first.stderr
    second = run(check, out, "--part", "2", "--only", "memory", "--only", "entries")
    assert second.returncode == 0, second.stdout + second.stderr
    findings = json.loads(out.read_text())
    assert findings["schema"] == "vgpu-gpu-check/1"
    assert findings["failures"] == []
    assert sorted(findings["parts"]) == ["1", "2"]
    assert all(part["complete"] for part in findings["parts"].values())
    machine = findings["machine"]
    assert (machine["simulated"], machine["driver"], machine["cuda"]) == (True, "570.86.15", 12080)
    for name, row in {**rows(findings, "1"), **rows(findings, "2")}.items():
        assert row["outcome"] in ("simulated", "not run"), name
        assert name[:40] in first.stdout + second.stdout
    for part in (4, 2):
        row = rows(findings, "2")[f"memory, 1/{part} of the device"]
        assert row["limit_bytes"] == (80 << 30) // part
        assert row["context_bytes_counted"] == CONTEXT
        assert row["filled_bytes"] == row["limit_bytes"] - CONTEXT
        assert row["uncounted_bytes_of_a_process"] == 0
    assert rows(findings, "2")["memory of 9 processes of a container"]["over_bytes"] <= 0


def test_memory_that_nobody_counts_fails(check: Check, tmp_path: Path) -> None:
    """A library that keeps every limit but that of contexts, which are 300 MiB for each process."""
    blind = tmp_path / "vgpu-probe"
    blind.write_text(f"#!{sys.executable}\n{BLIND}")
    blind.chmod(0o755)
    memory = check.module("gpu_memory")
    found = list(
        memory.Memory(check.tools(probe=blind)).rows(
            80 << 30, check.deadline(120), may_unshare=False
        )
    )
    for row in found[:2]:
        assert (
            row["why"] == f"{CONTEXT} bytes of a process are on the device and nobody counts them"
        )
        assert row["limits"] == ["The memory of a container stays within its limit"]
    assert found[2]["why"].startswith("the device holds ")
    assert 0 < 9 * CONTEXT - found[2]["over_bytes"] < 9 * (2 << 20)


@pytest.mark.parametrize(
    ("pids", "bytes_shown", "list_speaks", "samples_speak"),
    [
        ("host", "shown", "outer", "outer"),
        ("mixed", "zero", "own", "outer"),
        ("own", "shown", "own", "own"),
    ],
)
def test_the_library_is_checked_in_a_namespace_whichever_pids_the_driver_shows(
    check: Check, pids: str, bytes_shown: str, list_speaks: str, samples_speak: str
) -> None:
    """Closed modules; open ones of 535 to 560; open ones from 570 on."""
    check.machine("context_mib=300", f"pids={pids}", f"bytes={bytes_shown}")
    asked = check.module("gpu_pids").Pids(check.tools())
    outside, inside = asked.rows(check.deadline(), may_unshare=True)
    assert (outside["outcome"], inside["outcome"]) == ("passed", "passed"), inside["why"]
    speaks = inside["speaks"]
    assert (speaks["compute"], speaks["samples"]) == (list_speaks, samples_speak)
    assert (inside["memory_shown"]["compute"] == 0) == (bytes_shown == "zero")
    assert inside["memory_shown_outside"] == CONTEXT + 512  # and four bytes of its own, rounded up
    memory = check.module("gpu_memory")
    *_, row = memory.Memory(check.tools()).rows(80 << 30, check.deadline(), may_unshare=True)
    assert row["outcome"] == "passed", row["why"]
    compute = check.module("gpu_compute")
    for name in ("ALONE", "GRAPH_SHARES", "COMPANY"):
        check.monkeypatch.setattr(compute, name, ())
    shares = compute.Shares(check.tools())
    found = {row["case"]: row for row in shares.rows(check.deadline(), may_unshare=True)}
    lone = found["a lone tenant of policy Default in a PID namespace"]
    assert lone["outcome"] == "passed", lone["why"]


def test_a_check_in_a_container_whose_driver_shows_the_host_s_pids_fails(
    check: Check, tmp_path: Path
) -> None:
    """An example is a rented machine that is itself a container: its PIDs outside are unknown."""
    tools, out = check.tools(), tmp_path / "gpu.json"
    programs = ("--spin", tools.spin, "--measure", tools.measure)
    words = ("--part", "1", "--only", "pids")
    done = subprocess.run(
        ["unshare", "-pf", "--mount-proc", sys.executable, TOOL, out, *programs, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    findings = json.loads(out.read_text())
    assert findings["machine"]["pid_namespace"] != "first"
    row = rows(findings, "1")["PIDs as this check sees them"]
    assert row["outcome"] == "failed"
    assert "by no PID that it can know" in row["why"]
    assert "A share of compute is kept." in findings["limits_shown_wrong"]


def test_the_simulated_driver_can_be_set_from_what_was_measured(
    check: Check, tmp_path: Path
) -> None:
    """The file from a measured machine describes it and differs from the default driver."""
    settings = ("driver=550.54.14", "cuda=12.4", "context_mib=450", "slice_us=1500")
    settings += ("switch_us=0", "sample_ms=160", "nvml_lag_ms=240", "pids=mixed", "bytes=zero")
    check.machine(*settings)
    report, tools = check.module("gpu_report"), check.tools()
    machine = check.module("gpu_check").identify(tools)
    found = report.Report(tmp_path / "gpu.json", machine)
    found.begin("1")
    for row in check.module("gpu_pids").Pids(tools).rows(check.deadline(), may_unshare=True):
        found.add("1", row)
    facts, case = check.module("gpu_driver").Facts(tools), check.module("gpu_case")
    for name, body, _ in facts.bodies():
        if name.startswith(("memory of", "NVML's samples of a dev", "turns of two processes, 500")):
            found.add("1", case.case(name, body, limit_s=30, deadline=check.deadline()))
    *lines, card = json.loads((tmp_path / "gpu.json").read_text())["machine_file"]
    assert sorted(lines) == sorted(settings)
    assert card == (
        "card uuid=GPU-6f3c1c2e-0000-4000-8000-000000000000 "
        'model="NVIDIA A100-SXM4-80GB" memory_mib=81920 mig=off cc=8.0 sms=108'
    )
    check.stage.machine.write_text("\n".join([*lines, card]) + "\n")
    assert check.module("gpu_check").identify(tools)["driver"] == "550.54.14"


def test_without_a_driver_it_says_so_and_fails(check: Check, tmp_path: Path) -> None:
    check.monkeypatch.delenv("VGPU_FAKE_MACHINE")
    done = run(check, tmp_path / "gpu.json")
    assert done.returncode == 1
    assert "nothing was checked" in done.stdout
    assert not (tmp_path / "gpu.json").exists()


def test_a_part_stays_within_its_time_and_leaves_what_it_has(check: Check, tmp_path: Path) -> None:
    """Three seconds are not enough for all cases, and the remaining ones count as failed."""
    out, began = tmp_path / "gpu.json", time.monotonic()
    done = run(check, out, "--part", "2", "--only", "compute", "--seconds", "3")
    assert time.monotonic() - began < 60
    assert done.returncode == 1
    found = rows(json.loads(out.read_text()), "2")
    assert found["mean error of all shares"]["outcome"] == "failed"
    assert any(row["why"].startswith("no time left for it") for row in found.values())


def test_a_driver_that_hangs_is_a_finding_and_not_a_check_that_never_ends(
    check: Check, tmp_path: Path
) -> None:
    hangs = tmp_path / "vgpu-probe"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    memory = check.module("gpu_memory")
    check.monkeypatch.setattr(memory, "PROBE_S", 0.4)
    part = memory.Memory(check.tools(probe=hangs))
    found = list(part.rows(80 << 30, check.deadline(1.0), may_unshare=False))
    assert found[0]["why"] == "vgpu-probe: not done after 0 s"
    assert found[-1]["outcome"] == "failed"


def test_a_container_s_place_has_the_agent_s_page_the_shadow_and_the_preload_file(
    check: Check,
) -> None:
    container = check.module("gpu_container")
    place = container.Container(check.tools(), "GPU-6f3c1c2e-0000-4000-8000-000000000000", 80 << 30)
    found = place.rows(check.deadline(120), may_unshare=True)
    assert [row["why"] for row in found] == ["", "", ""]
    denial, memory, share = found
    assert denial["outcome"] == "passed"
    assert memory["filled_bytes"] >= (20 << 30) - 3 * CONTEXT
    assert memory["peak_in_region"][0] == 20 << 30
    assert share["host_pids_written"] == 1
    assert not Path("/usr/local/vgpu/limits").exists()


def test_without_root_a_container_s_place_is_not_run(check: Check) -> None:
    place = check.module("gpu_container").Container(check.tools(), "GPU-1", 80 << 30)
    found = place.rows(check.deadline(), may_unshare=False)
    assert {row["outcome"] for row in found} == {"not run"}


@pytest.fixture
def cudart(check: Check, tmp_path: Path) -> Path:
    """A stand-in for CUDA's runtime library that goes straight to the driver."""
    built = tmp_path / "libcudart.so.12"
    driver = f"-L{check.stage.environment(limited=False)['LD_LIBRARY_PATH']}"
    words: Sequence[str | Path] = ("gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", built, driver)
    subprocess.run([*words, "-l:libcuda.so.1"], input=STAND_IN, text=True, check=True)
    return built


def test_a_runtime_library_that_is_here_is_tried(check: Check, cudart: Path) -> None:
    check.monkeypatch.setenv("GPU_CHECK_CUDART", str(cudart))
    runtime = check.module("gpu_cudart")
    (row,) = runtime.Runtime(check.tools()).rows(80 << 30, check.deadline())
    assert row["outcome"] == "passed", row["why"]
    assert row["file"] == str(cudart)
    assert row["answers"]["cudaMalloc"] == [2, 0]
    (bare,) = runtime.Runtime(check.tools(library="/nowhere.so")).rows(80 << 30, check.deadline())
    assert bare["outcome"] == "failed"
    assert "the library was not loaded" in bare["why"]


def test_a_machine_without_a_runtime_library_says_so(check: Check) -> None:
    runtime = check.module("gpu_cudart")
    check.monkeypatch.setattr(runtime, "PLACES", ())
    check.monkeypatch.setattr(runtime, "IN_PACKAGES", "none/*")
    (row,) = runtime.Runtime(check.tools()).rows(80 << 30, check.deadline())
    assert row["outcome"] == "not run"


def test_costs_are_measured_with_and_without_the_library(check: Check) -> None:
    costs = check.module("gpu_costs")
    calls, start = costs.Costs(check.tools()).rows(check.deadline())
    assert set(calls["more_ns"]["launch"]) == {"memory", "share"}  # both were under the library
    assert len(calls["series"]["direct"]["launch"]) > 90
    assert start["outcome"] == "passed", start["why"]
