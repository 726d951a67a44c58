"""Applies events about PodGroups."""

from __future__ import annotations

from vgpu_operator.engine import events
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.state import State


def pod_group_observed(event: events.PodGroupObserved, state: State) -> None:
    """Apply an added or updated PodGroup."""
    metadata = event.group.metadata
    state.cache.pod_groups[GroupKey(metadata.namespace or "", metadata.name)] = event.group


def pod_group_deleted(event: events.PodGroupDeleted, state: State) -> None:
    """Forget a PodGroup."""
    state.cache.pod_groups.pop(event.key, None)


def pod_groups_not_served(event: events.PodGroupsNotServed, state: State) -> None:
    """Forget all PodGroups; those of another version will be observed anew."""
    state.cache.pod_groups.clear()
