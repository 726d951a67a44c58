"""A soak finds memory and latency that grow, and a short one on a cluster ends well."""

from __future__ import annotations

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.soak import Sample, growth, soak

MIB = 2**20


def samples(memory: list[int], latency: list[float] | None = None) -> list[Sample]:
    waits = latency or [0.5] * len(memory)
    return [
        Sample(float(at), at, {"operator": size * MIB}, wait)
        for at, (size, wait) in enumerate(zip(memory, waits, strict=True))
    ]


def test_memory_that_rises_at_first_and_then_stays_is_no_growth():
    assert growth(samples([50, 70, 90, 100, 100, 101, 100, 102])) == []


def test_memory_that_goes_on_rising_is_found():
    (found,) = growth(samples([100, 110, 120, 130, 140, 150, 160, 170]))
    assert found.startswith("operator grew by 13.8 %")


def test_pods_that_take_longer_and_longer_are_found():
    (found,) = growth(samples([100] * 8, [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0]))
    assert found == "pods took 2.00 s to run, and 0.50 s before"


def test_too_few_samples_prove_nothing():
    assert growth(samples([1, 2, 3])) == []


@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_a_short_soak_ends_with_every_pod_run_and_nothing_left():
    with LocalCluster([t4_node("one")], ClusterOptions(lease_s=4)) as cluster:
        verdict = soak(cluster, pods=12, seconds=0.0, at_once=3, looks=3)
    assert verdict.faults == []
    # Those that run when the last one asked for is seen to run are counted too.
    assert 12 <= verdict.samples[-1].pods < 12 + 3
    assert set(verdict.samples[-1].memory) >= {"operator-0"}
