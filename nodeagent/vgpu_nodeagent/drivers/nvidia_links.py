"""How NVIDIA cards reach each other: NVLink first, else the nearest common place on the PCI bus."""

from __future__ import annotations

from functools import partial
from typing import Any

import pynvml

from vgpu_nodeagent.drivers.base import CardLink
from vgpu_nodeagent.drivers.nvml import bus_id, optional, text

# NVML's topology levels, nearest first: word as nvidia-smi prints it, and score.
_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: ("PIX", 60),
    pynvml.NVML_TOPOLOGY_SINGLE: ("PIX", 50),
    pynvml.NVML_TOPOLOGY_MULTIPLE: ("PXB", 40),
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: ("PHB", 30),
    pynvml.NVML_TOPOLOGY_NODE: ("NODE", 20),
    pynvml.NVML_TOPOLOGY_SYSTEM: ("SYS", 10),
}
_NVLINK_SCORE = 100


def links_of(index: int, uuids: list[str], handles: list[Any]) -> tuple[CardLink, ...]:
    """How a card reaches each other one of its machine.

    Args:
        index: Which card.
        uuids: Of all cards, by index.
        handles: NVML's.
    """
    nvlinks = _nvlinks(handles[index])
    links = []
    for other, handle in enumerate(handles):
        if other == index:
            continue
        bus = bus_id(handle)
        if count := nvlinks.get(bus.lower(), 0):
            links.append(CardLink(uuids[other], f"NV{count}", _NVLINK_SCORE * count))
            continue
        level = optional(
            partial(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[index], handle),
            pynvml.NVML_TOPOLOGY_SYSTEM,
        )
        word, score = _LEVELS.get(level, ("SYS", 10))
        links.append(CardLink(uuids[other], word, score))
    return tuple(links)


def _nvlinks(handle: Any) -> dict[str, int]:
    """How many NVLinks lead to each other card, by its bus id in lower case."""
    found: dict[str, int] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            bus = text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
        except pynvml.NVMLError as error:
            if error.value in (
                pynvml.NVML_ERROR_NOT_SUPPORTED,
                pynvml.NVML_ERROR_INVALID_ARGUMENT,
                pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                break  # no NVLink, or no link of that number
            raise
        found[bus] = found.get(bus, 0) + 1
    return found
