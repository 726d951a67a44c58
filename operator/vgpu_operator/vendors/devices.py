"""The interface through which vendors' rules read devices and nodes, which are numbers here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Devices(Protocol):
    """The devices of a cluster as parallel sequences: a view of placement's columns."""

    @property
    def uuid(self) -> Sequence[str]:
        """Return the UUID of each device."""

    @property
    def index(self) -> Sequence[int]:
        """Return the number of each device on its node."""

    @property
    def links(self) -> Sequence[Mapping[str, int]]:
        """Return the UUIDs that each device is linked with, and the quality of the link."""

    @property
    def slots_used(self) -> Sequence[int]:
        """Return the slots in use, by device."""

    @property
    def slices_used(self) -> Sequence[int]:
        """Return numbered cores in use and marks of pods (`neighbours`) as bits, by device."""

    @property
    def node_devices(self) -> Sequence[Sequence[int]]:
        """Return the devices of each node."""

    def number_of(self, name: str) -> int:
        """Return the number of a device, given the name of its GPUDevice object."""


class Granted(Protocol):
    """A part of a device that a claim would get."""

    @property
    def device(self) -> str:
        """Return the name of its GPUDevice object."""

    @property
    def cores(self) -> int:
        """Return its share of the device's compute, in percent."""

    @property
    def neighbours(self) -> int:
        """Return the marks of the request (`neighbours.marks_of`)."""
