"""The documents that operator and agent both read."""

from vgpu_api.config.cluster import (
    AliyunConfig,
    ClusterConfig,
    NvidiaConfig,
    SchedulingConfig,
    ViewsConfig,
    VolcanoConfig,
    load_cluster_config,
)

__all__ = [
    "AliyunConfig",
    "ClusterConfig",
    "NvidiaConfig",
    "SchedulingConfig",
    "ViewsConfig",
    "VolcanoConfig",
    "load_cluster_config",
]
