"""NVIDIA devices through NVML; neighbouring modules handle links, MIG, NUMA nodes and recovery.

NVML is loaded when it is first needed and again after it was lost, so the agent may start before
the driver is installed. Every call runs in a thread with a deadline; events have a thread of their
own, because waiting for them blocks.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from vgpu_nodeagent.discovery.drivers import nvidia_mig
from vgpu_nodeagent.discovery.drivers.base import (
    DeviceEvent,
    DeviceUsage,
    MigInstance,
    PhysicalDevice,
    Repair,
    Severity,
)
from vgpu_nodeagent.discovery.drivers.calls import CallThread
from vgpu_nodeagent.discovery.drivers.device_nodes import may_partition
from vgpu_nodeagent.discovery.drivers.numa import SYSFS, HostNuma
from vgpu_nodeagent.discovery.drivers.nvidia_links import links_of, nvlinks_of
from vgpu_nodeagent.discovery.drivers.nvidia_recovery import repair_of
from vgpu_nodeagent.discovery.drivers.nvml import DRIVER_LOST, bus_id, of_each, optional, text
from vgpu_nodeagent.errors import DriverUnavailable, LimitsUnsupported

logger = logging.getLogger(__name__)

T = TypeVar("T")

MIB = 1 << 20
DEADLINE_S = 10.0
_EVENT_WAIT_MS = 1000
_EVENT_RETRY_S = 30.0

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the device. Source: NVIDIA's XID catalogue ("user application")."""

_ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere"}
_ARCHITECTURES |= {8: "Ada", 9: "Hopper", 10: "Blackwell"}
_AFFINITY_WORDS = 16
"""Words of 64 bits for as many NUMA nodes as a kernel can have."""


