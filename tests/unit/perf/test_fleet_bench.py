"""A small run of the bench of large fleets measures every kind of request."""

from __future__ import annotations

import pytest

from perf import fleet_bench


@pytest.mark.scale
async def test_a_small_fleet_is_measured_and_every_object_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_bench, "DECISIONS", 5)
    found = await fleet_bench.measure(20)
    counts = {kind: found[kind]["count"] for kind in ("node", "device", "agent", "claim", "pod")}
    assert counts == {"node": 20, "device": 160, "agent": 20, "claim": 80, "pod": 80}
    assert found["first_ms"] > 0
    assert found["next_us"] > 0
