"""A container can use only the disk space of its usage region.

The part of a test that mounts runs in a separate namespace, where any user may mount.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from vgpu_nodeagent.__main__ import parse
from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.usage_folders import (
    BoundedFolders,
    PlainFolders,
    folders_on,
)

pytestmark = pytest.mark.programs

APART = ("unshare", "--user", "--map-root-user", "--mount")

SETTING = """
    import ctypes, errno, json, os, subprocess, sys
    from pathlib import Path
    from vgpu_nodeagent.enforcement import abi
    from vgpu_nodeagent.enforcement.allocations import Allocations
    from vgpu_nodeagent.enforcement.cdi import SpecFolder
    from vgpu_nodeagent.enforcement.library import Library
    from vgpu_nodeagent.enforcement.usage_folders import BoundedFolders, PlainFolders
    from vgpu_nodeagent.errors import PageDamaged

    root = Path(sys.argv[1])

    def allocations():
        return Allocations(
            root / "slots",
            SpecFolder(root / "cdi"),
            library=Library("build", ()),
            usage=BoundedFolders(),
        )

    def attempt(action):
        try:
            return action()
        except OSError as error:
            return errno.errorcode[error.errno]

    def mounts():
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [f[4] for f in map(str.split, lines) if f[4].startswith(str(root))]
"""

FILL = """
    made = allocations()
    _, usage = made.create("slot-1")
    folder = Path(usage.host_path)
    before = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize

    def write_on_and_on():
        with open(folder / "region", "ab", buffering=0) as file:
            for _ in range(64):
                file.write(bytes(1 << 20))

    def write_far_away():
        with open(folder / "region", "r+b", buffering=0) as file:
            file.truncate(1 << 40)
            file.seek(0)
            for _ in range(64):
                file.write(bytes(1 << 20))

    found = {
        "append": attempt(write_on_and_on),
        "stretch": attempt(write_far_away),
        "file": attempt((folder / "more").touch),
        "folder": attempt((folder / "more").mkdir),
        "link": attempt(lambda: os.symlink("x" * 4000, folder / "more")),
        "taken": os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize,
        "disk": before - os.statvfs(root).f_bavail * os.statvfs(root).f_frsize,
        "region": abi.REGION_BYTES,
    }
    try:
        made.usage("slot-1")
    except PageDamaged as error:
        found["reading"] = str(error).rpartition(": ")[2]
    print(json.dumps(found))
"""

REBOOT = """
    made = allocations()
    made.create("slot-1")
    first = mounts()
    subprocess.run(["umount", *first], check=True)  # as a reboot
    lost = mounts()
    made = allocations()
    made.check("slot-1")
    again = mounts()
    made.check("slot-1")
    size = (root / "slots/slot-1/usage/region").stat().st_size
    steady = mounts()
    made.close("slot-1")
    made.close("slot-1")
    rest = os.listdir(root / "slots")
    print(json.dumps([first, lost, again, steady, mounts(), rest, size == abi.REGION_BYTES]))
"""

LABELLED = """
    from vgpu_nodeagent.enforcement import selinux
    selinux.has_label = lambda path: True
    selinux._ATTRIBUTE = "user.selinux"  # takes the same space, and every user may set it
    made = allocations()
    _, usage = made.create("slot-1")
    folder = Path(usage.host_path)
    label = os.getxattr(folder, "user.selinux")
    os.setxattr(folder / "region", "user.selinux", label)  # the kernel does so where SELinux is on
    size = (folder / "region").stat().st_size
    more = attempt((folder / "more").touch)
    print(json.dumps([label.decode(), size == abi.REGION_BYTES, more]))
"""

LEFTOVER = """
    made = allocations()
    made.create("slot-1")
    made.create("slot-2")
    BoundedFolders().make(root / "slots/slot-2/usage")
    subprocess.run(["mount", "-t", "tmpfs", "again", root / "slots/slot-2/usage"], check=True)
    held = os.open(root / "slots/slot-1/usage/region", os.O_RDWR)
    after_a_kill = allocations()
    for lease in sorted(after_a_kill.on_disk()):
        after_a_kill.close(lease)
    os.pwrite(held, b"x", 0)  # a container that still runs keeps its own
    print(json.dumps([mounts(), os.listdir(root / "slots")]))
"""

ON_DISK_NOW = """
    allocations().create("slot-1")
    allocations().create("slot-2")
    before = mounts()
    on_disk = Allocations(
        root / "slots", SpecFolder(root / "cdi"), library=Library("build", ()), usage=PlainFolders()
    )
    on_disk.check("slot-1")  # its container keeps the region that it has mapped
    kept = mounts()
    on_disk.create("slot-3")
    for lease in sorted(on_disk.on_disk()):
        on_disk.close(lease)
    print(json.dumps([before, kept, mounts(), os.listdir(root / "slots")]))
"""

DENIED = """
    made = allocations()
    made.create("slot-1")
    libc = ctypes.CDLL(None)
    assert libc.prctl(47, 4, 0, 0, 0) == 0  # no capability stays ambient ...
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0  # ... or effective
    made.close("slot-1")
    kept = os.listdir(root / "slots"), mounts()
    try:
        made.create("slot-2")
    except OSError as error:
        print(json.dumps([*kept, str(error)]))
