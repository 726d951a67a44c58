"""The devices of this node and their capacity.

A device that was seen once stays known. When it falls off the bus its object shows that, and
allocations on it keep counting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from vgpu_api.config import NodeSettings, NvidiaConfig
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import GPUDeviceSpec
from vgpu_nodeagent.discovery.drivers.base import Driver, PhysicalDevice, Repair
from vgpu_nodeagent.errors import DriverUnavailable
from vgpu_nodeagent.events import Events, InventoryChanged

logger = logging.getLogger(__name__)

DEVICE_CORES = 100
_LOOK_S = 15.0
_UUID_MOST = 128
_MEMORY_MOST_MIB = 64 << 20
"""64 TiB."""
_SLICES_MOST = 64
_WORDS_MOST = {"model": 128, "driver's version": 64, "CUDA version": 64, "bus id": 64}
_SHOWN = 40
_NO_MEMORY = Repair(
    "MemoryUnknown",
    "NVML does not report the GPU's memory: give it by spec.memory of the GPUDevice, or for all "
    "such GPUs by nvidia.preConfiguredDeviceMemory of the configuration",
)


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """The capacity of a device, and how it is shared.

    Attributes:
        capacity: The amounts that the device has.
        allocatable: The amounts that may be allocated: capacity times the scaling factors.
        core_policy: When to enforce compute shares of requests that do not say.
        in_mig_mode: True if the device is in MIG mode, and only instances are allocated.
        is_static: True if an administrator made the instances, and none is made or removed.
    """

    capacity: Use
    allocatable: Use
    core_policy: str = "Default"
    in_mig_mode: bool = False
    is_static: bool = False


def allocatable(capacities: Mapping[str, DeviceCapacity]) -> Mapping[str, Use]:
    """Return the amounts of each device that may be allocated, by UUID."""
    return {uuid: device.allocatable for uuid, device in capacities.items()}


def is_static(device: PhysicalDevice, spec: GPUDeviceSpec | None, config: NvidiaConfig) -> bool:
    """True if the instances of a device are allocated as an administrator made them."""
    desired = spec.mig_instances if spec is not None else None
    return device.mig_enabled and (
        desired == "Static" if desired is not None else config.mig_strategy != "none"
    )


def capacity_of(
    device: PhysicalDevice, spec: GPUDeviceSpec | None, config: NvidiaConfig
) -> DeviceCapacity:
    """Return the capacity by the settings of the device's object, else by the configuration."""
    slots = spec.slots if spec is not None and spec.slots is not None else config.device_split_count
    memory = spec.memory_scaling if spec is not None else None
    cores = spec.core_scaling if spec is not None else None
    memory_factor = Fraction(memory or str(config.device_memory_scaling))
    core_factor = Fraction(cores or str(config.device_core_scaling))
    return DeviceCapacity(
        capacity=Use(device.memory_mib, DEVICE_CORES, slots),
        allocatable=Use(
            int(device.memory_mib * memory_factor), int(DEVICE_CORES * core_factor), slots
        ),
        core_policy=spec.core_policy if spec is not None else "Default",
        in_mig_mode=device.mig_enabled,
        is_static=is_static(device, spec, config),
    )


class OwnInstances(Protocol):
    """Knows the MIG instances that the agent made."""

    def own_places(self) -> frozenset[tuple[str, int]]:
        """Return the device UUID and the first memory slice of each instance that the agent made.

        The agent cannot create an instance where one that it did not make already is.
        """


