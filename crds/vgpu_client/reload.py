"""Waits for the next configuration. An invalid one is logged, and the previous one stays in use."""

from __future__ import annotations

import asyncio
import logging

from vgpu_api.config import ClusterConfig, ConfigFile
from vgpu_api.errors import BadInput
from vgpu_client.logs import take_level

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""The interval between two looks; the kubelet itself takes up to a minute to mount a change."""


async def changed(source: ConfigFile, level: str, *, every_s: float = LOOK_S) -> ClusterConfig:
    """Return the next configuration that is complete, valid and different.

    A new logging level is applied at once and does not count as different.

    Args:
        source: The configuration in force.
        level: The logging level to use if the configuration sets none.
        every_s: The interval between two looks.
    """
    take_level(source.config.logging.level or level)
    while True:
        await asyncio.sleep(every_s)
        before = source.config
        try:
            config = source.look()
        except BadInput as error:
            logger.error("configuration: %s; the former one stays in force", error)
            continue
        if config is None:
            continue
        take_level(config.logging.level or level)
        if config != before.model_copy(update={"logging": config.logging}):
            return config
