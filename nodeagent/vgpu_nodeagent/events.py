"""Events on a node, as values, and the queue in which they wait to be applied.

A part that observes something puts an event here and does not know its readers. The agent
applies the events in order; each part takes from them what concerns it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim


@dataclass(frozen=True, slots=True)
class PodChanged:
    """A pod of the node is new (no `old`), another version, or gone (no `new`)."""

    old: Pod | None
    new: Pod | None


@dataclass(frozen=True, slots=True)
class PodListRead:
    """All pods of the node have been listed; some may have come and gone unseen before."""


@dataclass(frozen=True, slots=True)
class ClaimChanged:
    """A claim allocated on the node is new (no `old`), another version, or gone (no `new`)."""

    old: VGPUClaim | None
    new: VGPUClaim | None


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """A GPUDevice of the node is new (no `old`), another version, or gone (no `new`)."""

    old: GPUDevice | None
    new: GPUDevice | None


@dataclass(frozen=True, slots=True)
class InventoryChanged:
    """The devices that the driver shows, their settings or their health have changed."""


@dataclass(frozen=True, slots=True)
class StartRefused:
    """A container of this pod was refused; the kubelet will ask again."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class StartGranted:
    """A container of this pod was granted its devices."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Something was released: others may have the capacity and the slot."""


@dataclass(frozen=True, slots=True)
class StrangersChanged:
    """Other processes than before use devices without a claim."""


Event: TypeAlias = (
    PodChanged
    | PodListRead
    | ClaimChanged
    | DeviceChanged
    | InventoryChanged
    | StartRefused
    | StartGranted
    | RoomMade
    | StrangersChanged
)


class EventObserver(Protocol):
    """A part that events concern."""

    def observe(self, event: Event) -> None:
        """Take an event into account; called for every event, in order."""


class Events:
    """The events that were observed and are not applied yet."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; it is applied within the next turn of the event loop."""
        self._waiting.append(event)
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Wait for events and return all that are queued, in order."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._waiting = self._waiting, []
        return taken
