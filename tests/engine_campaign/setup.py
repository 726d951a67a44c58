"""The configuration of a run's cluster, drawn from its seed."""

from __future__ import annotations

from random import Random
from typing import Literal

from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.config.cluster import PreemptionConfig


def drawn_config(seed: int) -> ClusterConfig:
    """Return the configuration: one run in four in Gate mode, one in Claims; most preempt."""
    rng = Random(f"config {seed}")
    preemption = PreemptionConfig(
        enabled=rng.random() < 0.67,
        budgets="Prefer" if rng.random() < 0.3 else "Respect",
        min_gap=rng.choice((0, 0, 0, 150)),
        per_minute=rng.choice((2, 4, 30, 30)),
    )
    drawn = rng.random()
    mode: Literal["Gate", "Claims", "Extender"] = "Extender"
    if drawn < 0.25:
        mode = "Gate"
    elif drawn > 0.75:
        mode = "Claims"
    return ClusterConfig(scheduling=SchedulingConfig(mode=mode, preemption=preemption))
