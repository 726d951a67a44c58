"""What the check for real drivers asks of a driver, on the simulated one in virtual time."""

from __future__ import annotations

import importlib
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
def driver(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The part as a module, on a machine of its own."""
    subprocess.run(["make", "-s", "-C", NATIVE, "build/tests/vgpu-spin"], check=True)
    env = stage.environment(limited=False) | {"VGPU_VIRTUAL_TIME": str(stage.folder / "time")}
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("gpu_driver")


def rows(driver: Any, spin: Path, library: Path) -> dict[str, dict[str, Any]]:
    found = driver.Facts(spin, library).rows(driver.Deadline(200))
    return {row["case"]: row for row in found}


def test_the_simulated_driver_is_as_the_library_takes_it_to_be(
    driver: ModuleType, native: Path
) -> None:
    found = rows(driver, SPIN, VIRTUAL)
    assert {name: row["why"] for name, row in found.items() if row["outcome"] != "passed"} == {}
    assert found["contexts reset under 50 %"]["resets"] >= 5
    assert found["NVML's samples by process"]["clock"] == "wall"
    assert found["NVML's samples by process"]["step_ms"] == 100.0


def test_a_share_that_resets_get_past_fails(driver: ModuleType, tmp_path: Path) -> None:
    """A library that limits nothing: its name is right, and it is loaded."""
    idle = tmp_path / "libvgpu.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", idle], check=True)
    found = rows(driver, SPIN, idle)["contexts reset under 50 %"]
    assert found["outcome"] == "failed"
    assert found["why"].endswith("instead of 50 to 63")
