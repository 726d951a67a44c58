"""The bench of admission asks what it claims to, and counts what came back."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from perf import admission_bench as bench

pytestmark = pytest.mark.scale


def test_every_twentieth_pod_names_a_claim_and_no_two_have_one_name() -> None:
    pods = list(islice(bench.arrivals(), 200))
    native = [pod for pod in pods if "vgpu.dev/claim" in pod["metadata"].get("annotations", {})]
    assert len(native) == 200 / bench.NATIVE_IN
    assert len({pod["metadata"]["name"] for pod in pods}) == 200


def test_figures_are_medians_and_99th_percentiles() -> None:
    figures = bench.figures_of(bench.Measured(took=[1.0] * 99 + [9.0], late=[0.5] * 100))
    assert (figures["review_ms_median"], figures["review_ms_p99"]) == (1.0, 9.0)
    assert figures["late_ms_p99"] == 0.5


@pytest.mark.timeout(120)
def test_a_short_run_measures_a_real_process(tmp_path: Path) -> None:
    figures = bench.measure(tmp_path, warm_s=0.2, measured_s=0.5)
    assert 0 < figures["review_ms_median"] <= figures["review_ms_p99"]
    assert figures["rss_mib"] > 10
