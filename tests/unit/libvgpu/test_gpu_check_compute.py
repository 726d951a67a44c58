"""The compute part of the check for real drivers, on the simulated one in virtual time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

NATIVE = Path(__file__).resolve().parents[3] / "libvgpu"
TOOLS = NATIVE / "tools"
SPIN = NATIVE / "build" / "tests" / "vgpu-spin"
VIRTUAL = NATIVE / "build" / "tests" / "virtual" / "libvgpu.so"


@pytest.fixture
def compute(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The part as a module, on a machine of its own, with fewer kernels and shares."""
    subprocess.run(["make", "-s", "-C", NATIVE, "build/tests/vgpu-spin"], check=True)
    env = stage.environment(limited=False) | {"VGPU_VIRTUAL_TIME": str(stage.folder / "time")}
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(TOOLS)
    module = importlib.import_module("gpu_compute")
    monkeypatch.setattr(module, "KERNELS_US", (500, 50_000))
    monkeypatch.setattr(module, "SHARES", (25, 75))
    return module


def rows(compute: Any, spin: Path, library: Path, *, seconds: float = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = compute.Bench(spin, library).rows(compute.Deadline(seconds))
    return found


def test_shares_that_hold_pass_alone_in_company_and_as_graphs(
    compute: ModuleType, native: Path
) -> None:
    found = rows(compute, SPIN, VIRTUAL)
    assert [row["case"] for row in found if row["outcome"] != "passed"] == []
    names = [row["case"] for row in found]
    assert "kernels of 50000 us, 25 %" in names
    assert "graphs of 50 kernels of 100 us, 75 %" in names
    assert "kernels of 500 us, two containers of 25 and 50 %" in names
    assert "kernels of 500 us, two processes of one container of 50 %" in names


def test_a_share_that_does_not_hold_fails_and_says_by_how_much(
    compute: ModuleType, native: Path, tmp_path: Path
) -> None:
    """A library that limits nothing: its name is right, and it is loaded."""
    idle = tmp_path / "libvgpu.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", idle], check=True)
    found = {row["case"]: row for row in rows(compute, SPIN, idle)}
    alone = found["kernels of 500 us, 25 %"]
    assert alone["outcome"] == "failed"
    assert alone["why"] == "100.0 % instead of 25"


def test_a_library_that_is_not_there_is_not_taken_for_one_that_keeps_the_limit(
    compute: ModuleType, tmp_path: Path
) -> None:
    """The loader goes on without a library that it does not find."""
    found = rows(compute, SPIN, tmp_path / "libvgpu.so")
    assert {row["outcome"] for row in found} == {"failed"}
    assert {row["why"] for row in found} == {"the library was not loaded"}


def test_a_program_that_hangs_is_ended_and_what_has_no_time_left_fails(
    compute: ModuleType, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "spin"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(compute, "START_S", 0.2)
    monkeypatch.setattr(compute, "UNLIMITED_S", 0.1)
    found = rows(compute, hangs, native / "libvgpu.so", seconds=1)
    assert {row["outcome"] for row in found} == {"failed"}
    assert found[0]["why"] == "spin: not done after 1 s"
    assert found[-1]["why"].startswith("no time left for it")


def test_what_a_program_says_that_fails_is_the_reason(
    compute: ModuleType, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = rows(compute, SPIN, VIRTUAL)
    assert {row["outcome"] for row in found} == {"failed"}
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
