"""The configuration documents that both the operator and the agent read."""

from vgpu_api.config.cluster import (
    AliyunConfig,
    ClusterConfig,
    DeviceFilter,
    NodeConfig,
    NodeSettings,
    NvidiaConfig,
    PageConfig,
    SchedulingConfig,
    VendorsConfig,
    ViewsConfig,
    VolcanoConfig,
    read_cluster_config,
)
from vgpu_api.config.file import ConfigFile, config_text, load_cluster_config
from vgpu_api.config.hami import Notice

__all__ = [
    "AliyunConfig",
    "ClusterConfig",
    "ConfigFile",
    "DeviceFilter",
    "NodeConfig",
    "NodeSettings",
    "Notice",
    "NvidiaConfig",
    "PageConfig",
    "SchedulingConfig",
    "VendorsConfig",
    "ViewsConfig",
    "VolcanoConfig",
    "config_text",
    "load_cluster_config",
    "read_cluster_config",
]
