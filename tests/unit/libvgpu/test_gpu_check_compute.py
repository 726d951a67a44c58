"""The compute part of the check for real drivers, on the simulated one in virtual time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Check, Stage

pytestmark = pytest.mark.real_time

ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def fewer(check: Check) -> None:
    """Reduce each kind of case to the few that a test needs."""
    compute = check.module("gpu_compute")
    check.monkeypatch.setattr(compute, "ALONE", ((500, (25, 75)), (50_000, (25,))))
    check.monkeypatch.setattr(compute, "GRAPH_SHARES", (75,))
    company = (((5_000, 25), (5_000, 50)), ((50_000, 25), (500, 75)))
    check.monkeypatch.setattr(
        compute, "COMPANY", (*company, ((5_000, 20), (500, 30), (50_000, 50)))
    )


def leave(check: Check, *kinds: str) -> None:
    """Keep only these of the kinds that have lists."""
    for name in {"ALONE", "GRAPH_SHARES", "COMPANY"}.difference(kinds):
        check.monkeypatch.setattr(check.module("gpu_compute"), name, ())


def rows(check: Check, *, seconds: float = 200, **replaced: Any) -> dict[str, dict[str, Any]]:
    """Measure every case; return the rows by name."""
    shares = check.module("gpu_compute").Shares(check.tools(**replaced))
    deadline = check.deadline(seconds)
    return {row["case"]: row for row in shares.rows(deadline, may_unshare=ROOT)}


def idle_library(folder: Path) -> Path:
    """Build a library that limits nothing: its name is right, and it is loaded."""
    idle = folder / "libvgpu.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", idle], check=True)
    return idle


def test_shares_that_hold_pass_alone_in_company_and_as_graphs(check: Check) -> None:
    found = rows(check)
    shares = {
        name: row["why"]
        for name, row in found.items()
        if row["outcome"] != "passed" and ("error_points" in row or "mean" in name)
    }
    assert shares == {}
    assert found["kernels of 50000 us, 25 %"]["error_points"] < 3
    assert found["graphs of 50 kernels of 100 us, 75 %"]["error_points"] < 3
    assert len(found["containers of 25 % of 50000 us and 75 % of 500 us"]["share_percent"]) == 2
    three = "containers of 20 % of 5000 us and 30 % of 500 us and 50 % of 50000 us"
    assert len(found[three]["share_percent"]) == 3
    assert found["two processes of one container of 50 %"]["outcome"] == "passed"
    assert found["contexts reset under 50 %"]["resets"] >= 5
    assert found["mean error of all shares"]["shares"] == 12
    lone = found["a lone tenant of policy Default"]
    assert (lone["outcome"], lone["host_pids_written"]) == ("passed", 1), lone["why"]


def test_a_share_that_does_not_hold_fails_and_says_by_how_much(
    check: Check, tmp_path: Path
) -> None:
    leave(check, "ALONE")
    found = rows(check, library=idle_library(tmp_path))
    alone = found["kernels of 500 us, 25 %"]
    assert (alone["outcome"], alone["why"]) == ("failed", "100.0 % instead of 25")
    assert alone["limits"] == ["A share of compute is kept."]
    assert found["a process for each kernel"]["outcome"] == "failed"
    assert found["a process for each kernel"]["share_percent"] > 90
    assert found["contexts reset under 50 %"]["why"].endswith("instead of 50 to 63")
    assert found["mean error of all shares"]["outcome"] == "failed"


def test_a_lone_tenant_that_is_limited_all_the_same_fails(check: Check) -> None:
    """A permanent share has the same effect as unknown PIDs of NVML."""
    leave(check)
    compute = check.module("gpu_compute")
    force = compute.share
    check.monkeypatch.setattr(compute, "share", lambda percent, policy="": force(percent, "force"))
    lone = rows(check)["a lone tenant of policy Default"]
    assert lone["outcome"] == "failed"
    assert lone["share_percent"] == pytest.approx(25, abs=1)
    assert lone["why"].endswith("% of the device, though nobody else computes")


def test_a_library_that_is_not_there_is_not_taken_for_one_that_keeps_the_limit(
    check: Check, tmp_path: Path
) -> None:
    """The loader continues without a library that it cannot find."""
    leave(check, "ALONE")
    found = rows(check, library=tmp_path / "libvgpu.so")
    assert {row["outcome"] for row in found.values()} <= {"failed", "not run"}
    reasons = {row["why"] for name, row in found.items() if "error_points" not in row}
    assert "the library was not loaded" in reasons


def test_a_program_that_hangs_is_ended_and_what_has_no_time_left_fails(
    check: Check, tmp_path: Path
) -> None:
    hangs = tmp_path / "spin"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    compute = check.module("gpu_compute")
    check.monkeypatch.setattr(compute, "START_S", 0.2)
    check.monkeypatch.setattr(compute, "UNLIMITED_S", 0.1)
    found = list(rows(check, seconds=1, spin=hangs).values())
    assert {row["outcome"] for row in found} <= {"failed", "not run"}
    assert found[0]["why"] == "spin: not done after 1 s"
    assert found[2]["why"].startswith("no time left for it")


def test_what_a_program_says_that_fails_is_the_reason(check: Check) -> None:
    check.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = list(rows(check).values())
    assert {row["outcome"] for row in found} <= {"failed", "not run"}
    said = json.loads(found[0]["why"].split(": ", 2)[2])
    assert said["result"] != 0


def test_a_module_of_ptx_has_the_kernels_that_it_declares_and_no_others(
    stage: Stage, native: Path
) -> None:
    program = (
        "import ctypes\n"
        "cu = ctypes.CDLL('libcuda.so.1')\n"
        "context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()\n"
        "cu.cuInit(0)\n"
        "cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\n"
        "cu.cuCtxSetCurrent(context)\n"
        "text = b'.version 6.0\\n.visible .entry there(.param .u64 x)\\n{ ret; }\\n'\n"
        "answer = [cu.cuModuleLoadData(ctypes.byref(module), text)]\n"
        "for name in (b'there', b'ther', b'elsewhere'):\n"
        "    answer.append(cu.cuModuleGetFunction(ctypes.byref(function), module, name))\n"
    )
    assert stage.python(program) == [0, 0, 500, 500]
