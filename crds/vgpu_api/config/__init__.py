"""The documents that operator and agent both read."""

from vgpu_api.config.cluster import (
    AliyunConfig,
    ClusterConfig,
    DeviceFilter,
    NodeConfig,
    NodeTerms,
    NvidiaConfig,
    SchedulingConfig,
    ViewsConfig,
    VolcanoConfig,
    load_cluster_config,
    read_cluster_config,
)
from vgpu_api.config.hami import Notice

__all__ = [
    "AliyunConfig",
    "ClusterConfig",
    "DeviceFilter",
    "NodeConfig",
    "NodeTerms",
    "Notice",
    "NvidiaConfig",
    "SchedulingConfig",
    "ViewsConfig",
    "VolcanoConfig",
    "load_cluster_config",
    "read_cluster_config",
]