"""

WHOSE = """
    import mmap
    from vgpu_nodeagent.enforcement.processes import index_of, mapped_by, processes_mapping

    made = allocations()
    regions = []
    for lease in ("slot-1", "slot-2", "slot-3"):
        made.create(lease)
        regions.append(made.region_path(lease))
    with open(regions[1], "r+b") as file:
        view = mmap.mmap(file.fileno(), 4096)
    mine = mapped_by(os.getpid(), index_of(regions))
    users = [os.getpid() in processes_mapping([region]).certain for region in regions]
    inodes = {region.stat().st_ino for region in regions}
    print(json.dumps([[str(path) for path in mine], users, len(inodes)]))
"""

VERIFY = """
    os.makedirs(root / "state")
    subprocess.run(["mount", "--bind", root / "state", root / "state"], check=True)
    subprocess.run(["mount", sys.argv[2], root / "state"], check=True)
    said = ""
    try:
        BoundedFolders().verify(root / "state")
    except OSError as error:
        said = f"{error.strerror}: {error.filename}"
    print(json.dumps([said, os.listdir(root / "state"), len(mounts())]))
"""


def apart(program: str, root: Path, *arguments: str) -> Any:
    """Run a program as root in its own mount namespace, and return its output."""
    code = textwrap.dedent(SETTING) + textwrap.dedent(program)
    done = subprocess.run(
        [*APART, sys.executable, "-c", code, str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_containers_user_cannot_fill_the_nodes_disk(tmp_path: Path) -> None:
    found = apart(FILL, tmp_path)
    assert {found[way] for way in ("append", "stretch", "file", "folder", "link")} == {"ENOSPC"}
    page = os.sysconf("SC_PAGE_SIZE")
    assert found["region"] <= found["taken"] < found["region"] + page
    assert found["disk"] < 1 << 20  # the 64 MiB that were written twice are not on it
    assert "instead of" in found["reading"]  # a region that grew is not a ledger any more


def test_a_reboot_takes_the_mount_away_and_the_next_start_brings_it_back(tmp_path: Path) -> None:
    place = [f"{tmp_path}/slots/slot-1/usage"]
    assert apart(REBOOT, tmp_path) == [place, [], place, place, [], [], True]


def test_what_an_earlier_agent_left_mounted_is_unmounted_and_removed(tmp_path: Path) -> None:
    assert apart(LEFTOVER, tmp_path) == [[], []]


def test_an_agent_that_is_told_to_use_the_disk_unmounts_what_the_one_before_it_mounted(
    tmp_path: Path,
) -> None:
    """The busy folder of an ended allocation used to stay until the next reboot."""
    both = [f"{tmp_path}/slots/slot-{number}/usage" for number in (1, 2)]
    assert apart(ON_DISK_NOW, tmp_path) == [both, both, [], []]


def test_regions_that_all_have_one_inode_are_told_apart(tmp_path: Path) -> None:
    """Otherwise a process would keep every other allocation on its node from being released."""
    mapped, users, inodes = apart(WHOSE, tmp_path)
    assert inodes == 1
    assert mapped == [f"{tmp_path}/slots/slot-2/usage/region"]
    assert users == [False, True, False]


def test_without_the_right_to_mount_an_allocation_is_refused_and_an_old_one_is_kept(
    tmp_path: Path,
) -> None:
    folders, mounted, said = apart(DENIED, tmp_path)
    assert folders == ["slot-1"]
    assert mounted == [f"{tmp_path}/slots/slot-1/usage"]
    assert "cannot mount a tmpfs (this needs a privileged container)" in said


@pytest.mark.parametrize(
    ("propagation", "said"),
    [
        ("--make-shared", ""),
        (
            "--make-private",
            "mounts made here do not reach the host: mount it with mountPropagation: Bidirectional"
            ": {root}/state",
        ),
    ],
)
def test_mounts_that_would_not_reach_the_host_are_found_at_start(
    tmp_path: Path, propagation: str, said: str
) -> None:
    found = apart(VERIFY, tmp_path, propagation)
    assert found == [said.format(root=tmp_path), [], 1]


def test_a_region_on_disk_stays_one_until_the_folder_goes(tmp_path: Path) -> None:
    made = Allocations(
        tmp_path / "slots", SpecFolder(tmp_path / "cdi"), library=Library("build", ())
    )
    made.create("slot-1")
    inode = made.region_path("slot-1").stat().st_ino
    made.check("slot-1")
    assert made.region_path("slot-1").stat().st_ino == inode
    made.close("slot-1")
    assert list((tmp_path / "slots").iterdir()) == []


def test_a_region_on_disk_has_its_blocks_from_the_start(tmp_path: Path) -> None:
    """A container that writes to a hole in it on a full disk would be ended by SIGBUS."""
    made = Allocations(
        tmp_path / "slots", SpecFolder(tmp_path / "cdi"), library=Library("build", ())
    )
    made.create("slot-1")
    assert made.region_path("slot-1").stat().st_blocks * 512 >= abi.REGION_BYTES


def test_a_region_that_a_full_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = Allocations(
        tmp_path / "slots", SpecFolder(tmp_path / "cdi"), library=Library("build", ())
    )
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        made.create("slot-1")
    assert not made.region_path("slot-1").exists()


def test_regions_are_bounded_unless_the_command_line_says_otherwise() -> None:
    usual = ["--node-name=n1", "--library=/proc/self/exe"]
    assert isinstance(folders_on(parse(usual).usage_regions), BoundedFolders)
    on_disk = parse([*usual, "--usage-regions=disk"]).usage_regions
    assert isinstance(folders_on(on_disk), PlainFolders)


def test_the_labels_of_selinux_leave_space_for_the_region_and_no_other_file(tmp_path: Path) -> None:
    label, is_whole, more = apart(LABELLED, tmp_path)
    assert label.split(":")[2] == "container_file_t"
    assert (is_whole, more) == (True, "ENOSPC")
