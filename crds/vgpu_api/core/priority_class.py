"""The fields of a PriorityClass that matter for preemption."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vgpu_api.v1alpha1.base import ApiModel, Metadata


class PriorityClass(ApiModel):
    """A PriorityClass: the API server writes its value into the pods that name it."""

    metadata: Metadata = Field(default_factory=Metadata)
    value: int
    global_default: bool = False
    preemption_policy: Literal["Never", "PreemptLowerPriority"] = "PreemptLowerPriority"
