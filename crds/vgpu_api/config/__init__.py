"""The documents that operator and agent both read."""

from vgpu_api.config.cluster import (
    ClusterConfig,
    NvidiaConfig,
    SchedulingConfig,
    ViewsConfig,
    load_cluster_config,
)

__all__ = [
    "ClusterConfig",
    "NvidiaConfig",
    "SchedulingConfig",
    "ViewsConfig",
    "load_cluster_config",
]
