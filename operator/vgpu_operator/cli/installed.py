"""The installed configuration, as the operator and the agents read it."""

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
    """The configuration of an installation.

    Attributes:
        config: The operator's configuration; the defaults if there is none or it is not known.
        unknown: Why it is not known; empty if it is.
    """

    config: ClusterConfig
    unknown: str = ""


async def installation(api: Api) -> Installation:
    """Read the cluster's configuration.

    Raises:
        ClientError: The API server cannot be reached.
    """
    try:
        found = (await api.list(CONFIG_MAPS, label_selector=PART_OF_LABEL)).items
    except Forbidden as error:  # tenants may not read our ConfigMaps
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
    """Read the cluster's configuration; returns the defaults if there is none or it is not known.

    Raises:
        ClientError: The API server cannot be reached.
    """
    return (await installation(api)).config
