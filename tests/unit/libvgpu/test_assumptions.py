"""The table of differing devices: each row runs its settings with one set of seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = """#!/bin/sh
for last; do :; done
echo "$@" >> {log}
error=1.25; case "$*" in *switch_us*) error=4.5;; esac
printf '{{"limiter": {{"seed": %s, "scenes": 3' $last
printf ', "mean_error_points": {{"worst": 6.0, "mean": %s}}' $error
printf ', "ripple_points": {{"worst": 2.0, "mean": 1.0}}'
printf ', "throughput_of_share": {{"worst": 0.75, "mean": 0.987}}'
printf ', "beside_long_points": {{"worst": 40.0, "mean": 40.0}}'
printf ', "missed": {{"error": 1, "throughput": 2}}}}}}\\n'
"""


def test_every_row_runs_its_settings_with_the_seeds_that_the_table_names(
    assumptions: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, program, out = (tmp_path / name for name in ("log", "bench", "table.json"))
    program.write_text(BENCH.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("BENCH_SEEDS", "2")
    monkeypatch.setattr(sys, "argv", ["assumptions.py", str(out), str(program)])
    assert assumptions.main() == 0
    table = json.loads(out.read_text())
    rows = table["rows"]
    assert list(rows) == list(assumptions.ROWS)
    assert {row["scenes"] for row in rows.values()} == {6}
    assert rows["nothing"]["mean_error_points"] == 1.25
    assert rows["a change-over costs 60 µs"]["mean_error_points"] == 4.5
    runs = log.read_text().split("\n")[:-1]
    assert {run.split()[-1] for run in runs} == set(table["seeds"])
    assert sum("-d switch_us=60" in run for run in runs) == 2 * 2
    printed = capsys.readouterr().out
    assert printed.startswith("seeds " + " ".join(table["seeds"]))
    assert "| nothing | 1.25 | 6.0 | 2 | 0.75 / 0.987 | 4 | 40.0 |" in printed
