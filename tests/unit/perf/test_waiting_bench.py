"""The bench of waiting pods runs in every part, and names the bars that are missed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perf import waiting_bench as bench
from vgpu_local.programs import ROOT

pytestmark = pytest.mark.scale


def figures(**changed: Any) -> dict[str, Any]:
    """Return a scene that meets every bar except for the given figures."""
    rounds = {"serves_nobody": {"p99": 20.0}, "serves_one": {"p99": 20.0}}
    met: dict[str, Any] = {
        "pods": 1_000,
        "classes": 100,
        "round_cpu_ms": rounds,
        "loop_busy_ms": {"max": 25.0},
        "filter_cpu_ms": {"p99": 10.0},
        "webhook_ms": {"p99": 50.0},
        "lease_lost": 0,
    }
    return {**met, **changed}


def test_a_figure_at_its_bar_is_not_above_it() -> None:
    assert bench.above(figures()) == []


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"round_cpu_ms": {"serves_one": {"p99": 20.1}}}, "round_p99_ms, serves_one"),
        ({"loop_busy_ms": {"max": 25.1}}, "loop_busy_max_ms"),
        ({"filter_cpu_ms": {"p99": 10.1}}, "filter_cpu_p99_ms"),
        ({"webhook_ms": {"p99": 50.1}}, "webhook_p99_ms"),
        ({"lease_lost": 1}, "lease_lost"),
    ],
)
def test_what_is_above_its_bar_is_named_with_its_scene(changed: Any, missed: str) -> None:
    assert bench.above(figures(**changed)) == [f"{missed}: 1000 pods of 100 classes"]


@pytest.mark.timeout(180)
def test_a_small_run_measures_each_scene(tmp_path: Path) -> None:
    out = tmp_path / "waiting.json"
    subprocess.run(
        (sys.executable, bench.__file__, "--nodes", "100", "--waiting", "12", "--classes", "1", "3",
         "--changes", "2", "--out", str(out)),
        check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    report = json.loads(out.read_text())
    assert [(scene["pods"], scene["classes"]) for scene in report["waiting"]] == [(12, 1), (12, 3)]
    for scene in report["waiting"]:
        assert scene["served"] == 2
        assert scene["filter_ms"]["of"] > 0
        assert scene["webhook_ms"]["of"] > 0
        assert scene["lease_lost"] == 0
