"""Narrow, typed views of core Kubernetes kinds, with only the fields that we read."""

from vgpu_api.core.disruption import PodDisruptionBudget
from vgpu_api.core.node import Node, Taint
from vgpu_api.core.pod import (
    Container,
    ContainerStatus,
    EnvVar,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    PodStatus,
    Toleration,
)
from vgpu_api.core.pod_group import MemberPodGroup, PodGroup
from vgpu_api.core.priority_class import PriorityClass
from vgpu_api.core.quota import PodScopes, ResourceQuota
from vgpu_api.core.resource_claim import ResourceClaim

__all__ = [
    "Container",
    "ContainerStatus",
    "EnvVar",
    "MemberPodGroup",
    "Node",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "Pod",
    "PodDisruptionBudget",
    "PodGroup",
    "PodScopes",
    "PodSpec",
    "PodStatus",
    "PriorityClass",
    "ResourceClaim",
    "ResourceQuota",
    "Taint",
    "Toleration",
]
