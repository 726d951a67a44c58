"""The bench of Filters beside watch events runs, and events come while it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf import events_bench as bench
from vgpu_local.programs import ROOT

pytestmark = pytest.mark.scale


@pytest.mark.timeout(120)
def test_a_small_run_measures_with_events_and_without(tmp_path: Path) -> None:
    out = tmp_path / "events.json"
    subprocess.run(
        (sys.executable, bench.__file__, "--nodes", "20", "--claims", "40", "--rates", "200",
         "--seconds", "1", "--out", str(out)),
        check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    found = json.loads(out.read_text())["events_a_second"]
    assert list(found) == ["0", "200"]
    for figures in found.values():
        assert figures["filter_ms"]["of"] == figures["empty_ms"]["of"] > 0
    assert found["200"]["events"] > found["0"]["events"]
