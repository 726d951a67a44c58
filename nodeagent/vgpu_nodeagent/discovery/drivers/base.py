"""The protocol between the agent and the driver of a vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

_EXTRAS = frozenset("+-")


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """The path from one device to another of the machine; a higher score is a better path."""

    peer: str
    type: str
    score: int


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kind of instance that a device in MIG mode can have.

    Attributes:
        name: The driver's name for it, such as 1g.5gb.
        cores: The percentage of the device's compute.
        slices: The number of compute slices.
        places: Possible first memory slices, each with the number of memory slices.
    """

    name: str
    memory_mib: int
    cores: int
    slices: int
    places: tuple[tuple[int, int], ...]

    @property
    def has_extras(self) -> bool:
        """True for a variant with or without media engines or graphics.

        A device has few of these and places do not show them, so only administrators make such
        instances.
        """
        return bool(_EXTRAS & set(self.name))


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance that exists or is wanted.

    Attributes:
        profile: The name of its profile.
        start: The first memory slice.
        size: The number of memory slices.
        uuid: The UUID by which programs use it; empty as long as none can.
        gpu_instance: The id of the GPU instance in the device.
        compute_instance: The id of the compute instance in the GPU instance.
    """

    profile: str
    start: int
    size: int
    uuid: str = ""
    gpu_instance: int = 0
    compute_instance: int = 0

    def overlaps(self, start: int, size: int) -> bool:
        """True if it occupies any of these memory slices."""
        return self.start < start + size and start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.profile} at slice {self.start}"


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that a device needs before it is healthy again.

    Attributes:
        reason: The repair in CamelCase, for conditions.
        message: The repair in a sentence.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """One physical device as the driver describes it.

    Attributes:
        index: Its index on the machine.
        memory_mib: Its memory; 0 if the driver does not report it.
        minor: The minor number of its device node.
        numa_node: The nearest NUMA node of the host; None if unknown on a host with several.
        repair: The repair that it needs; None if the driver reports none.
        mig_enabled: True if it is in MIG mode.
        mig_profiles: The instances that it can have.
        mig_instances: The instances that it has.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    minor: int
    architecture: str = ""
    compute_capability: str = ""
    driver_version: str = ""
    runtime_version: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    repair: Repair | None = None
    mig_enabled: bool = False
    mig_profiles: tuple[InstanceProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    links: tuple[DeviceLink, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The memory (MiB) and compute (percent) in use on a device."""

    memory_mib: int
    cores: int


class Severity(StrEnum):
    """The effect of an event on the health of a device."""

    APPLICATION = "Application"
    """A fault of a program; the device is healthy."""
    FATAL = "Fatal"
    """The device is unhealthy."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An event that the driver reported; `uuid` is empty if it names no device."""

    uuid: str
    severity: Severity
    reason: str
    message: str


class Driver(Protocol):
    """The driver of one vendor. Every call may raise `DriverUnavailable`, and none hangs."""

    @property
    def vendor(self) -> str:
        """Return the vendor's name, as in a request's `vendor`."""

    async def devices(self) -> tuple[PhysicalDevice, ...]:
        """Return the devices of this machine, by index."""

    async def usage(self) -> Mapping[str, DeviceUsage]:
        """Return memory and compute in use, by UUID; devices without a reading are left out."""

    async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes that each process holds, by UUID of the device and PID on the host."""

    async def process_peaks(self) -> Mapping[str, Mapping[int, int]]:
        """Return the peak bytes of each running process, if the driver keeps accounts.

        By UUID of the device and PID on the host; devices that keep none are left out.
        """

    async def compute_since(self, marks: dict[str, int]) -> Mapping[str, Mapping[int, float]]:
        """Return the percentage of compute that each process used, on average since the marks.

        By UUID of the device and PID on the host; devices without a reading are left out, and one
        without compute has no processes.

        Args:
            marks: The timestamp of the last sample that was read, by UUID of the device. Each
                reader has its own dictionary, empty at first, and this call updates it. The driver
                chooses the clock of the timestamps.
        """

    async def limit_memory(self, cgroup: Path, limits: Mapping[str, int]) -> None:
        """Limit the bytes that the processes of a cgroup may hold, by UUID of the device.

        Raises:
            LimitsUnsupported: This driver cannot limit memory by cgroup.
        """

    async def instance_at(self, device: str, desired: MigInstance) -> MigInstance | None:
        """Return the instance of this profile at this place, of any owner; None if none exists."""

    async def check_place(self, device: str, desired: MigInstance) -> None:
        """Check that the place of a wanted instance is free.

        Raises:
            PlaceTaken: Another instance overlaps it.
        """

    async def make_instance(
        self, device: str, desired: MigInstance, *, known: str | None
    ) -> MigInstance:
        """Return an instance of a device in MIG mode, and make it if it does not exist.

        Args:
            device: The device's UUID.
            desired: The profile and place.
            known: None if an existing instance is not ours; empty if it is ours and may be
                incomplete; else the UUID that the existing instance must have.

        Raises:
            PlaceTaken: Another instance overlaps the place.
            InstanceLost: The known instance is gone. Nothing was made, so that the loss can be
                recorded first.
        """

    async def remove_instance(self, device: str, instance: MigInstance) -> None:
        """Remove an instance; do nothing if it is gone or another one is at its place.

        Args:
            device: The device's UUID.
            instance: The profile and place, and the UUID if it is known.

        Raises:
            InstanceInUse: Something still runs on it.
        """

    async def next_event(self) -> DeviceEvent:
        """Wait for an event of the driver."""

    def close(self) -> None:
        """Release the driver, without waiting for a call that hangs."""
