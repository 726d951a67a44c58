"""Recognizes the device plugins of other programs by their DaemonSets. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vgpu_client.transport import Object

COMPONENT = "app.kubernetes.io/component"
PLUGIN = "hami-device-plugin"
_NVIDIA = re.compile(r"(^|/)k8s-device-plugin[:@]")


def is_hamis_plugin(daemon_set: Object) -> bool:
    """Return True if a DaemonSet runs HAMi's device plugin."""
    labels: Mapping[str, str] = daemon_set["metadata"].get("labels") or {}
    return labels.get(COMPONENT) == PLUGIN


def is_nvidias_plugin(daemon_set: Object) -> bool:
    """Return True if a DaemonSet runs NVIDIA's device plugin."""
    containers = daemon_set["spec"]["template"]["spec"].get("containers") or ()
    images = [container.get("image", "") for container in containers]
    name: str = daemon_set["metadata"]["name"]
    return "nvidia-device-plugin" in name or any(map(_NVIDIA.search, images))
