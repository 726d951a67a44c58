"""The questions a rule of a vendor's table may ask about devices and nodes (numbers here)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Devices(Protocol):
    """The devices of a cluster, as parallel sequences: a view of placement's columns."""

    @property
    def uuid(self) -> Sequence[str]:
        """By device: its UUID."""

    @property
    def index(self) -> Sequence[int]:
        """By device: its number on its node."""

    @property
    def links(self) -> Sequence[Mapping[str, int]]:
        """By device: the UUIDs of the devices it is linked with, and how well."""

    @property
    def slots_used(self) -> Sequence[int]:
        """By device: the slots in use."""

    @property
    def slices_used(self) -> Sequence[int]:
        """By device: numbered cores in use and marks of its pods (`neighbours`), as bits."""

    @property
    def node_devices(self) -> Sequence[Sequence[int]]:
        """By node: its devices."""

    def number_of(self, name: str) -> int:
        """Return the number of a device, by the name of its GPUDevice object."""


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