class NvidiaDriver:
    """All NVIDIA devices of this machine.

    Args:
        deadline_s: Seconds that a call may take.
        nvml: Returns the path of NVML's library, or None if the loader finds it. It may raise
            DriverUnavailable, and then every call does: devices that no container can use must not
            be offered.
        sysfs: Where sysfs is mounted.
    """

    def __init__(
        self,
        *,
        deadline_s: float = DEADLINE_S,
        nvml: Callable[[], Path | None] = lambda: None,
        sysfs: Path = SYSFS,
    ) -> None:
        self._host = HostNuma(sysfs)
        self._nvml = nvml
        self._calls = CallThread("NVML", deadline_s=deadline_s)
        self._events = CallThread("NVML events", deadline_s=deadline_s)
        self._may_partition = may_partition()
        self._has_warned = False
        self._loaded = False
        self._event_set: Any = None
        self._event_uuids: dict[int, str] = {}
        self._lost_in_a_row = 0

    @property
    def vendor(self) -> str:
        """Return the value of a request's `vendor`."""
        return "nvidia"

    async def devices(self) -> tuple[PhysicalDevice, ...]:
        """Return the devices, by index.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        devices = await self._calls.call(
            self._guarded(partial(_read_devices, self._may_partition, self._host))
        )
        if (
            not self._may_partition
            and not self._has_warned
            and any(device.mig_enabled for device in devices)
        ):
            self._has_warned = True
            logger.warning("GPUs in MIG mode are not offered: this agent may not make instances")
        return devices

    async def usage(self) -> Mapping[str, DeviceUsage]:
        """Return memory and compute in use, by UUID.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        return await self._calls.call(self._guarded(_read_usage))

    async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes that each process holds, by UUID of the device and PID on the host.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        return await self._calls.call(self._guarded(_read_processes))

    async def process_peaks(self) -> Mapping[str, Mapping[int, int]]:
        """Return the peak bytes of each running process, by NVML's accounting.

        By UUID of the device and PID on the host; devices without accounting are left out.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        return await self._calls.call(self._guarded(_read_peaks))

    async def compute_since(self, marks: dict[str, int]) -> Mapping[str, Mapping[int, float]]:
        """Return the percentage of compute that each process used, on average since the marks.

        By UUID of the device and PID on the host; devices without a reading are left out, and one
        without compute has no processes.

        Args:
            marks: See `Driver.compute_since`.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        return await self._calls.call(self._guarded(partial(_read_compute, marks)))

    async def limit_memory(self, cgroup: Path, limits: Mapping[str, int]) -> None:
        """Limit the bytes that the processes of a cgroup may hold, by UUID of the device.

        Raises:
            LimitsUnsupported: The driver is older than r615, or the kernel does not support it.
            DriverUnavailable: NVML is missing, fails or hangs, or reports another limit afterwards.
        """
        await self._calls.call(self._guarded(partial(_limit_memory, cgroup, limits)))

    async def instance_at(self, device: str, desired: MigInstance) -> MigInstance | None:
        """Return the instance of this profile at this place, of any owner; None if none exists.

        Raises:
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        return await self._calls.call(
            self._guarded(partial(nvidia_mig.instance_at, device, desired))
        )

    async def check_place(self, device: str, desired: MigInstance) -> None:
        """Check that the place of a wanted instance is free.

        Raises:
            PlaceTaken: Another instance overlaps it.
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        await self._calls.call(self._guarded(partial(nvidia_mig.check_place, device, desired)))

    async def make_instance(
        self, device: str, desired: MigInstance, *, known: str | None
    ) -> MigInstance:
        """Return an instance of a device in MIG mode, and make it if it does not exist.

        Raises:
            PlaceTaken: Another instance overlaps the place.
            InstanceLost: It was made before and is gone.
            DriverUnavailable: NVML is missing, fails or hangs, or cannot make it.
        """
        job = partial(nvidia_mig.make_instance, device, desired, known=known)
        return await self._calls.call(self._guarded(job))

    async def remove_instance(self, device: str, instance: MigInstance) -> None:
        """Remove an instance if it exists.

        Raises:
            InstanceInUse: Something still runs on it.
            DriverUnavailable: NVML is missing, fails or hangs.
        """
        await self._calls.call(self._guarded(partial(nvidia_mig.remove_instance, device, instance)))

    async def next_event(self) -> DeviceEvent:
        """Wait for an XID or ECC event; retry later while the driver does not respond."""
        while True:
            try:
                event = await self._events.call(self._guarded(self._wait_event))
            except DriverUnavailable:
                self._event_set = None
                await asyncio.sleep(_EVENT_RETRY_S)
                continue
            if event is not None:
                return event

    def close(self) -> None:
        """End the threads."""
        self._calls.close()
        self._events.close()

    def _guarded(self, function: Callable[[], T]) -> Callable[[], T]:
        """Wrap a function to load NVML first and to translate its errors."""

        def guarded() -> T:
            library = self._nvml()
            try:
                if not self._loaded:
                    _load(library)
                    pynvml.nvmlInit()
                    self._loaded = True
                return function()
            except pynvml.NVMLError as error:
                if error.value in DRIVER_LOST:
                    self._loaded = False
                raise DriverUnavailable(f"NVML: {error}") from error

        return guarded

    def _wait_event(self) -> DeviceEvent | None:
        if self._event_set is None:
            self._event_set, self._event_uuids = _register_events()
        try:
            data = pynvml.nvmlEventSetWait_v2(self._event_set, _EVENT_WAIT_MS)
        except pynvml.NVMLError_Timeout:
            self._lost_in_a_row = 0
            return None
        except pynvml.NVMLError_GpuIsLost:
            # A GPU of the set is lost. Watch the others at once, because NVML keeps no events while
            # nobody waits; if that fails again, wait before the next try.
            pynvml.nvmlEventSetFree(self._event_set)
            self._event_set = None
            self._lost_in_a_row += 1
            if self._lost_in_a_row > 1:
                raise
            return None
        self._lost_in_a_row = 0
        # Look up the UUID by the handle instead of asking NVML: a GPU that fell off the bus no
        # longer has one, and an event without a UUID would be taken to mean every GPU.
        uuid = self._event_uuids.get(_address(data.device), "")
        return classify(uuid, int(data.eventType), int(data.eventData))


def _load(library: Path | None) -> None:
    """Load NVML from its path, so that pynvml finds it by its name."""
    if library is None:
        return
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise DriverUnavailable(f"NVML: {error}") from error


