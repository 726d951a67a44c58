"""The rows of `make userland`, with programs of our own in place of the packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def case(
    userland: ModuleType, native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A program that `userland` runs as "cuda-bindings"; it wants a total of 1024 of it."""
    program = tmp_path / "case.py"
    monkeypatch.setattr(userland, "BUILD", native)
    monkeypatch.setattr(userland, "CASE", program)
    monkeypatch.setattr(userland, "WANTED", {"cuda-bindings": {"total_mib": 1024}})
    return program


_TOTAL = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
total = ctypes.c_size_t()
cuda.cuInit(0)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
cuda.cuCtxGetSharedMemConfig(None)
print("a line before")
print(json.dumps({"total_mib": total.value >> 20}))
"""


def test_a_program_that_sees_its_slice_is_right_and_names_what_is_not_simulated(
    userland: ModuleType, case: Path
) -> None:
    case.write_text(_TOTAL)
    row = userland.run("cuda-bindings", sys.executable)
    assert row == {
        "program": "cuda-bindings",
        "ran": True,
        "saw": {"total_mib": 1024},
        "wrong": [],
        "not_simulated": ["cuCtxGetSharedMemConfig"],
    }


def test_a_program_that_stops_at_the_runtime_library_says_why(
    userland: ModuleType, case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.write_text(_TOTAL)
    monkeypatch.setattr(userland, "STOPS", {"cuda-bindings": "it needs a driver"})
    row = userland.run("cuda-bindings", sys.executable)
    assert row["ran"]
    assert row["why"] == "it needs a driver"


def test_pytorch_that_is_not_installed_is_named_with_what_installs_it(userland: ModuleType) -> None:
    row = userland.pytorch([])
    assert not row["ran"]
    assert "PYTORCH=1" in row["why"]


def test_pytorch_is_run_by_the_python_that_has_it(
    userland: ModuleType, case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.write_text(_TOTAL)
    monkeypatch.setattr(userland, "WANTED", {"PyTorch": {"total_mib": 1024}})
    row = userland.pytorch([sys.executable])
    assert (row["program"], row["ran"], row["wrong"]) == ("PyTorch", True, [])
    assert "libcudart" in row["why"]


def test_a_program_that_sees_more_than_its_slice_is_wrong(userland: ModuleType, case: Path) -> None:
    case.write_text(_TOTAL.replace("total.value >> 20", "16384"))
    row = userland.run("cuda-bindings", sys.executable)
    assert row["wrong"] == ["total_mib is 16384, wanted 1024"]


def test_a_program_that_ends_in_an_error_did_not_run_and_says_why(
    userland: ModuleType, case: Path
) -> None:
    case.write_text("raise SystemExit('no such thing')")
    row = userland.run("cuda-bindings", sys.executable)
    assert (row["ran"], row["wrong"]) == (False, ["no such thing"])
