"""The agent writes host data for containers whose driver hides it from them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from vgpu_api.quantity import MIB
from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.host_view import HostView
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit, grant

GPU_0, GPU_1 = "GPU-0", "GPU-1"
UNIT = 65536


@dataclass(frozen=True)
class Home:
    """The regions that a process maps."""

    slot_allocations: frozenset[str]


ONE, TWO, NOWHERE = Home(frozenset({"slot-1"})), Home(frozenset({"slot-2"})), Home(frozenset())


class Node:
    """Two containers with one process each, PIDs 1007 and 2007, on the same devices."""

    def __init__(self, root: Path) -> None:
        self.allocations = Allocations(
            root / "slots", SpecFolder(root / "cdi"), library=Library("build", ())
        )
        self.view = HostView(self.allocations)
        self.homes: dict[int, Home] = {1007: ONE, 2007: TWO}
        for name, pid in (("slot-1", 1007), ("slot-2", 2007)):
            self.allocations.create(name)
            limits = [DeviceLimit(uuid, 4000 * MIB, 25) for uuid in (GPU_0, GPU_1)]
            grant(self.page(name), limits, name=name)
            self._fill(name, pid)

    def page(self, name: str) -> Path:
        return self.allocations.region_path(name).parents[1] / "limits"

    def _fill(self, name: str, host_pid: int) -> None:
        header = abi.REGION_HEADER.pack(
            abi.REGION_MAGIC, abi.ABI_VERSION, abi.REGION_BYTES, abi.REGION_SLOTS, 64, 1, 1
        )
        self._write(name, 0, header)
        for column, uuid in enumerate((GPU_0, GPU_1)):
            at = abi.REGION_COLUMNS_OFFSET + column * abi.REGION_COLUMN_BYTES
            self._write(name, at, abi.REGION_COLUMN.pack(1, uuid.encode(), 0, 0, 0))
        self._write(name, abi.REGION_SLOTS_OFFSET, abi.OWNER.pack(7))
        self._write(
            name,
            abi.REGION_SLOTS_OFFSET + abi.SLOT_HOST_PID_OFFSET,
            abi.SLOT_HOST_PID.pack(host_pid),
        )

    def _write(self, name: str, at: int, content: bytes) -> None:
        with self.allocations.region_path(name).open("r+b") as file:
            file.seek(at)
            file.write(content)

    def charge(self, name: str, used: int, overhead: int, *, column: int = 0) -> None:
        """Write the memory that the library has charged, and the part for contexts and modules."""
        for offset, value in (
            (abi.REGION_SLOT_USED_OFFSET, used),
            (abi.SLOT_OVERHEAD_OFFSET, overhead),
        ):
            at = abi.REGION_SLOTS_OFFSET + offset + 8 * column
            self._write(name, at, struct.pack("<Q", value))

    def look(self, held: Mapping[str, Mapping[int, int]], *, now: float = 100.0) -> None:
        self.view.before(self.homes)
        self.view.show(held, {}, self.homes, now)

    def seen(self, name: str = "slot-1", column: int = 0) -> int:
        content = self.allocations.region_path(name).read_bytes()
        at = abi.REGION_SLOTS_OFFSET + abi.SLOT_SEEN_OFFSET
        return int(abi.SLOT_SEEN.unpack_from(content, at)[column]) * UNIT

    def alone_until(self, name: str = "slot-1", device: int = 0) -> int:
        at = abi.PAGE_DEVICES_OFFSET + device * abi.PAGE_DEVICE_BYTES + abi.PAGE_ALONE_OFFSET
        (found,) = abi.PAGE_ALONE.unpack_from(self.page(name).read_bytes(), at)
        return int(found)

    def context_bytes(self, uuid: str = GPU_0) -> int:
        """Return the price of a context in a page that is granted now."""
        self.allocations.resize("slot-1", [DeviceLimit(uuid, 4000 * MIB, 25)])
        return self.allocations.content("slot-1").devices[0].context_bytes


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_contexts_take_is_the_drivers_figure_less_the_memory_charged(node: Node) -> None:
    node.charge("slot-1", used=1000 * MIB, overhead=400 * MIB)
    node.look({GPU_0: {1007: 1100 * MIB + 1}, GPU_1: {}})
    assert node.seen() == 500 * MIB + UNIT  # rounded up
    assert node.seen(column=1) == 0
    assert node.seen("slot-2") == 0
    node.look({GPU_0: {1007: 600 * MIB}})  # the driver shows no more than the programs allocated
    assert node.seen() == 0


def test_a_slot_that_changes_while_the_driver_is_read_is_left_alone(node: Node) -> None:
    node.view.before(node.homes)
    node.charge("slot-1", used=8000 * MIB, overhead=0)
    node.view.show({GPU_0: {1007: 300 * MIB}}, {}, node.homes, 1.0)
    assert node.seen() == 0
    node.look({GPU_0: {1007: 8300 * MIB}})
    assert node.seen() == 300 * MIB


def test_a_process_of_another_container_is_not_taken_for_the_slots(node: Node) -> None:
    """A container can write any PID into its slots."""
    node.homes = {2007: TWO}
    node.look({GPU_0: {1007: 300 * MIB, 2007: 300 * MIB}})
    node.homes = {1007: NOWHERE, 2007: ONE}
    node.look({GPU_0: {1007: 300 * MIB}})
    assert node.seen() == 0


def test_a_context_is_priced_by_the_lowest_figure_that_two_looks_agree_on(node: Node) -> None:
    node.look({GPU_0: {1007: 40 * MIB}})  # the context is being created
    assert node.context_bytes() == 0
    node.look({GPU_0: {1007: 520 * MIB}})
    node.look({GPU_0: {1007: 520 * MIB}})
    assert node.context_bytes() == 520 * MIB
    assert node.context_bytes(GPU_1) == 0
    node.look({GPU_0: {1007: 520 * MIB, 2007: 480 * MIB}})
    node.look({GPU_0: {1007: 520 * MIB, 2007: 480 * MIB}})
    assert node.context_bytes() == 480 * MIB


def test_a_forged_ledger_prices_no_context_beyond_what_one_can_take(node: Node) -> None:
    node.charge("slot-1", used=0, overhead=0)
    for _ in range(3):
        node.look({GPU_0: {1007: 30_000 * MIB}})
    assert node.context_bytes() == 0
    node.charge("slot-1", used=0, overhead=1 << 40)  # leaves less than 0 bytes without contexts
    node.look({GPU_0: {1007: 30_000 * MIB}})
    assert node.seen() == 0


def test_a_new_container_is_granted_with_the_price(node: Node) -> None:
    for _ in range(2):
        node.look({GPU_0: {1007: 520 * MIB}})
    node.allocations.create("slot-3")
    limits = (DeviceLimit(GPU_0, 4000 * MIB, 25),)
    node.allocations.open("slot-3", ContainerGrant(limits, interposed=True), nodes={GPU_0: ()})
    assert node.allocations.content("slot-3").devices[0].context_bytes == 520 * MIB


def test_a_container_is_told_that_it_is_alone_on_a_device_for_a_few_seconds(node: Node) -> None:
    node.look({GPU_0: {1007: 1}, GPU_1: {1007: 1, 2007: 1}}, now=100.0)
    assert (node.alone_until(), node.alone_until(device=1)) == (105_000_000_000, 0)
    assert node.alone_until("slot-2") == 0
    sequence = node.page("slot-1").read_bytes()[16:20]
    node.look({GPU_0: {1007: 1, 2007: 1}}, now=101.0)  # GPU_1 was not read
    assert (node.alone_until(), node.alone_until(device=1)) == (0, 0)
    assert node.page("slot-1").read_bytes()[16:20] == sequence  # no thread reads all of it again


def test_a_process_whose_residence_is_not_known_is_a_neighbour(node: Node) -> None:
    node.look({GPU_0: {1007: 1, 4: 1}})
    assert node.alone_until() == 0
    node.homes[4] = NOWHERE
    node.look({GPU_0: {1007: 1, 4: 1}})
    assert node.alone_until() == 0


def test_one_that_computes_without_holding_memory_is_a_neighbour(node: Node) -> None:
    node.view.show({GPU_0: {1007: 1}}, {GPU_0: {1007: 50.0, 2007: 30.0}}, node.homes, 1.0)
    assert node.alone_until() == 0


def test_a_new_grant_takes_the_word_back(node: Node) -> None:
    node.look({GPU_0: {1007: 1}})
    node.allocations.resize("slot-1", [DeviceLimit(GPU_1, 4000 * MIB, 25)])
    assert node.alone_until() == 0


def test_a_damaged_region_or_page_hinders_no_other(node: Node) -> None:
    node.allocations.region_path("slot-1").write_bytes(b"short")
    node.page("slot-1").write_bytes(b"short")
    node.charge("slot-2", used=0, overhead=0)
    node.look({GPU_0: {2007: 300 * MIB}})
    assert node.seen("slot-2") == 300 * MIB
    assert node.alone_until("slot-2") > 0
