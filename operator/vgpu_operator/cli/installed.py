"""What is installed in a cluster: the configuration that operator and agents read there."""

from __future__ import annotations

import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.errors import BadInput
from vgpu_api.names import PART_OF_LABEL
from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden


async def installed_config(api: Api) -> ClusterConfig:
    """The cluster's configuration; the defaults where there is none, or it may not be read.

    Raises:
        ClientError: The API server is away.
    """
    try:
        found = (await api.list(CONFIG_MAPS, label_selector=PART_OF_LABEL)).items
    except Forbidden:  # a tenant reads no ConfigMaps of ours
        return ClusterConfig()
    for config_map in found:
        text = (config_map.get("data") or {}).get("config.yaml")
        if text is None:
            continue
        try:
            return read_cluster_config(yaml.safe_load(text))
        except (BadInput, yaml.YAMLError):
            continue
    return ClusterConfig()
