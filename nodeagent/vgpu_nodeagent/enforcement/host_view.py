"""Writes what only the host sees into the files that a container reads.

Inside a container some drivers show neither what a process holds nor the processes of others; the
agent runs in the host's PID namespace, where they do. It therefore writes, at each look of the
watchdog:

* each process's host PID into its slot, because some calls of the driver use it;
* the memory of contexts and modules into the slot: the driver's figure less what the library
  charged. Both must be of one moment, so the slot is read before and after the driver;
* the lowest such figure of a device into its limit pages, so that a container's first context is
  charged before it is made;
* into a page, until when no process of another container is on the device.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.host_pids import write_host_pids
from vgpu_nodeagent.enforcement.reclaim import owners_in, slot_start
from vgpu_nodeagent.enforcement.region import opened
from vgpu_nodeagent.errors import PageDamaged

logger = logging.getLogger(__name__)

ALONE_FOR_S = 5.0
"""A container trusts the agent's word that it is alone for this long: the agent may get stuck."""
MOST_CONTEXT_BYTES = 1 << 30
"""A context takes less on every device; a container that forges its region can claim anything."""

_NS = 1_000_000_000

ByDevice: TypeAlias = Mapping[str, Mapping[int, float]]
"""Values by UUID of the device and host PID."""


class Home(Protocol):
    """The part of a process's residence that matters here."""

    @property
    def slot_allocations(self) -> frozenset[str]:
        """Return the slot allocations whose usage region it maps."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The fields of a slot that must not change while the driver is read."""

    owner: bytes
    host_pid: int
    used: tuple[int, ...]
    overhead: tuple[int, ...]


_Slots: TypeAlias = Mapping[int, _Slot]


class HostView:
    """Shows containers the host's figures of their processes.

    Args:
        allocations: The files of the slot allocations.
    """

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations
        self._before: dict[str, _Slots] = {}
        self._lowest: dict[str, int] = {}
        self._last: dict[tuple[int, str], int] = {}

    def before(self, homes: Mapping[int, Home]) -> None:
        """Read the slots of known processes; the driver is read next."""
        self._before = {}
        for name in _names(homes):
            try:
                with opened(self._allocations.region_path(name), os.O_RDONLY) as descriptor:
                    self._before[name] = _read_slots(descriptor)
            except PageDamaged as error:
                logger.debug("cannot read a usage region: %s", error)

    def name_processes(self, homes: Mapping[int, Home]) -> None:
        """Write host PIDs into the slots."""
        for name in _names(homes):
            pids = [pid for pid, home in homes.items() if name in home.slot_allocations]
            try:
                write_host_pids(
                    self._allocations.region_path(name), pids, proc=self._allocations.proc
                )
            except PageDamaged as error:
                logger.warning("cannot write host PIDs: %s", error)

    def show(
        self,
        processes: ByDevice,
        computing: ByDevice,
        homes: Mapping[int, Home],
        now: float,
    ) -> None:
        """Write what the driver has just shown.

        Args:
            processes: The bytes by device and host PID.
            computing: The compute by device and host PID.
            homes: The residence of each process.
            now: The monotonic time in seconds.
        """
        known = {slot.host_pid for slots in self._before.values() for slot in slots.values()}
        self._last = {key: value for key, value in self._last.items() if key[0] in known}
        for name, slots in self._before.items():
            pids = {pid for pid, home in homes.items() if name in home.slot_allocations}
            self._show_memory(name, slots, processes, pids)
        self._allocations.set_context_bytes(self._lowest)
        until = int((now + ALONE_FOR_S) * _NS)
        for name in _names(homes):
            alone = dict.fromkeys(_alone_on(name, processes, computing, homes), until)
            try:
                self._allocations.vouch(name, alone)
            except PageDamaged as error:
                logger.debug("cannot write who is alone: %s", error)

    def _show_memory(self, name: str, before: _Slots, processes: ByDevice, pids: Set[int]) -> None:
        try:
            with opened(self._allocations.region_path(name), os.O_RDWR) as descriptor:
                uuids = _read_uuids(descriptor)
                for number, slot in _read_slots(descriptor).items():
                    if slot == before.get(number) and slot.host_pid in pids:
                        shown = [
                            int(processes.get(uuid, {}).get(slot.host_pid, 0)) for uuid in uuids
                        ]
                        found = dict(_overheads(slot, shown))
                        _write_seen(descriptor, number, slot, found)
                        for column, overhead in found.items():
                            self._learn(slot.host_pid, uuids[column], overhead)
        except PageDamaged as error:
            logger.debug("cannot write a usage region: %s", error)

    def _learn(self, pid: int, uuid: str, overhead: int) -> None:
        """Take the lowest figure of a device that two looks agree on.

        While a context is being made, the driver shows a part of it.
        """
        is_certain = self._last.get((pid, uuid)) == overhead
        self._last[pid, uuid] = overhead
        if is_certain and overhead <= MOST_CONTEXT_BYTES:
            self._lowest[uuid] = min(overhead, self._lowest.get(uuid, overhead))


