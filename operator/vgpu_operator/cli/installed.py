"""Reads the installed configuration the way the operator and the agents read it."""

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
        config: The operator's configuration; the defaults if there is none or it could not be read.
        unknown: Why the configuration could not be read; empty if it was.
    """

    config: ClusterConfig
    unknown: str = ""


async def installation(api: Api) -> Installation:
    """Read the cluster's configuration.

    Raises:
        ClientError: The API server is unreachable.
    """
    try:
        found = (await api.list(CONFIG_MAPS, label_selector=PART_OF_LABEL)).items
    except Forbidden as error:  # tenants may not read vgpu's ConfigMaps
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
    """Return the cluster's configuration, or the defaults if it does not exist or cannot be read.

    Raises:
        ClientError: The API server is unreachable.
    """
    return (await installation(api)).config
