"""Loads the cluster's configuration, or the last valid one if it is invalid.

A mistake in the ConfigMap reaches every node when its agent restarts. If the agent exited because
of it, one typo would take all nodes out of service. Instead it continues with the copy that it
kept in its state folder, and reports the mistake until it is corrected.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from vgpu_api.config import ClusterConfig, config_text, load_cluster_config
from vgpu_api.errors import BadInput

logger = logging.getLogger(__name__)

_COPY = "config-last-good.yaml"


def usable_config(path: Path | None, state: Path) -> tuple[ClusterConfig, str]:
    """Return the configuration to use, and the error in the mounted one (empty if valid).

    Args:
        path: The mounted configuration; None: every key has its default.
        state: The agent's state folder.

    Raises:
        BadInput: It is invalid, and no valid one was ever used on this node.
        OSError: It cannot be read, and there is no copy.
    """
    if path is None:
        return load_cluster_config(None), ""
    copy = state / _COPY
    try:
        config = load_cluster_config(
            path, lambda notice: logger.warning("configuration: %s", notice)
        )
    except (BadInput, OSError) as error:
        if not copy.is_file():
            raise
        fault = str(error)
        logger.error("configuration: %s; using the last good one, %s", fault, copy)
        return load_cluster_config(copy), fault
    try:
        _keep(path, copy)
    except OSError as error:  # the next start tries again
        logger.error("configuration: cannot keep a copy of %s: %s", path, error)
    return config, ""


def _keep(path: Path, copy: Path) -> None:
    content = config_text(path).encode()
    if copy.is_file() and copy.read_bytes() == content:
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = copy.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(copy)
