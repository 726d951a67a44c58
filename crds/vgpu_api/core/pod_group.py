"""The fields of a PodGroup (`scheduling.k8s.io`) that matter for starting pods together.

Except for `disruptionMode` they are the same in `v1alpha2` (Kubernetes 1.36) and `v1beta1` (1.37).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from vgpu_api.v1alpha1.base import ApiModel, Metadata


class GangPolicy(ApiModel):
    """The rule that pods start together or not at all."""

    min_count: int = 0
    """The minimum number of pods that may run."""


class SchedulingPolicy(ApiModel):
    """The scheduling rule of a group; without `gang`, its pods may start one by one."""

    gang: GangPolicy | None = None


class PodGroupSpec(ApiModel):
    """The fields of a group's spec that we read."""

    scheduling_policy: SchedulingPolicy = Field(default_factory=SchedulingPolicy)
    disruption_mode: str | dict[str, Any] | None = None
    """1.37: an object whose only key is `single` or `all`; 1.36: Pod or PodGroup. The API server
    sets the first of each where nothing is said, and 1.36 always without the feature gate
    WorkloadAwarePreemption."""


_DISRUPTION: dict[str, Literal["Single", "All"]] = {
    "single": "Single",
    "all": "All",
    "Pod": "Single",
    "PodGroup": "All",
}


class PodGroup(ApiModel):
    """A group of pods, each of which names it in `spec.schedulingGroup.podGroupName`."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PodGroupSpec = Field(default_factory=PodGroupSpec)

    @property
    def least(self) -> int:
        """Return the minimum number of pods that may run: 1 unless the group is a gang."""
        gang = self.spec.scheduling_policy.gang
        return 1 if gang is None else max(gang.min_count, 1)

    @property
    def disruption(self) -> Literal["Single", "All", ""]:
        """Single: its pods may be evicted one by one; All: only together; empty: it is not said.

        A mode that is not known here counts as All, which spares more pods.
        """
        mode = self.spec.disruption_mode
        if not mode:
            return ""
        name = mode if isinstance(mode, str) else next(iter(mode))
        return _DISRUPTION.get(name, "All")


class _MemberSpec(ApiModel):
    min_member: int = 0


class MemberPodGroup(ApiModel):
    """A PodGroup of Volcano or of the Coscheduling plugin, whose minimum is `spec.minMember`."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: _MemberSpec = Field(default_factory=_MemberSpec)

    def as_gang(self) -> PodGroup:
        """Return the group as if it were one of Kubernetes' own."""
        policy = SchedulingPolicy(gang=GangPolicy(min_count=self.spec.min_member))
        return PodGroup(metadata=self.metadata, spec=PodGroupSpec(scheduling_policy=policy))
