"""Finds the paths between NVIDIA devices: NVLink, else the nearest common PCI ancestor.

A link ends at another device or at an NVSwitch. Through switches every device reaches every other,
and a pair has the bandwidth of the device with fewer links to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from vgpu_nodeagent.discovery.drivers.base import DeviceLink
from vgpu_nodeagent.discovery.drivers.nvml import DRIVER_LOST, bus_id, optional, text

# NVML's topology levels, nearest first: nvidia-smi's name for it, and our score.
_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: ("PIX", 60),
    pynvml.NVML_TOPOLOGY_SINGLE: ("PIX", 50),
    pynvml.NVML_TOPOLOGY_MULTIPLE: ("PXB", 40),
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: ("PHB", 30),
    pynvml.NVML_TOPOLOGY_NODE: ("NODE", 20),
    pynvml.NVML_TOPOLOGY_SYSTEM: ("SYS", 10),
}
_NVLINK_SCORE = 100


@dataclass(frozen=True, slots=True)
class NvLinks:
    """The NVLinks of one device that are up.

    Attributes:
        to_devices: The number of links to each other device, by its bus id in lower case.
        to_switches: The number of links to NVSwitches.
    """

    to_devices: Counter[str]
    to_switches: int


def nvlinks_of(handle: Any) -> NvLinks:
    """Return the NVLinks of a device; none if the driver cannot show them.

    Links only rank devices, so a failing call loses that link and never the device.
    """
    devices: Counter[str] = Counter()
    switches = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            if _ends_at_switch(handle, link):
                switches += 1
                continue
            remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            continue  # this link is not wired; others may be
        devices[text(remote.busId).lower()] += 1
    return NvLinks(devices, switches)


def links_of(
    index: int, uuids: Sequence[str], handles: Sequence[Any], nvlinks: Sequence[NvLinks]
) -> tuple[DeviceLink, ...]:
    """Return the paths from a device to all others of the machine.

    Args:
        index: The index of the device.
        uuids: The UUIDs of all devices, by index.
        handles: The NVML handles of all devices.
        nvlinks: The NVLinks of all devices.
    """
    return tuple(
        DeviceLink(uuids[other], *_path(handles, nvlinks, index, other))
        for other in range(len(handles))
        if other != index
    )


def _path(
    handles: Sequence[Any], nvlinks: Sequence[NvLinks], one: int, other: int
) -> tuple[str, int]:
    """Return name and score of the best path between two devices, the same from either end."""
    direct = min(
        nvlinks[one].to_devices[_bus(handles[other])],
        nvlinks[other].to_devices[_bus(handles[one])],
    )
    if count := direct + min(nvlinks[one].to_switches, nvlinks[other].to_switches):
        return f"NV{count}", _NVLINK_SCORE * count
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[one], handles[other])
    except pynvml.NVMLError as error:
        if error.value in DRIVER_LOST:
            raise
        level = pynvml.NVML_TOPOLOGY_SYSTEM
    return _LEVELS.get(level, ("SYS", 10))


def _bus(handle: Any) -> str:
    """Return the device's bus id in lower case; empty if the call fails."""
    try:
        return bus_id(handle).lower()
    except pynvml.NVMLError as error:
        if error.value in DRIVER_LOST:
            raise
        return ""


def _ends_at_switch(handle: Any, link: int) -> bool:
    kind = optional(
        partial(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link),
        pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN,
    )
    return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
