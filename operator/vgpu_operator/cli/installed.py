"""What is installed in a cluster: the configuration that operator and agents read there."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.errors import BadInput
from vgpu_api.names import PART_OF_LABEL
from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden


@dataclass(frozen=True, slots=True)
class Installation:
    """What the operator runs with.

    Attributes:
        config: Its configuration; the defaults where there is none, or it is not known.
        unknown: Why it is not known; empty: it is.
    """

    config: ClusterConfig
    unknown: str = ""


async def installation(api: Api) -> Installation:
    """The cluster's configuration.

    Raises:
        ClientError: The API server is away.
    """
    try:
        found = (await api.list(CONFIG_MAPS, label_selector=PART_OF_LABEL)).items
    except Forbidden as error:  # a tenant reads no ConfigMaps of ours
        return Installation(ClusterConfig(), error.message)
    unknown = ""
    for config_map in found:
        text = (config_map.get("data") or {}).get("config.yaml")
        if text is None:
            continue
        try:
            return Installation(read_cluster_config(yaml.safe_load(text)))
        except (BadInput, yaml.YAMLError) as error:
            words = " ".join(str(error).split())
            unknown = f"ConfigMap {config_map['metadata']['name']}: config.yaml: {words}"
    return Installation(ClusterConfig(), unknown)


async def installed_config(api: Api) -> ClusterConfig:
    """The cluster's configuration; the defaults where there is none, or it is not known.

    Raises:
        ClientError: The API server is away.
    """
    return (await installation(api)).config
