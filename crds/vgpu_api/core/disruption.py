"""A PodDisruptionBudget, as far as preemption reads it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vgpu_api.empties import no_entries
from vgpu_api.v1alpha1.base import ApiModel, Metadata


class PodDisruptionBudgetSpec(ApiModel):
    """The fields of a budget's spec that we read."""

    selector: dict[str, Any] | None = None
    """Without a selector the budget protects no pod; an empty one protects all of its namespace."""


class PodDisruptionBudgetStatus(ApiModel):
    """The fields of a budget's status that we read."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, Any] = Field(default_factory=no_entries)
    """Pods by name whose eviction the budget has already counted."""


class PodDisruptionBudget(ApiModel):
    """A budget of evictions for some pods of a namespace."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PodDisruptionBudgetSpec = Field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = Field(default_factory=PodDisruptionBudgetStatus)
