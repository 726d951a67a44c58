"""A few runs of the engine's fault campaign; `make campaign` runs any number."""

from __future__ import annotations

import pytest

from engine_campaign.campaign import run


@pytest.mark.parametrize("seed", [2, 10, 44])  # Extender, Gate and Claims, all with preemption
def test_nothing_is_given_twice_freed_in_use_or_lost(seed: int) -> None:
    verdict = run(seed)
    assert not verdict.findings, "\n".join(verdict.trace)
