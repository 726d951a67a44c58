"""Slots of dead processes are freed, in regions and process lists made by hand."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.reclaim import Owner, clear_dead
from vgpu_nodeagent.enforcement.region import create_region, read_region
from vgpu_nodeagent.errors import PageDamaged

OLD_SPACE, NEW_SPACE = 4026532001, 4026532002
START = 123456
USED = 5 << 30


def word(pid: int, space: int, start: int = START, *, reaping: bool = False) -> int:
    return pid | (space & 0xFFFFF) << 22 | (start & 0x1FFFFF) << 42 | (1 << 63 if reaping else 0)


class Region:
    """A region with some slots in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        create_region(path)
        header = abi.REGION_HEADER.pack(
            abi.REGION_MAGIC, abi.ABI_VERSION, abi.REGION_BYTES, abi.REGION_SLOTS, 64, 1, 3
        )
        self.write(0, header)
        self.write(abi.REGION_COLUMNS_OFFSET, struct.pack("<Q64s", 1, b"GPU-0"))

    def write(self, at: int, content: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    def own(self, slot: int, owner: int) -> None:
        start = abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES
        self.write(start, struct.pack("<Q", owner))
        self.write(start + abi.REGION_SLOT_USED_OFFSET, struct.pack("<Q", USED))

    def owner(self, slot: int) -> int:
        start = abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES
        return int.from_bytes(self.path.read_bytes()[start : start + 8], "little")

    def used(self) -> int:
        return sum(use.used_bytes for use in read_region(self.path))


class Proc:
    """A folder like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add("self", 1, NEW_SPACE)
        self.add(1, 1, NEW_SPACE, mounts=1)  # of the host, as seen from a container

    def add(
        self,
        host_pid: int | str,
        pid: int,
        space: int,
        *,
        start: int = START,
        clock: int = 1,
        mounts: int = 2,
        maps: str = "",
    ) -> None:
        folder = self.root / str(host_pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "pid").symlink_to(f"pid:[{space}]")
        (folder / "ns" / "mnt").symlink_to(f"mnt:[{mounts}]")
        (folder / "ns" / "time").symlink_to(f"time:[{clock}]")
        (folder / "status").write_text(f"Name:\tx\nNSpid:\t{host_pid}\t{pid}\n")
        fields = " ".join(["S", *["0"] * 18, str(start), "0"])
        (folder / "stat").write_text(f"{host_pid} (a (b) c) {fields}\n")
        (folder / "maps").write_text(maps)

    def add_mapping(self, host_pid: int, pid: int, space: int, region: Path) -> None:
        inode = region.stat().st_ino
        self.add(host_pid, pid, space, maps=f"7f00-7f01 rw-s 0 00:01 {inode}  /usage/region\n")


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "region")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def test_a_restarted_container_finds_the_memory_of_its_predecessor_free(
    region: Region, proc: Proc
) -> None:
    region.own(0, word(1, OLD_SPACE))
    region.own(1, word(7, OLD_SPACE, reaping=True))
    assert region.used() == 2 * USED
    assert clear_dead(region.path, proc=proc.root) == 2
    assert (region.used(), region.owner(0), region.owner(1)) == (0, 0, 0)
    assert clear_dead(region.path, proc=proc.root) == 0


def test_a_process_that_runs_keeps_its_slot(region: Region, proc: Proc) -> None:
    proc.add(4711, 1, OLD_SPACE)
    region.own(0, word(1, OLD_SPACE))
    assert clear_dead(region.path, proc=proc.root) == 0
    assert region.used() == USED


def test_a_namespace_number_used_again_by_another_container_hides_nothing(
    region: Region, proc: Proc
) -> None:
    proc.add(4711, 1, OLD_SPACE, start=START + 500)  # pid 1 of the new container
    region.own(0, word(1, OLD_SPACE))
    assert clear_dead(region.path, proc=proc.root) == 1


def test_a_start_time_told_by_another_clock_proves_nothing(region: Region, proc: Proc) -> None:
    proc.add(4711, 1, OLD_SPACE, start=START + 500, clock=2)
    region.own(0, word(1, OLD_SPACE))
    assert clear_dead(region.path, proc=proc.root) == 0


def test_dead_siblings_of_a_running_process_are_left_to_its_library(
    region: Region, proc: Proc
) -> None:
    proc.add_mapping(4711, 1, OLD_SPACE, region.path)
    region.own(0, word(1, OLD_SPACE))
    region.own(1, word(9, OLD_SPACE))
    assert clear_dead(region.path, proc=proc.root) == 0
    assert region.used() == 2 * USED


def test_an_owner_that_could_not_tell_its_namespace_is_left_alone(
    region: Region, proc: Proc
) -> None:
    region.own(0, word(1, 0))
    assert clear_dead(region.path, proc=proc.root) == 0


def test_a_process_we_may_not_look_into_may_be_anyone_of_its_pid(
    region: Region, proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(4711, 3, NEW_SPACE)
    region.own(0, word(3, OLD_SPACE))
    region.own(1, word(4, OLD_SPACE))
    real = os.readlink

    def hidden(path: Path) -> str:
        if "4711" in str(path):
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "readlink", hidden)
    assert clear_dead(region.path, proc=proc.root) == 1
    assert region.owner(0) != 0


def test_an_agent_that_sees_only_its_own_container_calls_nobody_dead(
    region: Region, proc: Proc
) -> None:
    region.own(0, word(1, OLD_SPACE))
    mounts = proc.root / "1" / "ns" / "mnt"
    mounts.unlink()
    mounts.symlink_to("mnt:[2]")
    assert clear_dead(region.path, proc=proc.root) == 0
    space = proc.root / "self" / "ns" / "pid"
    space.unlink()
    space.symlink_to("pid:[4026531836]")  # started on the host itself
    assert clear_dead(region.path, proc=proc.root) == 1


def test_a_process_that_ends_while_we_look_is_no_trouble(region: Region, proc: Proc) -> None:
    (proc.root / "99").mkdir()
    region.own(0, word(1, OLD_SPACE))
    assert clear_dead(region.path, proc=proc.root) == 1


@pytest.mark.parametrize("size", [0, 10, 300, abi.REGION_SLOTS_OFFSET + 4])
def test_a_region_that_its_container_cut_is_survived(region: Region, proc: Proc, size: int) -> None:
    region.own(0, word(1, OLD_SPACE))
    os.truncate(region.path, size)
    assert clear_dead(region.path, proc=proc.root) == 0


def test_a_region_of_noise_is_left_as_it_is(region: Region, proc: Proc) -> None:
    noise = os.urandom(abi.REGION_BYTES)
    region.path.write_bytes(noise)
    assert clear_dead(region.path, proc=proc.root) == 0
    assert region.path.read_bytes() == noise


def test_a_link_in_the_regions_place_leads_nowhere(tmp_path: Path, region: Region) -> None:
    precious = tmp_path / "precious"
    region.path.rename(precious)
    region.path.symlink_to(precious)
    with pytest.raises(PageDamaged):
        clear_dead(region.path)
    with pytest.raises(PageDamaged):
        read_region(region.path)


def test_a_pipe_in_the_regions_place_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "region")
    with pytest.raises(PageDamaged, match="not a regular file"):
        clear_dead(tmp_path / "region")
    with pytest.raises(PageDamaged, match="not a regular file"):
        read_region(tmp_path / "region")


def test_the_word_of_an_owner_is_read_as_the_library_writes_it() -> None:
    read = Owner.of(word(4_000_000, OLD_SPACE, 99_999_999, reaping=True))
    assert read == Owner(4_000_000, OLD_SPACE & 0xFFFFF, 99_999_999 & 0x1FFFFF)


def test_this_very_process_is_found_alive_on_the_real_host(region: Region) -> None:
    space = int(os.readlink("/proc/self/ns/pid")[5:-1])
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    region.own(0, word(os.getpid(), space, start))
    assert clear_dead(region.path) == 0
