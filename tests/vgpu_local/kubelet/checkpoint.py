"""Writes `kubelet_internal_checkpoint`, the device manager's state on disk.

An agent reads it to find the container of an allocation, which no API shows. So it has the
kubelet's JSON format, and is written at the same moment: after the answer to Allocate and before
any start.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vgpu_local.kubelet.holdings import NO_NUMA, Holding

FILE_NAME = "kubelet_internal_checkpoint"


def write_checkpoint(
    path: Path, holdings: Iterable[Holding], registered: Mapping[str, Iterable[str]]
) -> None:
    """Replace the file atomically.

    Args:
        path: The file.
        holdings: All holdings of the node.
        registered: The healthy ids of each resource.
    """
    data = {
        "PodDeviceEntries": [_entry(holding) for holding in holdings] or None,  # as Go writes none
        "RegisteredDevices": {name: sorted(ids) for name, ids in sorted(registered.items())},
    }
    text = json.dumps({"Data": data, "Checksum": _checksum(data)}, separators=(",", ":"))
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _entry(holding: Holding) -> dict[str, Any]:
    by_numa: dict[str, list[str]] = {}
    for device, nodes in zip(holding.device_ids, holding.numa, strict=True):
        for node in nodes or (NO_NUMA,):
            by_numa.setdefault(str(node), []).append(device)
    return {
        "PodUID": holding.pod_uid,
        "ContainerName": holding.container,
        "ResourceName": holding.resource,
        "DeviceIDs": by_numa,
        "AllocResp": base64.b64encode(holding.response).decode(),
    }


def _checksum(data: object) -> int:
    """Return a 32-bit FNV-1a like the kubelet's, but of JSON instead of Go's dump format."""
    value = 0x811C9DC5
    for byte in json.dumps(data, sort_keys=True).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
