"""Reads the usage of containers every few seconds, for metrics only.

Memory comes from the usage region if the container has the library, because the limit is checked
against it; otherwise (whole devices, MIG instances) it comes from the driver. Compute always comes
from the driver, per process. No API object shows usage: an object that changed with it would keep
etcd and every watcher busy.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, Driver
from vgpu_nodeagent.enforcement.abi import UNLIMITED
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.enforcement.processes import index_of, mapped_by, pods_of_process, start_time
from vgpu_nodeagent.enforcement.region import DeviceUse
from vgpu_nodeagent.errors import DriverUnavailable, PageDamaged
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotRecord, SlotState

logger = logging.getLogger(__name__)

PERIOD_S = 3.0
"""Seconds between readings: a new claim has its series after this long."""

_NOTHING = DeviceUse(uuid="", used_bytes=0, peak_bytes=0, denied_count=0)
_Key = tuple[str, str]
"""A slot allocation, and the UUID of a device or instance."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The limits and usage of one container on one device.

    Attributes:
        namespace: The namespace of pod and claim.
        pod: The pod's name.
        container: The container's name.
        claim: The claim's name.
        number: The index of the device in the container, from 0.
        uuid: The UUID of the device or MIG instance.
        memory_limit: Bytes; None for all memory of the device.
        memory_used: Bytes.
        memory_peak: The highest number of bytes ever; None without the library.
        cores_limit: The share of the device's compute, 0 to 1; None without a limit.
        cores_used: The share of the device's compute in use, 0 to 1; None without a reading.
        denied: The number of allocations refused because of the limit.
        throttled_s: The seconds that launches were throttled in total.
    """

    namespace: str
    pod: str
    container: str
    claim: str
    number: int
    uuid: str
    memory_limit: int | None
    memory_used: int
    memory_peak: int | None
    cores_limit: float | None
    cores_used: float | None
    denied: int
    throttled_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading.

    Attributes:
        devices: The usage of each device that the driver reports, by UUID; empty while it does
            not respond.
        containers: The usage of every container with a grant, one entry per device.
    """

    devices: Mapping[str, DeviceUsage] = field(default_factory=dict)
    containers: tuple[ContainerUse, ...] = ()