def classify(uuid: str, event_type: int, data: int) -> DeviceEvent:
    """Return the effect of an NVML event on its device.

    Args:
        uuid: The device; empty if the driver names none, and the event applies to all devices.
        event_type: The type of the NVML event.
        data: The XID of an XID event.
    """
    if event_type == pynvml.nvmlEventTypeXidCriticalError:
        severity = Severity.APPLICATION if data in APPLICATION_XIDS else Severity.FATAL
        return DeviceEvent(uuid, severity, f"XID{data}", f"the driver reported XID {data}")
    return DeviceEvent(uuid, Severity.FATAL, "DoubleBitECC", "an uncorrectable memory error")


def _address(handle: Any) -> int:
    """Return the address of a handle, which is the same for a device each time."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _register_events() -> tuple[Any, dict[int, str]]:
    """Return an event set for all devices, and their UUIDs by handle address."""
    desired = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    event_set = pynvml.nvmlEventSetCreate()

    uuids: dict[int, str] = {}

    def register(handle: Any, uuid: str) -> None:
        uuids[_address(handle)] = uuid
        supported = optional(partial(pynvml.nvmlDeviceGetSupportedEventTypes, handle), 0)
        if supported & desired:
            pynvml.nvmlDeviceRegisterEvents(handle, supported & desired, event_set)

    of_each(_answering(), register)
    return event_set, uuids


def _read_devices(may_partition: bool, host: HostNuma) -> tuple[PhysicalDevice, ...]:
    driver = text(pynvml.nvmlSystemGetDriverVersion())
    version = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0)
    runtime = f"{version // 1000}.{version % 1000 // 10}" if version else ""
    found = list(_answering())
    handles = [handle for _, handle, _ in found]
    uuids = [uuid for _, _, uuid in found]
    nvlinks = [nvlinks_of(handle) for handle in handles]
    return tuple(
        replace(
            device,
            driver_version=driver,
            runtime_version=runtime,
            links=links_of(at, uuids, handles, nvlinks),
        )
        for at, (index, handle, uuid) in enumerate(found)
        if (device := _device_or_fault(index, handle, uuid, may_partition, host)) is not None
    )


def _answering() -> Iterator[tuple[int, Any, str]]:
    """Yield index, handle and UUID of every device that responds.

    A device that fell off the bus or has no UUID is left out, so that it does not hide the others.
    """
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            logger.debug("GPU %d does not answer: %s", index, error)
            continue
        yield index, handle, uuid


def _device_or_fault(
    index: int, handle: Any, uuid: str, may_partition: bool, host: HostNuma
) -> PhysicalDevice | None:
    """Return a device, with the error as its repair if a call for it fails.

    None for a lost device: it counts as one that the driver does not show.
    """
    try:
        return _device(index, handle, uuid, may_partition=may_partition, host=host)
    except pynvml.NVMLError as error:
        if error.value in DRIVER_LOST:
            raise
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            return None
        fault = Repair("DriverCallFailed", f"NVML fails for this GPU: {error}")
        return PhysicalDevice(
            index=index, uuid=uuid, model="", memory_mib=0, minor=index, repair=fault
        )


def _device(
    index: int, handle: Any, uuid: str, *, may_partition: bool, host: HostNuma
) -> PhysicalDevice:
    """Return a device without its links and the driver's version."""
    major, minor = optional(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle), (0, 0))
    architecture = optional(lambda: pynvml.nvmlDeviceGetArchitecture(handle), 0)
    bus = bus_id(handle)
    in_mig_mode = optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == 1, False)
    return PhysicalDevice(
        index=index,
        uuid=uuid,
        model=text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=optional(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), 0) // MIB,
        minor=optional(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), index),
        architecture=_ARCHITECTURES.get(architecture, ""),
        compute_capability=f"{major}.{minor}" if major else "",
        pci_bus_id=bus,
        numa_node=host.node_of(bus, _affinity(handle)),
        repair=repair_of(handle),
        mig_enabled=in_mig_mode,
        mig_profiles=nvidia_mig.profiles_of(handle) if in_mig_mode and may_partition else (),
        mig_instances=nvidia_mig.instances_of(handle) if in_mig_mode else (),
    )


