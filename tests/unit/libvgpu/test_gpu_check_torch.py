"""The PyTorch part of the check for real drivers: PyTorch's stand-in on the simulated one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = pytest.mark.real_time

HERE = Path(__file__).parent
TOOLS = HERE.parents[2] / "libvgpu" / "tools"
DEVICE = 80 << 30

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def check(stage: Stage, native: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Run the part with PyTorch's stand-in in some mode; None: without it."""
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in stage.environment(limited=False).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/nowhere")  # no other Python of this machine
    monkeypatch.syspath_prepend(TOOLS)
    memory, torch = importlib.import_module("gpu_memory"), importlib.import_module("gpu_torch")
    tools = importlib.import_module("gpu_tools")
    library = native / "libvgpu.so"

    def rows(mode: str | None = "", *, used: Callable[[], int] | None = None) -> Any:
        if mode is not None:
            monkeypatch.setenv("PYTHONPATH", str(HERE / "stand_in_torch"))
            monkeypatch.setenv("STAND_IN_TORCH", mode)
        if mode == "escapes" or used is not None:
            monkeypatch.setattr(torch, "SHARES", ())  # they are not tested here
        if mode == "hangs":
            monkeypatch.setattr(torch, "IMPORT_S", 1)
        probe = memory.Memory(tools.Tools(library=library))
        asked = used or (lambda: probe.used(torch.Deadline(100)))
        part = torch.Torch(library, asked, scale=0.05)
        return part.rows(DEVICE, torch.Deadline(100))

    return rows


def test_every_allocator_graphs_and_shares_have_a_row_each(check: Rows) -> None:
    first, *found = check()
    assert first["outcome"] == "found"
    by_name = {row["case"]: row for row in found}
    for allocator in ("caching allocator", "expandable segments", "cudaMallocAsync"):
        for part in (4, 2):
            row = by_name[f"{allocator}, 1/{part} of the card"]
            assert row["outcome"] == "passed", row
            assert row["held_bytes"] == row["nvml_bytes"] == DEVICE // part
    assert by_name["graphs, 1/4 of the card"]["outcome"] == "passed"
    for name in ("stream, 25 %", "stream, 50 %", "stream, 75 %", "graph, 50 %"):
        assert by_name[name]["share_percent"] > 0  # windows this short prove no more


def test_without_pytorch_one_row_says_so(check: Rows) -> None:
    (row,) = check(None)
    assert row["outcome"] == "not run"
    assert "No module named 'torch'" in row["why"]


def test_a_pytorch_that_finds_no_device_passes_nothing(check: Rows) -> None:
    (row,) = check("no-card")
    assert row["outcome"] == "not run"
    assert "PyTorch stand-in finds no card" in row["why"]


@pytest.mark.parametrize(("mode", "why"), [("dies", "status -6"), ("hangs", "not done after 1 s")])
def test_a_pytorch_that_dies_or_hangs_passes_nothing(check: Rows, mode: str, why: str) -> None:
    (row,) = check(mode)
    assert row["outcome"] == "not run"
    assert why in row["why"]


def test_memory_beyond_the_limit_fails_whoever_shows_it(check: Rows) -> None:
    failed = {row["case"]: row["why"] for row in check("escapes") if row["outcome"] == "failed"}
    assert "it took" in failed["caching allocator, 1/4 of the card"]
    looks = iter([0, DEVICE] * 100)  # NVML before a case, and while it holds what it got
    failed = {
        row["case"]: row["why"]
        for row in check("", used=lambda: next(looks))
        if row["outcome"] == "failed"
    }
    assert "NVML shows" in failed["expandable segments, 1/2 of the card"]