class UsageReader:
    """Reads the usage of all containers.

    Args:
        driver: Reports compute, and memory of containers without the library.
        record: The slot allocations and claim allocations.
        allocations: Their pages and usage regions.
    """

    def __init__(
        self,
        driver: Driver,
        record: SlotRecord,
        allocations: Allocations,
    ) -> None:
        self._driver = driver
        self._record = record
        self._allocations = allocations
        self._marks: dict[str, int] = {}
        self._slot_allocations: dict[tuple[int, int], str] = {}  # by PID and start time

    async def read(self) -> Usage:
        """Read the usage of all containers once; omit the driver's part if it does not respond."""
        try:
            devices = await self._driver.usage()
            memory = await self._driver.process_memory()
            compute = await self._driver.compute_since(self._marks)
        except DriverUnavailable as error:
            logger.debug("no use by the driver's word: %s", error)
            devices, memory, compute = {}, {}, {}
        state = self._record.state
        pids = {pid for by_pid in (*memory.values(), *compute.values()) for pid in by_pid}
        slot_allocations = self._slot_allocations_of(pids, state)
        held = _by_slot_allocation(memory, slot_allocations)
        busy = _by_slot_allocation(compute, slot_allocations)
        uses = [
            use
            for slot_allocation in state.slot_allocations.values()
            if (claim_allocation := state.claim_allocations.get(slot_allocation.claim_uid))
            is not None
            for use in self._of_slot_allocation(
                slot_allocation, claim_allocation, held, busy, frozenset(compute)
            )
        ]
        return Usage(devices, tuple(uses))

    def _of_slot_allocation(
        self,
        slot_allocation: SlotAllocation,
        claim_allocation: ClaimAllocation,
        held: Mapping[_Key, float],
        busy: Mapping[_Key, float],
        sampled: frozenset[str],
    ) -> list[ContainerUse]:
        """Read one container; a damaged region is logged and counts as empty."""
        try:
            limits = self._allocations.content(slot_allocation.name).devices
        except PageDamaged as error:
            logger.warning(
                "cannot read the limits of allocation %s: %s", slot_allocation.name, error
            )
            return []
        ledger: dict[str, DeviceUse] = {}
        try:
            ledger = {use.uuid: use for use in self._allocations.usage(slot_allocation.name)}
        except PageDamaged as error:
            logger.warning("cannot read a usage region: %s", error)
        return [
            _use(
                slot_allocation,
                claim_allocation,
                number,
                limit,
                ledger,
                held=held,
                busy=busy,
                sampled=sampled,
            )
            for number, limit in enumerate(limits)
        ]

    def _slot_allocations_of(self, pids: Collection[int], state: SlotState) -> Mapping[int, str]:
        """Return the slot allocation of each process; it never changes, so it is cached."""
        keys = {pid: (pid, start_time(pid, proc=self._allocations.proc)) for pid in pids}
        self._slot_allocations = {
            key: name
            for key, name in self._slot_allocations.items()
            if name in state.slot_allocations and keys.get(key[0]) == key
        }
        by_pod: defaultdict[str, list[str]] = defaultdict(list)
        for slot_allocation in state.slot_allocations.values():
            if slot_allocation.is_bound:
                by_pod[slot_allocation.pod_uid].append(slot_allocation.name)
        for key in set(keys.values()) - set(self._slot_allocations):
            if (name := self._slot_allocation_of(key[0], by_pod)) is not None:
                self._slot_allocations[key] = name
        return {
            pid: self._slot_allocations[key]
            for pid, key in keys.items()
            if key in self._slot_allocations
        }

    def _slot_allocation_of(self, pid: int, by_pod: Mapping[str, list[str]]) -> str | None:
        """Find the pod by the cgroup, and its container by the usage region that is mapped.

        If pods have no cgroups, the mapped region alone decides.
        """
        pods = pods_of_process(pid, proc=self._allocations.proc)
        chosen = [uid for uid in by_pod if uid in pods] if pods else list(by_pod)
        names = [name for uid in chosen for name in by_pod[uid]]
        if pods and len(names) == 1:
            return names[0]
        regions = {self._allocations.region_path(name): name for name in names}
        mapped = [
            regions[path] for path in mapped_by(pid, index_of(regions), proc=self._allocations.proc)
        ]
        return mapped[0] if len(mapped) == 1 else None


def _by_slot_allocation(
    by_device: Mapping[str, Mapping[int, float]], slot_allocations: Mapping[int, str]
) -> Mapping[_Key, float]:
    total: defaultdict[_Key, float] = defaultdict(float)
    for uuid, by_pid in by_device.items():
        for pid, amount in by_pid.items():
            if (name := slot_allocations.get(pid)) is not None:
                total[name, uuid] += amount
    return total


def _use(
    slot_allocation: SlotAllocation,
    claim_allocation: ClaimAllocation,
    number: int,
    limit: DeviceLimit,
    ledger: Mapping[str, DeviceUse],
    *,
    held: Mapping[_Key, float],
    busy: Mapping[_Key, float],
    sampled: frozenset[str],
) -> ContainerUse:
    key = (slot_allocation.name, limit.uuid)
    own = ledger.get(limit.uuid)
    percent = busy.get(key, 0.0) if limit.uuid in sampled else None
    return ContainerUse(
        namespace=claim_allocation.namespace,
        pod=claim_allocation.pod_name,
        container=slot_allocation.container,
        claim=claim_allocation.claim_name,
        number=number,
        uuid=limit.uuid,
        memory_limit=None if limit.memory_bytes == UNLIMITED else limit.memory_bytes,
        memory_used=own.used_bytes if own is not None else int(held.get(key, 0)),
        memory_peak=own.peak_bytes if own is not None else None,
        cores_limit=limit.cores / 100 if limit.cores else None,
        cores_used=None if percent is None else min(percent, 100.0) / 100,
        denied=(own or _NOTHING).denied_count,
        throttled_s=(own or _NOTHING).throttled_ns / 1e9,
    )
