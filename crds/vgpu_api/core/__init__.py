"""Narrow, typed views of core Kubernetes kinds: only the fields we read, all of them checked."""

from vgpu_api.core.node import Node, Taint
from vgpu_api.core.pod import (
    Container,
    ContainerStatus,
    EnvVar,
    Pod,
    PodSpec,
    PodStatus,
    Toleration,
)

__all__ = [
    "Container",
    "ContainerStatus",
    "EnvVar",
    "Node",
    "Pod",
    "PodSpec",
    "PodStatus",
    "Taint",
    "Toleration",
]