def _affinity(handle: Any) -> tuple[int, ...]:
    """Return the memory affinity, one bit per NUMA node in words of 64; empty if unsupported."""
    query = partial(
        pynvml.nvmlDeviceGetMemoryAffinity,
        handle,
        _AFFINITY_WORDS,
        pynvml.NVML_AFFINITY_SCOPE_NODE,
    )
    words: list[int] = optional(lambda: [int(word) for word in query()], [])
    return tuple(words)


def _read_usage() -> Mapping[str, DeviceUsage]:
    return of_each(_answering(), _usage_of)


def _usage_of(handle: Any, uuid: str) -> DeviceUsage:
    memory = optional(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), None)
    if memory is None:
        # A GPU that shares the host's memory reports no total, but its processes do.
        memory = sum(_processes_of(handle, uuid).values())
    rates = optional(partial(pynvml.nvmlDeviceGetUtilizationRates, handle), None)
    return DeviceUsage(memory // MIB, int(rates.gpu) if rates is not None else 0)


def _read_processes() -> Mapping[str, Mapping[int, int]]:
    return of_each(_answering(), _processes_of)


def _processes_of(handle: Any, uuid: str) -> dict[int, int]:
    held: dict[int, int] = {}
    for query in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        listed: list[Any] = optional(partial(query, handle), [])
        for process in listed:
            # A process that does both is in both lists, with the same figure.
            held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
    return held


def _read_compute(marks: dict[str, int]) -> Mapping[str, Mapping[int, float]]:
    return of_each(_answering(), partial(_compute_of, marks))


def _compute_of(marks: dict[str, int], handle: Any, uuid: str) -> Mapping[int, float]:
    """Return the compute of processes; fails for a device without a reading, as in MIG mode."""
    since = marks.get(uuid, 0)
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError_NotFound:
        samples = []  # no process computed
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        if sample.timeStamp > since:
            by_pid.setdefault(int(sample.pid), []).append(int(sample.smUtil))
    marks[uuid] = max([since, *(int(sample.timeStamp) for sample in samples)])
    return {pid: sum(seen) / len(seen) for pid, seen in by_pid.items()}


def _limit_memory(cgroup: Path, limits: Mapping[str, int]) -> None:
    """Source: NVML's reference, nvmlDeviceSetMemoryLimits_v1; the namespace is a cgroup's path."""
    place = os.fsencode(cgroup)
    for uuid, limit in limits.items():
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        desired = pynvml.c_nvmlSetMemoryLimits_v1_t(place, 0, limit)
        said = pynvml.c_nvmlGetMemoryLimits_v1_t(place)
        try:
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, desired)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, said)
        except (
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_NoPermission,
        ) as error:
            version = text(pynvml.nvmlSystemGetDriverVersion())
            raise LimitsUnsupported(
                f"driver {version} limits no memory by cgroup ({error}), which needs r615 and "
                "root: use --limit-backend=Library"
            ) from error
        if said.hardLimit != limit:
            raise DriverUnavailable(
                f"NVML: set a limit of {limit} bytes on GPU {uuid}, but it reports {said.hardLimit}"
            )


def _read_peaks() -> Mapping[str, Mapping[int, int]]:
    found = of_each(_answering(), _peaks_of)
    return {uuid: peaks for uuid, peaks in found.items() if peaks is not None}


def _peaks_of(handle: Any, uuid: str) -> Mapping[int, int] | None:
    """Return the peak bytes of each running process; None if accounting is off."""
    mode = optional(partial(pynvml.nvmlDeviceGetAccountingMode, handle), 0)
    if mode != pynvml.NVML_FEATURE_ENABLED:
        return None
    peaks: dict[int, int] = {}
    running: list[Any] = optional(partial(pynvml.nvmlDeviceGetComputeRunningProcesses, handle), [])
    for process in running:
        try:
            stats = pynvml.nvmlDeviceGetAccountingStats(handle, process.pid)
        except pynvml.NVMLError:
            continue  # it has ended, or newer records have displaced its own
        if int(stats.maxMemoryUsage) < 1 << 63:  # all bits set: not available
            peaks[int(process.pid)] = int(stats.maxMemoryUsage)
    return peaks
