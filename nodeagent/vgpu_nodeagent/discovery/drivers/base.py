"""What the agent reads from a vendor's driver, the same for each vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

_EXTRAS = frozenset("+-")


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """How a device reaches another one of its machine; a higher score is a better path."""

    peer: str
    type: str
    score: int


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """What a device in MIG mode can be cut into.

    Attributes:
        name: As the driver spells it, such as 1g.5gb.
        cores: Its part of the device's compute, in percent.
        slices: Its compute slices.
        places: Where it may lie: first memory slice, and how many.
    """

    name: str
    memory_mib: int
    cores: int
    slices: int
    places: tuple[tuple[int, int], ...]

    @property
    def has_extras(self) -> bool:
        """Whether it has media engines or graphics, or lacks them.

        A device has few of those, which places do not show: such instances are an administrator's.
        """
        return bool(_EXTRAS & set(self.name))


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part cut out of a device, or to be cut.

    Attributes:
        profile: Its profile's name.
        start: Its first memory slice.
        size: How many memory slices it takes.
        uuid: How programs name it; empty as long as none can use it.
        gpu_instance: Its number in the device.
        compute_instance: The number of what computes in it.
    """

    profile: str
    start: int
    size: int
    uuid: str = ""
    gpu_instance: int = 0
    compute_instance: int = 0

    def overlaps(self, start: int, size: int) -> bool:
        """Whether it lies on any of these memory slices."""
        return self.start < start + size and start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.profile} at slice {self.start}"


@dataclass(frozen=True, slots=True)
class Repair:
    """What a device needs before it can be relied on again.

    Attributes:
        reason: In CamelCase, for conditions; it names the action.
        message: The same in a sentence.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """One physical device as the driver describes it.

    Attributes:
        index: Its number on the machine.
        memory_mib: 0 where the driver does not report it.
        minor: The number of its device node.
        numa_node: The host's NUMA node nearest to it. None: unknown, on a host with several.
        repair: What it needs before it can be relied on; None: nothing, as the driver reports.
        mig_enabled: It is in multi-instance mode.
        mig_profiles: What it can then be cut into.
        mig_instances: What it is cut into.
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
    """What is really in use on a device: MiB and percent."""

    memory_mib: int
    cores: int


class Severity(StrEnum):
    """What an event means for the device's health."""

    APPLICATION = "Application"
    """A program's own fault: the device is fine."""
    FATAL = "Fatal"
    """The device cannot be relied on."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Something that the driver reported about a device; `uuid` is empty when it names none."""

    uuid: str
    severity: Severity
    reason: str
    message: str


class Driver(Protocol):
    """One vendor's devices. Every call may raise `DriverUnavailable`, and none hangs."""

    @property
    def vendor(self) -> str:
        """The vendor's name, as in a request's `vendor`."""

    async def devices(self) -> tuple[PhysicalDevice, ...]:
        """The devices of this machine, by index."""

    async def usage(self) -> Mapping[str, DeviceUsage]:
        """What is in use, by UUID; devices without a reading are left out."""

    async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
        """Bytes that each process holds, by UUID of the device and PID on the host."""

    async def process_peaks(self) -> Mapping[str, Mapping[int, int]]:
        """The most bytes that each running process has held, where the driver keeps accounts.

        By UUID of the device and PID on the host; devices that keep none are left out.
        """

    async def compute_since(self, marks: dict[str, int]) -> Mapping[str, Mapping[int, float]]:
        """Percent of the compute that each process used, on average since the marks.

        By UUID of the device and PID on the host; devices without a reading are left out, and one
        without compute has no processes.

        Args:
            marks: By UUID of the device: the stamp of the last sample that was read. Each reader
                has its own, empty at first, and moved by this call. (Stamps are the driver's: what
                clock they are of differs.)
        """

    async def limit_memory(self, cgroup: Path, limits: Mapping[str, int]) -> None:
        """Let the processes of a cgroup hold no more than so many bytes, by UUID of the device.

        Raises:
            LimitsUnsupported: This driver has no such limits.
        """

    async def instance_at(self, device: str, desired: MigInstance) -> MigInstance | None:
        """The instance of this profile at this place, ours or not; None without one."""

    async def check_place(self, device: str, desired: MigInstance) -> None:
        """Make sure that nothing lies where an instance shall be made.

        Raises:
            PlaceTaken: Something does.
        """

    async def make_instance(
        self, device: str, desired: MigInstance, *, known: str | None
    ) -> MigInstance:
        """An instance of a device in MIG mode, made where it is not there yet.

        Args:
            device: The device's UUID.
            desired: Profile and place.
            known: None: one that is there already is not ours. Empty: it is, whichever it is, and
                is finished. Else it must be there already, with this UUID.

        Raises:
            PlaceTaken: Something else lies there.
            InstanceLost: It is not there any more; nothing was made, so that this can be recorded.
        """

    async def remove_instance(self, device: str, instance: MigInstance) -> None:
        """Take an instance away; one that is gone, or another in its place, is left alone.

        Args:
            device: The device's UUID.
            instance: Profile and place, and its UUID if that is known.

        Raises:
            InstanceInUse: Something runs on it.
        """

    async def next_event(self) -> DeviceEvent:
        """Wait for the driver to report something."""

    def close(self) -> None:
        """Let go of the driver. Does not wait for a call that hangs."""
