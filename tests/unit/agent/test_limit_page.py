from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from vgpu_local.small_disk import a_small_disk, fill_disk
from vgpu_nodeagent.enforcement import abi, page
from vgpu_nodeagent.enforcement.abi import CorePolicy, PageState
from vgpu_nodeagent.enforcement.page import DeviceLimit, PageContent
from vgpu_nodeagent.enforcement.region import create_region, read_region
from vgpu_nodeagent.errors import PageDamaged

NAME = "slot-7-abc"
LIMIT = DeviceLimit("GPU-0", 8 << 30, 30, CorePolicy.FORCE, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits"
    page.create_page(path, name=NAME)
    return path


def seq(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:20], "little")


def test_a_new_page_is_full_size_and_denies(path: Path) -> None:
    assert path.stat().st_size == abi.PAGE_BYTES
    assert page.read_page(path) == PageContent(PageState.DENY, 1, NAME, ())
    assert seq(path) % 2 == 0


def test_a_container_cannot_write_its_page(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_page_that_a_full_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        page.create_page(tmp_path / "limits", name=NAME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own")
def test_a_page_without_blocks_on_a_full_disk_is_damaged_and_ends_no_agent(tmp_path: Path) -> None:
    """An access to its mapping would end this process by SIGBUS."""
    with a_small_disk(tmp_path / "disk", 1 << 20) as is_mounted:
        assert is_mounted
        path = tmp_path / "disk" / "limits"
        path.touch()
        os.truncate(path, abi.PAGE_BYTES)
        fill_disk(path.parent)
        with pytest.raises(PageDamaged, match="does not begin like a limit page"):
            page.read_page(path)
        with pytest.raises(PageDamaged, match="does not begin like a limit page"):
            page.close(path, name=NAME)
        with pytest.raises(OSError, match="No space left"):
            page.remake_page(path, name=NAME)


def test_a_grant_changes_the_page_in_place(path: Path) -> None:
    inode, before = path.stat().st_ino, seq(path)
    page.grant(path, [LIMIT], name=NAME)
    assert page.read_page(path) == PageContent(PageState.GRANT, 2, NAME, (LIMIT,))
    assert path.stat().st_ino == inode
    assert (seq(path) - before, seq(path) % 2) == (2, 0)


def test_the_same_grant_again_leaves_the_page_alone(path: Path) -> None:
    page.grant(path, [LIMIT], name=NAME)
    content = path.read_bytes()
    page.grant(path, [LIMIT], name=NAME)
    assert path.read_bytes() == content


def test_a_writer_that_died_at_its_last_word_leaves_nothing_that_denies_for_ever(
    path: Path,
) -> None:
    page.grant(path, [LIMIT], name=NAME)
    with path.open("r+b") as file:
        file.seek(abi.PAGE_SEQ_OFFSET)
        file.write(
            abi.PAGE_SEQ.pack(seq(path) - 1)
        )  # all its words are written except for this one
    page.grant(path, [LIMIT], name=NAME)
    assert seq(path) % 2 == 0
    assert page.read_page(path).devices == (LIMIT,)


def test_closing_takes_every_device_off_the_page(path: Path) -> None:
    page.grant(path, [LIMIT, DeviceLimit("GPU-1", 1, 0)], name=NAME)
    page.close(path, name=NAME)
    assert page.read_page(path) == PageContent(PageState.CLOSED, 3, NAME, ())
    devices = path.read_bytes()[abi.PAGE_DEVICES_OFFSET :]
    assert devices == bytes(len(devices))


def test_a_page_of_another_allocation_is_not_touched(path: Path) -> None:
    content = path.read_bytes()
    with pytest.raises(PageDamaged, match="is the page of 'slot-7-abc', not of 'slot-8-x'"):
        page.grant(path, [LIMIT], name="slot-8-x")
    assert path.read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 100, 8192, abi.PAGE_BYTES - 1])
def test_a_page_cut_anywhere_is_refused_by_name(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(PageDamaged, match="was truncated") as raised:
        page.grant(path, [LIMIT], name=NAME)
    assert str(path) in str(raised.value)


def test_a_missing_page_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PageDamaged, match="cannot be opened"):
        page.read_page(tmp_path / "limits")


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (8, 2), (20, 9), (32, 65)])
def test_a_page_with_other_contents_is_refused(path: Path, offset: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(4, "little"))
    with pytest.raises(PageDamaged):
        page.read_page(path)


def test_a_damaged_page_is_remade_denying_in_the_same_file(path: Path) -> None:
    page.grant(path, [LIMIT], name=NAME)
    inode = path.stat().st_ino
    os.truncate(path, 100)
    page.remake_page(path, name=NAME)
    assert page.read_page(path).state is PageState.DENY
    assert path.stat().st_ino == inode


def test_a_writer_that_died_half_way_is_finished_by_the_next(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(16)
        file.write((3).to_bytes(4, "little"))
    page.grant(path, [LIMIT], name=NAME)
    assert seq(path) == 4
    assert page.read_page(path).devices == (LIMIT,)


def test_a_page_holds_no_more_devices_than_it_has_room_for(path: Path) -> None:
    with pytest.raises(ValueError, match="65 GPUs"):
        page.grant(path, [LIMIT] * 65, name=NAME)


def test_a_region_is_full_size_empty_and_open_to_every_user(tmp_path: Path) -> None:
    path = tmp_path / "region"
    before = os.umask(0o077)
    try:
        create_region(path)
    finally:
        os.umask(before)
    assert path.stat().st_size == abi.REGION_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert read_region(path) == ()


def test_a_region_cut_by_its_container_is_reported_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "region"
    create_region(path)
    os.truncate(path, 4096)
    with pytest.raises(PageDamaged, match="4096 bytes"):
        read_region(path)


def test_a_page_has_all_its_blocks_before_anything_is_granted(tmp_path: Path) -> None:
    """The test fails if a grant on a full disk ends the agent by SIGBUS."""
    for make in (page.create_page, page.remake_page):
        path = tmp_path / make.__name__
        make(path, name="a")
        assert path.stat().st_blocks * 512 >= abi.PAGE_BYTES
