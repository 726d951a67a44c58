"""Writes the node's devices to the annotations of the Node that HAMi's tools read.

No component of ours reads them, and an agent that may not write them works without them.
Source of the format: HAMi v2.10, `hami.io/node-nvidia-register`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vgpu_api.names import (
    FIELD_MANAGER_AGENT,
    HAMI_NODE_HANDSHAKE,
    HAMI_NODE_REGISTER,
    HAMI_NODE_SCORE,
    published_model,
)
from vgpu_api.resources import NODES
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import Forbidden, NotFound
from vgpu_nodeagent.discovery.drivers.base import InstanceProfile, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity

logger = logging.getLogger(__name__)

_MODES: Mapping[DeviceMode, str] = {
    "Shared": "hami-core",
    "Exclusive": "hami-core",
    "MIG": "mig",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A device with its capacity, its mode and its health."""

    device: PhysicalDevice
    capacity: DeviceCapacity
    mode: DeviceMode
    healthy: bool


def register_text(entries: Iterable[Entry]) -> str:
    """Return the value of the register, a JSON list of devices by index.

    Amounts are allocatable amounts (MiB, percent of compute), after scaling. An unknown NUMA node
    is 0, as in HAMi.
    """
    ordered = sorted(entries, key=lambda entry: (entry.device.index, entry.device.uuid))
    return json.dumps([_words(entry) for entry in ordered], separators=(",", ":"))


def _words(entry: Entry) -> dict[str, object]:
    device, given = entry.device, entry.capacity.allocatable
    profiles = device.mig_profiles if device.mig_enabled else ()
    most = max((len(profile.places) for profile in profiles), default=given.slots)
    return {
        "id": device.uuid,
        "index": device.index,
        "count": min(given.slots, most),
        "devmem": given.memory_mib,
        "devcore": given.cores,
        "type": published_model(device.model),
        "numa": device.numa_node or 0,
        "mode": "mig" if device.mig_enabled else _MODES[entry.mode],
        **({"migProfiles": [_profile(profile) for profile in profiles]} if profiles else {}),
        "health": entry.healthy,
    }


def _profile(profile: InstanceProfile) -> dict[str, object]:
    return {
        "name": profile.name,
        "memoryMB": profile.memory_mib,
        "core": profile.cores,
        "sliceCount": profile.slices,
        "placements": [{"start": start, "size": size} for start, size in profile.places],
    }


def score_text(entries: Iterable[Entry]) -> str:
    """Return the value of the annotation with link scores; empty without any link.

    A JSON list by index: for each device the score of each peer, higher for a better path.
    """
    ordered = sorted(entries, key=lambda entry: (entry.device.index, entry.device.uuid))
    if not any(entry.device.links for entry in ordered):
        return ""
    scores = [
        {"uuid": entry.device.uuid, "score": {link.peer: link.score for link in entry.device.links}}
        for entry in ordered
    ]
    return json.dumps(scores, separators=(",", ":"))


class HamiRegister:
    """Keeps the annotations up to date. It remembers what it wrote, so it needs no reads.

    The handshake holds the time of the last write, in the format in which device plugins answered
    HAMi's scheduler before v2.10: `Reported_2006-01-02 15:04:05`, UTC.
    """

    def __init__(self, api: Api, *, node: str, clock: Clock | None = None) -> None:
        self._api = api
        self._node = node
        self._clock = clock or Clock()
        self._written: dict[str, str] | None = None
        self._complained = False

    def forget(self) -> None:
        """Write again next time: the Node may be another one of the same name."""
        self._written = None

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write the annotations if they have changed.

        Raises:
            ClientError: The Node could not be written for another reason than missing rights.
        """
        entries = list(entries)
        texts = {HAMI_NODE_REGISTER: register_text(entries)}
        if score := score_text(entries):
            texts[HAMI_NODE_SCORE] = score
        if texts == self._written:
            return
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._clock.unix()))
        annotations = {**texts, HAMI_NODE_HANDSHAKE: f"Reported_{timestamp}"}
        changes = {"metadata": {"annotations": annotations}}
        try:
            await self._api.merge_patch(
                NODES, self._node, changes, field_manager=FIELD_MANAGER_AGENT
            )
        except NotFound:
            return  # the Node is gone
        except Forbidden as error:
            if not self._complained:
                logger.warning("cannot write HAMi's annotations to the node: %s", error)
            self._complained = True
            return
        self._written = texts
