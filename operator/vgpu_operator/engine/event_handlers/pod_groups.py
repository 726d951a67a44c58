"""Applies events about PodGroups."""

from __future__ import annotations

from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine import events
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.gate_groups import wake
from vgpu_operator.engine.scheduling.groups import least_of
from vgpu_operator.engine.state import State


def pod_group_observed(event: events.PodGroupObserved, state: State) -> None:
    """Apply an added or updated PodGroup."""
    metadata = event.group.metadata
    key = GroupKey(metadata.namespace or "", metadata.name, event.kind)
    former = state.cache.pod_groups.get(key)
    state.cache.pod_groups[key] = event.group
    if former is None or former.least != event.group.least:
        judge_gated(state, key)


def pod_group_deleted(event: events.PodGroupDeleted, state: State) -> None:
    """Forget a PodGroup."""
    state.cache.pod_groups.pop(event.key, None)
    judge_gated(state, event.key)


def pod_groups_listed(event: events.PodGroupsListed, state: State) -> None:
    """Record that the API server serves PodGroups of an API."""
    if not state.cache.pod_group_apis.get(event.kind):
        _note_api(state, event.kind, is_served=True)


def pod_groups_not_served(event: events.PodGroupsNotServed, state: State) -> None:
    """Forget all PodGroups of an API; those of another version will be observed again.

    An API that was served once still counts as served: its groups wait rather than start in part.
    """
    for key in [key for key in state.cache.pod_groups if key.kind == event.kind]:
        del state.cache.pod_groups[key]
    if event.kind not in state.cache.pod_group_apis:
        _note_api(state, event.kind, is_served=False)


def _note_api(state: State, kind: GroupKind, *, is_served: bool) -> None:
    state.cache.pod_group_apis[kind] = is_served
    for key in state.cache.groups():
        if key.kind == kind:
            judge_gated(state, key)


def note_group(state: State, key: GroupKey | None, before: int) -> None:
    """Record a change of a group's pods.

    Those behind our gate wait for each other unless enough pods of their group run; they are judged
    again when that changes.

    Args:
        state: The state.
        key: The group, or None.
        before: The number of its running pods before the change, as `running` returns it.
    """
    least = None if key is None else least_of(state, key)
    if key is None or not state.config.scheduling.decides_first:
        return
    wake(state, key)
    if least is not None and (before >= least) != (running(state, key) >= least):
        judge_gated(state, key)


def running(state: State, key: GroupKey | None) -> int:
    """Return how many pods of a group run, and how many it has without GPUs, taken together."""
    if key is None:
        return 0
    return state.cache.running_of_group(key) + state.cache.others_of_group(key)


def judge_gated(state: State, key: GroupKey) -> None:
    """Judge the pods of a group again that wait behind our gate."""
    for pod in state.cache.pods_of_group(key):
        if pod.is_gated:
            state.pods.due[pod.uid] = None
