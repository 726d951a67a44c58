"""The bench report adds ratios and bars to the figures of the bench programs."""

from __future__ import annotations

from types import ModuleType


def test_figures_get_their_ratio_to_the_direct_call(report: ModuleType) -> None:
    figures = {"call_ns": {"direct": 2.0, "shim": 5.0, "busy": 8.0}, "overshoot_bytes": 0}
    ratios = report.with_ratios(figures)["ratios"]
    assert ratios == {"call_ns.shim": 2.5, "call_ns.busy": 4.0}


def test_figures_without_a_direct_call_have_none(report: ModuleType) -> None:
    figures = {"kill_ms": {"median": 1.0, "worst": 2.0}, "init_ms": {"direct": 0.0, "shim": 1.0}}
    assert report.with_ratios(figures) == {**figures, "ratios": {}}


def test_the_limiter_s_runs_become_one_report(report: ModuleType) -> None:
    def run(seed: int, error: float, throughput: float, missed: int) -> dict[str, object]:
        return {
            "seed": seed,
            "scenes": 280,
            "mean_error_points": {"worst": error, "mean": error / 10},
            "throughput_of_share": {"worst": throughput, "mean": 1.0},
            "missed": {"error": missed, "throughput": 0},
        }

    joined = report.over_seeds([run(7, 2.0, 0.97, 0), run(9, 6.0, 0.94, 2)])
    assert joined == {
        "seeds": [7, 9],
        "scenes": 560,
        "mean_error_points": {"worst": 6.0, "mean": 0.4},
        "throughput_of_share": {"worst": 0.94, "mean": 1.0},
        "missed": {"error": 2, "throughput": 0},
    }
