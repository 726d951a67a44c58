"""Groups of pods that start together or not at all.

A pod names its group, and something else says how many pods must start together: today the
PodGroup of that name. Members that ask for no GPU are unknown here, so a group may be complete
although fewer than `least` of its members are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.state import State


@dataclass(frozen=True, slots=True)
class Group:
    """A group as far as it is known.

    Attributes:
        key: Its key.
        least: The least number of pods that may run; None while nothing says it.
        members: Its GPU pods that have not ended and are not being deleted, by name.
    """

    key: GroupKey
    least: int | None
    members: tuple[GPUPod, ...]


def group(state: State, key: GroupKey) -> Group:
    """Return what is known of a group; it may have no members."""
    object_ = state.cache.pod_groups.get(key)
    least = None if object_ is None else object_.least
    return Group(key, least, tuple(members(state, key)))


def members(state: State, key: GroupKey) -> list[GPUPod]:
    """Return the group's GPU pods that have not ended and are not being deleted, by name."""
    live = (
        pod
        for pod in state.cache.pods_of_group(key)
        if not pod.pod.is_terminal and pod.pod.metadata.deletion_timestamp is None
    )
    return sorted(live, key=lambda pod: pod.pod.metadata.name)
