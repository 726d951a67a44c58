"""What the bench report adds to the figures of the bench programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[3] / "libvgpu" / "tools" / "bench.py"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("libvgpu_bench", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_figures_get_their_ratio_to_the_direct_call(report: ModuleType) -> None:
    figures = {"call_ns": {"direct": 2.0, "shim": 5.0, "busy": 8.0}, "overshoot_bytes": 0}
    ratios = report.with_ratios(figures)["ratios"]
    assert ratios == {"call_ns.shim": 2.5, "call_ns.busy": 4.0}


def test_figures_without_a_direct_call_have_none(report: ModuleType) -> None:
    figures = {"kill_ms": {"median": 1.0, "worst": 2.0}, "init_ms": {"direct": 0.0, "shim": 1.0}}
    assert report.with_ratios(figures) == {**figures, "ratios": {}}
