"""What the bench report adds to the figures of the bench programs."""

from __future__ import annotations

from types import ModuleType


def test_figures_get_their_ratio_to_the_direct_call(report: ModuleType) -> None:
    figures = {"call_ns": {"direct": 2.0, "shim": 5.0, "busy": 8.0}, "overshoot_bytes": 0}
    ratios = report.with_ratios(figures)["ratios"]
    assert ratios == {"call_ns.shim": 2.5, "call_ns.busy": 4.0}


def test_figures_without_a_direct_call_have_none(report: ModuleType) -> None:
    figures = {"kill_ms": {"median": 1.0, "worst": 2.0}, "init_ms": {"direct": 0.0, "shim": 1.0}}
    assert report.with_ratios(figures) == {**figures, "ratios": {}}
