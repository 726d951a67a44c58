"""The bench of a Filter among other work runs, and compares its scenes with a baseline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf import crowd_bench as bench
from vgpu_local.programs import ROOT

pytestmark = pytest.mark.scale


@pytest.mark.timeout(120)
def test_a_small_run_measures_every_scene_and_names_those_that_miss_the_bar(tmp_path: Path) -> None:
    out = tmp_path / "crowd.json"
    subprocess.run(
        (sys.executable, bench.__file__, "--nodes", "20", "--candidates", "10", "--floods", "4",
         "--seconds", "1.5", "--out", str(out)),
        check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    report = json.loads(out.read_text())
    scenes = report["scenes"]
    assert list(scenes) == ["room", "quota", "calm", "flood-4"]
    for figures in scenes.values():
        assert figures["filter_cpu_ms"]["of"] == figures["filter_ms"]["of"] > 0
    assert scenes["room"]["ratio"] == scenes["calm"]["ratio"] == 1
    assert report["above"] == [
        name for name, of in scenes.items() if of["filter_cpu_ms"]["p99"] > report["bar_ms"]
    ]


def test_the_cpu_of_a_call_is_what_the_loop_used_between_its_two_ends() -> None:
    times = bench.LoopTimes()
    times._clock = [0.0, 1.0, 2.0, 4.0]
    times._cpu = [0.0, 0.1, 0.1, 1.1]  # idle for a second, then held for two
    assert times.used(0.0, 1.0) == pytest.approx(100)
    assert times.used(1.2, 1.8) == pytest.approx(0)
    assert times.used(1.5, 3.0) == pytest.approx(500)
    assert times.used(3.9, 9.0) == pytest.approx(50)