class Inventory:
    """The known devices, which of them are present, and whether the driver responds.

    Args:
        driver: The driver of the devices.
        config: The administrator's settings for all devices.
        own: Knows the MIG instances that the agent made; None if it makes none.
        events: The queue for changes; None if nobody follows them.
    """

    def __init__(
        self,
        driver: Driver,
        config: NvidiaConfig,
        own: OwnInstances | None = None,
        events: Events | None = None,
    ) -> None:
        self._own = own
        self._events = events or Events()
        self._look_requested = asyncio.Event()
        self._driver = driver
        self._config = NodeSettings(config)
        self._known: dict[str, PhysicalDevice] = {}
        self._reported: set[str] = set()
        self._faults: dict[str, str] = {}
        self._present: frozenset[str] = frozenset()
        self._specs: dict[str, GPUDeviceSpec] = {}
        self.driver_error: str | None = "the driver has not been asked yet"

    @property
    def vendor(self) -> str:
        """Return the vendor of the devices."""
        return self._driver.vendor

    @property
    def devices(self) -> Mapping[str, PhysicalDevice]:
        """Return every device that was ever seen, by UUID."""
        return self._known

    def is_present(self, uuid: str) -> bool:
        """True if the driver shows the device now."""
        return self.driver_error is None and uuid in self._present

    @property
    def present(self) -> Mapping[str, PhysicalDevice]:
        """Return the devices that the driver shows now, by UUID."""
        return {uuid: device for uuid, device in self._known.items() if self.is_present(uuid)}

    def capacities(self) -> Mapping[str, DeviceCapacity]:
        """Return the capacity of each known device, by UUID."""
        return {
            uuid: capacity_of(device, self._specs.get(uuid), self._config.nvidia)
            for uuid, device in self._known.items()
        }

    def configure(self, capacities: NodeSettings) -> None:
        """Use the configuration's settings for this node; called before devices are read."""
        self._config = capacities

    def set_spec(self, uuid: str, spec: GPUDeviceSpec) -> None:
        """Use the administrator's settings of a device; they outlive its API object."""
        before = self._specs.get(uuid)
        if before != spec:
            self._specs[uuid] = spec
            if before is None or (before.mig_instances, before.memory) != (
                spec.mig_instances,
                spec.memory,
            ):
                self.look_soon()  # other amounts of the device can be allocated now
            self._events.put(InventoryChanged())

    def look_soon(self) -> None:
        """Read the devices soon: their MIG instances or repairs have changed."""
        self._look_requested.set()

    async def look_again(self) -> None:
        """Wait for `look_soon` or for the usual interval, then refresh."""
        try:
            async with asyncio.timeout(_LOOK_S):  # wait_for may swallow a cancellation
                await self._look_requested.wait()
        except TimeoutError:
            pass
        self._look_requested.clear()
        await self.refresh()

    async def refresh(self) -> None:
        """Read the driver's devices. A driver that does not respond is a state, not an error."""
        before = (dict(self._known), self._present, self.driver_error)
        own = self._own_places()
        try:
            devices = await self._driver.devices()
        except DriverUnavailable as error:
            self.driver_error = str(error)
        else:
            self.driver_error = None
            devices = self._believable(devices)
            self._present = frozenset(device.uuid for device in devices)
            own |= self._own_places()  # an instance may have been made or removed in between
            self._known.update({device.uuid: self._with_places(device, own) for device in devices})
            self._offer_only_alike()
        if (self._known, self._present, self.driver_error) != before:
            logger.info(
                "%d of %d GPUs present%s",
                len(self._present),
                len(self._known),
                f"; driver: {self.driver_error}" if self.driver_error else "",
            )
            self._events.put(InventoryChanged())

    def fault(self, uuid: str) -> str:
        """Return why a static device with instances is not offered; empty if it is."""
        return self._faults.get(uuid, "")

    def is_static(self, uuid: str) -> bool:
        """True if an administrator makes the instances of a device."""
        device = self._known.get(uuid)
        return device is not None and is_static(device, self._specs.get(uuid), self._config.nvidia)

    def _own_places(self) -> frozenset[tuple[str, int]]:
        return frozenset() if self._own is None else self._own.own_places()

    def _with_places(
        self, device: PhysicalDevice, own: frozenset[tuple[str, int]]
    ) -> PhysicalDevice:
        """Return a device with its usable profiles and the possible places of each."""
        if is_static(device, self._specs.get(device.uuid), self._config.nvidia):
            return self._with_usable_profiles(_as_it_is(device, own))
        on_demand = tuple(profile for profile in device.mig_profiles if not profile.has_extras)
        free = _with_free_places(replace(device, mig_profiles=on_demand), own)
        return self._with_usable_profiles(free)

    def _offer_only_alike(self) -> None:
        """Offer no instances if they differ under `single`, where a pod requests any instance."""
        self._faults = {}
        if self._config.nvidia.mig_strategy != "single":
            return
        static = [device for uuid, device in self._known.items() if self.is_static(uuid)]
        kinds = sorted({profile.name for device in static for profile in device.mig_profiles})
        if len(kinds) < 2:
            return
        fault = (
            f"migStrategy single needs MIG instances of one profile on the node, and there are "
            f"{', '.join(kinds)}: none is offered"
        )
        for device in static:
            self._faults[device.uuid] = fault
            self._known[device.uuid] = replace(device, mig_profiles=())
        self._say_once(fault, level=logging.ERROR)

    def _believable(self, devices: Iterable[PhysicalDevice]) -> tuple[PhysicalDevice, ...]:
        """Return the driver's devices; one with impossible values keeps its last known state."""
        found: dict[str, PhysicalDevice] = {}
        for device in map(self._complete, devices):
            if self._config.leaves_out(device.uuid, device.index):
                self._say_once(f"GPU {device.index} ({device.uuid}) is left out: filterDevices")
                continue
            why = _nonsense(device) or ("another GPU has that UUID" if device.uuid in found else "")
            if why:
                self._say_once(
                    f"GPU {device.index} ({device.uuid or 'no UUID'}): {why}; it is ignored",
                    level=logging.ERROR,
                )
                known = self._known.get(device.uuid)
                if known is not None and device.uuid not in found:
                    found[device.uuid] = known
                continue
            found[device.uuid] = device
        return tuple(found.values())

    def _complete(self, device: PhysicalDevice) -> PhysicalDevice:
        """Return a device with the administrator's amount of memory if the driver reports none."""
        if device.memory_mib:
            return device
        known = self._known.get(device.uuid)
        if device.repair is not None:  # a call failed: the device is as it was before
            return device if known is None else replace(known, repair=device.repair)
        spec = self._specs.get(device.uuid)
        given = (spec.memory_mib if spec is not None else 0) or (
            self._config.nvidia.pre_configured_device_memory
        )
        if given:
            return replace(device, memory_mib=given)
        memory_mib = 0 if known is None else known.memory_mib  # allocations there keep counting
        return replace(device, memory_mib=memory_mib, repair=_NO_MEMORY)

    def _say_once(self, sentence: str, *, level: int = logging.INFO) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.log(level, "%s", sentence)

    def _with_usable_profiles(self, device: PhysicalDevice) -> PhysicalDevice:
        """Return a device with only the MIG profiles that the configuration allows."""
        usable = self._config.nvidia.usable_profiles(
            device.model, (profile.name for profile in device.mig_profiles)
        )
        kept = tuple(profile for profile in device.mig_profiles if profile.name in usable)
        return (
            device if len(kept) == len(device.mig_profiles) else replace(device, mig_profiles=kept)
        )


