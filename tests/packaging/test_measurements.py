"""docs/measurements.md has a row for each promise, and a bench writes only its own rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf import measurements

REPORT = {
    "decision_us": {"binpack": {"p50": 21.04}, "spread": {"p50": 9}},
    "apply_us": {"p50": 9},
    "rebuild_s": 8.5,
    "rss_mib": 1800,
    "refusal_ms": {"cold": 100},
    "load_average": [0.5, 1, 2],
}


def test_the_page_has_the_promises_in_their_order() -> None:
    rows = [text for text, _ in measurements.read(measurements.PAGE.read_text())]
    assert rows == [promise.text for promise in measurements.PROMISES]


def test_a_bench_writes_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(measurements, "REPORTS", tmp_path)
    (tmp_path / "placement.json").write_text(json.dumps(REPORT))
    (tmp_path / "start.json").write_text(json.dumps({"ratio": 1.25}))
    measurements.main(["placement"])
    measurements.main(["start"])
    rows = dict(measurements.read((tmp_path / "page.md").read_text()))
    decision = rows["a decision with 100,000 claims, the slowest policy, median"].split(" | ")
    assert (decision[1], decision[2], decision[4]) == ("≤ 50 µs", "21.04 µs", "0.5")
    memory = rows["memory for 100,000 claims and all devices"].split(" | ")
    assert memory[1:3] == ["≤ 1,024 MiB", "1,800 MiB"]
    assert " 1.25 |" in rows["memory while 150,000 pods are listed, in parts of that afterwards"]
    assert "| not measured |" in rows["CPU of a review"]


def test_of_several_figures_the_worst_counts() -> None:
    report = {"a": {"x": {"p": 1}, "y": {"p": 3}}}
    assert measurements.worst(report, ["a", "*", "p"], least=False) == 3
    assert measurements.worst(report, ["a", "*", "p"], least=True) == 1