def _alone_on(
    name: str, processes: ByDevice, computing: ByDevice, homes: Mapping[int, Home]
) -> Iterator[str]:
    """Yield the devices that only processes of this slot allocation use."""
    mine = {pid for pid, home in homes.items() if name in home.slot_allocations}
    for uuid, by_pid in processes.items():
        if mine.issuperset((*by_pid, *computing.get(uuid, ()))):
            yield uuid


def _names(homes: Mapping[int, Home]) -> set[str]:
    return {name for home in homes.values() for name in home.slot_allocations}


def _read_slots(descriptor: int) -> dict[int, _Slot]:
    """Return the slots that have an owner and a host PID."""
    found = {}
    end = abi.SLOT_OVERHEAD_OFFSET + abi.SLOT_OVERHEAD.size
    for number in owners_in(descriptor):
        words = os.pread(descriptor, end, slot_start(number))
        if len(words) < end:
            break
        (host_pid,) = abi.SLOT_HOST_PID.unpack_from(words, abi.SLOT_HOST_PID_OFFSET)
        if host_pid:
            found[number] = _Slot(
                words[: abi.OWNER.size],
                host_pid,
                abi.REGION_SLOT_USED.unpack_from(words, abi.REGION_SLOT_USED_OFFSET),
                abi.SLOT_OVERHEAD.unpack_from(words, abi.SLOT_OVERHEAD_OFFSET),
            )
    return found


def _read_uuids(descriptor: int) -> list[str]:
    """Return the devices of the columns for which a slot has room."""
    length = abi.SEEN_COLUMNS * abi.REGION_COLUMN_BYTES
    columns = os.pread(descriptor, length, abi.REGION_COLUMNS_OFFSET).ljust(length, b"\0")
    found = []
    for column in range(abi.SEEN_COLUMNS):
        fields = abi.REGION_COLUMN.unpack_from(columns, column * abi.REGION_COLUMN_BYTES)
        found.append(fields[1].split(b"\0", 1)[0].decode(errors="replace"))
    return found


def _overheads(slot: _Slot, shown: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the memory of contexts and modules by column, where it can be determined."""
    for column, figure in enumerate(shown):
        memory = slot.used[column] - slot.overhead[column]
        if figure > memory >= 0:
            yield column, figure - memory


def _write_seen(descriptor: int, number: int, slot: _Slot, found: Mapping[int, int]) -> None:
    """Write the figures, and reset them if the slot has changed in between."""
    units = [-(-found.get(column, 0) // abi.MANAGED_UNIT) for column in range(abi.SEEN_COLUMNS)]
    words = abi.SLOT_SEEN.pack(*(min(unit, 0xFFFFFFFF) for unit in units))
    at = slot_start(number) + abi.SLOT_SEEN_OFFSET
    if os.pread(descriptor, len(words), at) == words:
        return
    os.pwrite(descriptor, words, at)
    if _read_slots(descriptor).get(number) != slot:
        os.pwrite(descriptor, bytes(len(words)), at)
