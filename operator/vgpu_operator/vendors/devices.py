"""The interface through which vendors' rules read devices and nodes, which are numbers here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Devices(Protocol):
    """The devices of a cluster as parallel sequences: a view of placement's columns."""

    @property
    def uuid(self) -> Sequence[str]:
        """The UUID of each device."""

    @property
    def index(self) -> Sequence[int]:
        """The number of each device on its node."""

    @property
    def links(self) -> Sequence[Mapping[str, int]]:
        """The UUIDs that each device is linked with, and the quality of the link."""

    @property
    def slots_used(self) -> Sequence[int]:
        """The slots in use, by device."""

    @property
    def slices_used(self) -> Sequence[int]:
        """The numbered cores in use and the marks of pods (`neighbours`) as bits, by device."""

    @property
    def node_devices(self) -> Sequence[Sequence[int]]:
        """The devices of each node."""

    def number_of(self, name: str) -> int:
        """Return the number of a device, given the name of its GPUDevice object."""


class Granted(Protocol):
    """A part of a device that a claim would get."""

    @property
    def device(self) -> str:
        """The name of its GPUDevice object."""

    @property
    def cores(self) -> int:
        """Its share of the device's compute, in percent."""

    @property
    def neighbours(self) -> int:
        """The marks of the request (`neighbours.marks_of`)."""
