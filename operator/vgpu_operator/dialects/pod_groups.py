"""Reads which group of pods a pod starts together with, in any of the words for that.

Kubernetes' own `spec.schedulingGroup` means the same in every mode. All other words act in Gate
mode only, where the operator starts the groups; in Extender mode the scheduler that knows a word
acts on it, and nobody knows ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import MemberPodGroup, Pod, PodGroup
from vgpu_api.errors import BadInput, Fault
from vgpu_api.resources import (
    COSCHEDULING_POD_GROUPS,
    POD_GROUPS,
    VOLCANO_POD_GROUPS,
    Resource,
)
from vgpu_operator.dialects.hami_annotations import annotation_field

IN_EXTENDER = (
    "scheduling.mode is Extender, where kube-scheduler starts the pods; name a PodGroup of "
    "scheduling.k8s.io in spec.schedulingGroup"
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_EXPECTED_NAME = (
    "at most 253 lower-case letters, digits, dots and hyphens that begin and end with a letter or "
    "digit"
)
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")
_EXPECTED_NUMBER = "a whole number from 1 to 99999: how many pods of the group start together"


class GroupKind(StrEnum):
    """The words in which a group is named. Groups of one name but two kinds are two groups."""

    KUBERNETES = "scheduling.k8s.io"
    VGPU = "vgpu.dev"
    VOLCANO = "scheduling.volcano.sh"
    COSCHEDULING = "scheduling.x-k8s.io"


POD_GROUP_APIS: Mapping[GroupKind, tuple[Resource, ...]] = {
    GroupKind.KUBERNETES: POD_GROUPS,
    GroupKind.VOLCANO: (VOLCANO_POD_GROUPS,),
    GroupKind.COSCHEDULING: (COSCHEDULING_POD_GROUPS,),
}
"""The versions of PodGroup in each API, newest first."""


def _with_members(raw: Mapping[str, Any]) -> PodGroup:
    return MemberPodGroup.model_validate(raw).as_gang()


POD_GROUP_READERS: Mapping[str, tuple[GroupKind, Callable[[Mapping[str, Any]], PodGroup]]] = {
    version.api_version: (
        kind,
        PodGroup.model_validate if kind is GroupKind.KUBERNETES else _with_members,
    )
    for kind, versions in POD_GROUP_APIS.items()
    for version in versions
}
"""By version of an API: which API it is, and what reads its PodGroups."""


def pod_group_kinds(config: ClusterConfig) -> tuple[GroupKind, ...]:
    """Return the APIs whose PodGroups matter.

    In Extender mode, Volcano and Coscheduling start their groups themselves.
    """
    return tuple(POD_GROUP_APIS) if config.scheduling.decides_first else (GroupKind.KUBERNETES,)


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """The group that a pod names.

    Attributes:
        kind: The words in which it is named.
        name: Its name, in the pod's namespace.
        field: The path of the field that names it.
        least: The number of pods that start together, if the pod itself says so.
    """

    kind: GroupKind
    name: str
    field: str
    least: int | None = None


def named_group(pod: Pod, config: ClusterConfig) -> NamedGroup | None:
    """Return the group with which a pod starts together; None if it names none that acts here.

    Raises:
        BadInput: Our annotations are invalid, or cannot act.
    """
    ours = _ours(pod)
    if ours is not None and not config.scheduling.decides_first:
        raise BadInput(
            field=ours.field, value=ours.name, fault=Fault.UNSUPPORTED, detail=IN_EXTENDER
        )
    return next(iter(named_groups(pod, config)), None)


def named_groups(pod: Pod, config: ClusterConfig) -> list[NamedGroup]:
    """Return all groups that a pod names in words that act here; the first one counts.

    Raises:
        BadInput: Our annotations are invalid.
    """
    found = [_of_kubernetes(pod)]
    if config.scheduling.decides_first:
        found = [_ours(pod), *found, _of_volcano(pod), *_of_coscheduling(pod)]
    return [each for each in found if each is not None]


def _ours(pod: Pod) -> NamedGroup | None:
    annotations = pod.metadata.annotations
    name, least = (
        annotations.get(each) for each in (names.ANNOTATION_GROUP, names.ANNOTATION_GROUP_MIN)
    )
    if name is None and least is None:
        return None
    field, of_least = map(annotation_field, (names.ANNOTATION_GROUP, names.ANNOTATION_GROUP_MIN))
    if name is None:
        raise BadInput.required(field, f"{names.ANNOTATION_GROUP_MIN} counts the pods of a group")
    if not _NAME.fullmatch(name):
        raise BadInput(field=field, value=name, expected=_EXPECTED_NAME)
    if least is None:
        raise BadInput.required(of_least, _EXPECTED_NUMBER)
    if not _NUMBER.fullmatch(least):
        raise BadInput(field=of_least, value=least, expected=_EXPECTED_NUMBER)
    if _of_kubernetes(pod) is not None:
        raise BadInput.forbidden(field, "spec.schedulingGroup names the pod's group already")
    return NamedGroup(GroupKind.VGPU, name, field, int(least))


def _of_kubernetes(pod: Pod) -> NamedGroup | None:
    named = pod.spec.scheduling_group
    if named is None or not named.pod_group_name:
        return None
    return NamedGroup(GroupKind.KUBERNETES, named.pod_group_name, "spec.schedulingGroup")


def _of_volcano(pod: Pod) -> NamedGroup | None:
    name = pod.metadata.annotations.get(names.VOLCANO_GROUP, "")
    if not name:
        return None
    return NamedGroup(GroupKind.VOLCANO, name, annotation_field(names.VOLCANO_GROUP))


def _of_coscheduling(pod: Pod) -> list[NamedGroup]:
    labels = pod.metadata.labels
    return [
        NamedGroup(GroupKind.COSCHEDULING, labels[key], f"metadata.labels[{key}]")
        for key in (names.COSCHEDULING_GROUP, names.COSCHEDULING_FORMER_GROUP)
        if labels.get(key)
    ]