def _nonsense(device: PhysicalDevice) -> str:
    """Return which value of a device is impossible; empty if none is."""
    if not 0 < len(device.uuid) <= _UUID_MOST or not device.uuid.isprintable():
        return "its UUID cannot be one"
    is_unread = device.memory_mib == 0 and device.repair is not None
    if not is_unread and not 0 < device.memory_mib <= _MEMORY_MOST_MIB:
        return f"its memory cannot be {device.memory_mib} MiB"
    if device.index < 0 or device.minor < 0:
        return f"its numbers cannot be {device.index} and {device.minor}"
    for what, words in _words_of(device).items():
        if len(words) > _WORDS_MOST[what] or not words.isprintable():
            return f"its {what} cannot be {words[:_SHOWN]!r}"
    return _nonsense_of_instances(device)


def _words_of(device: PhysicalDevice) -> dict[str, str]:
    """Return the driver's texts about a device, which are limited by `_WORDS_MOST`."""
    return {
        "model": device.model,
        "driver's version": device.driver_version,
        "CUDA version": device.runtime_version,
        "bus id": device.pci_bus_id,
    }


def _nonsense_of_instances(device: PhysicalDevice) -> str:
    """Return which MIG profile or instance is impossible: slices are the bits of a number."""
    placed = [(p.name, *place) for p in device.mig_profiles for place in p.places]
    placed += [(i.profile, i.start, i.size) for i in device.mig_instances]
    for name, start, size in placed:
        if not 0 <= start < _SLICES_MOST or not 0 < size <= _SLICES_MOST:
            return f"its MIG profile {name[:_SHOWN]!r} cannot lie at slice {start}, {size} long"
    for profile in device.mig_profiles:
        is_possible = 0 < profile.memory_mib <= _MEMORY_MOST_MIB
        if not is_possible or not 0 <= profile.cores <= DEVICE_CORES:
            return (
                f"its MIG profile {profile.name[:_SHOWN]!r} cannot have {profile.memory_mib} MiB "
                f"and {profile.cores} % of compute"
            )
    return ""


def _as_it_is(device: PhysicalDevice, own: frozenset[tuple[str, int]]) -> PhysicalDevice:
    """Return a copy of a device that offers only the usable instances of an administrator."""
    there = [i for i in device.mig_instances if i.uuid and (device.uuid, i.start) not in own]
    profiles = (
        replace(
            profile,
            places=tuple((i.start, i.size) for i in there if i.profile == profile.name),
        )
        for profile in device.mig_profiles
    )
    return replace(device, mig_profiles=tuple(profile for profile in profiles if profile.places))


def _with_free_places(device: PhysicalDevice, own: frozenset[tuple[str, int]]) -> PhysicalDevice:
    """Return a device without the placements that overlap another owner's instance."""
    others = [i for i in device.mig_instances if (device.uuid, i.start) not in own]
    if not others:
        return device
    free = [
        replace(
            profile,
            places=tuple(
                place
                for place in profile.places
                if not any(other.overlaps(*place) for other in others)
            ),
        )
        for profile in device.mig_profiles
    ]
    return replace(device, mig_profiles=tuple(free))
