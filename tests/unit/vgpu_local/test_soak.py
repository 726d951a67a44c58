"""A soak finds memory and latency that grow, and a short one on a cluster ends well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from builders import a_claim, a_device, an_allocated_device, an_allocation
from vgpu_local.apiserver import ApiServer
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.cluster import LocalCluster
from vgpu_local.foundation import StandIn
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.soak import Checks, Load, Sample, Verdict, growth, pace, soak

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


def test_pods_come_so_fast_that_a_sixth_of_the_time_is_to_spare():
    assert pace(pods=20_000, seconds=7200.0) * 20_000 == pytest.approx(6000.0)


def test_no_pods_have_no_pace():
    assert pace(pods=0, seconds=60.0) == 0.0


class Writes:
    """An API server whose writes the test makes."""

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        self._listener = listener

    def write(self, kind: str, model: Any, version: int) -> None:
        event = WriteEvent("MODIFIED", f"{kind}.vgpu.dev", version, orjson.dumps(model.to_wire()))
        self._listener(event)


def test_a_device_that_held_too_much_between_two_looks_is_found():
    server, verdict = Writes(), Verdict()
    checks = Checks()
    server.subscribe(checks.saw)
    server.write("gpudevices", a_device(memory_mib=10_000, slots=10), 1)
    checks.look(verdict)
    holding = an_allocation(an_allocated_device(memory_mib=6000))
    server.write("vgpuclaims", a_claim("one", allocation=holding), 2)
    server.write("vgpuclaims", a_claim("two", allocation=holding), 3)
    server.write("vgpuclaims", a_claim("two"), 4)
    checks.look(verdict)
    over = [fault for fault in verdict.faults if fault.startswith("over-allocated")]
    assert len(over) == 1
    assert "resource_version=3" in over[0]
    assert verdict.writes == 4


@pytest.mark.scale
@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_a_short_soak_ends_with_every_pod_run_and_nothing_left():
    options, server = ClusterOptions(lease_s=4), ApiServer(history_kept=0)
    checks, seen = Checks(), []
    server.subscribe(checks.saw)
    foundation = StandIn(
        server=server, scheduler_names=options.scheduler_names, backoff=options.backoff
    )
    with LocalCluster([t4_node("one")], options, foundation) as cluster:
        load = Load(pods=12, seconds=0.0, at_once=3, each_s=0.0, looks=3)
        verdict = soak(cluster, checks, load, report=seen.append)
    assert verdict.faults == []
    assert verdict.writes > 12
    assert server.history() == []
    assert seen == verdict.samples
    # Those that run when the last one asked for is seen to run are counted too.
    assert 12 <= verdict.samples[-1].pods < 12 + 3
    assert set(verdict.samples[-1].memory) >= {"operator-0"}
