"""The folder of a usage region: a file system that the region fills exactly.

A container can write its region, and so it can also make the file grow: on the host's disk, any
user of a container could make it 1 TiB. In a tmpfs of the region's size, with inodes for the region
alone, the kernel refuses every further byte and file
(docs/design/memory-accounting.md).

The mount must reach the host, from where container runtimes bind it: the agent's state folder is
mounted with `mountPropagation: Bidirectional`, which Kubernetes allows for privileged containers.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Protocol

from vgpu_nodeagent.config import UsageRegions
from vgpu_nodeagent.enforcement import abi, selinux

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_INODES = 2
"""One for the root, and one for the region."""
_PROBE = "mount-probe"


class UsageFolders(Protocol):
    """Makes and removes the folders of usage regions."""

    def verify(self, state: Path) -> None:
        """Check that folders can be made below this one.

        Raises:
            OSError: They cannot; the message says what is missing.
        """

    def make(self, folder: Path) -> None:
        """Make a folder, unless it exists as it should be.

        Raises:
            OSError: It cannot be made.
        """

    def extend(self, region: int, length: int) -> None:
        """Give an open, empty region its length in bytes.

        Raises:
            OSError: There is not enough space for it.
        """

    def remove(self, folder: Path) -> None:
        """Undo what `make` did beyond making a plain folder. May be repeated.

        Raises:
            OSError: It cannot be undone.
        """


class PlainFolders:
    """Plain folders on the disk of the state, for machines whose users may fill it anyway."""

    def verify(self, state: Path) -> None:
        """Do nothing: a plain folder can be made wherever the state can."""

    def make(self, folder: Path) -> None:
        """Create the folder, readable for all and writable for root."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        selinux.label(folder, selinux.WRITABLE)

    def extend(self, region: int, length: int) -> None:
        """Allocate all blocks: on a full disk, writing to a hole kills the process (SIGBUS).

        Raises:
            OSError: The disk is full.
        """
        os.posix_fallocate(region, 0, length)

    def remove(self, folder: Path) -> None:
        """Unmount what an agent with bounded folders mounted there, if anything.

        Raises:
            OSError: Unmounting is not permitted.
        """
        if folder.is_mount():
            _unmount(folder)


class BoundedFolders:
    """One tmpfs per folder, with space for one region and no other file.

    Args:
        proc: Where the kernel lists this process's mounts.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def verify(self, state: Path) -> None:
        """Mount and unmount one, and check that the host sees it.

        Raises:
            OSError: Mounting is not permitted, or the host would not see the mount.
        """
        probe = state / _PROBE
        self.make(probe)
        try:
            if not self._is_seen_by_the_host(probe):
                raise OSError(
                    errno.EINVAL,
                    "mounts made here do not reach the host: mount it with "
                    "mountPropagation: Bidirectional",
                    str(state),
                )
        finally:
            self.remove(probe)
            probe.rmdir()

    def make(self, folder: Path) -> None:
        """Mount it unless it is mounted: after a reboot the folder exists without its mount.

        Raises:
            OSError: Mounting is not permitted, or failed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_mount():
            return
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        # Since Linux 6.6 the space of a label counts against nr_inodes.
        inodes = _INODES + selinux.has_label(folder)
        options = f"size={abi.REGION_BYTES},nr_inodes={inodes},mode=0755"
        if _libc().mount(b"vgpu", os.fsencode(folder), b"tmpfs", flags, options.encode()):
            raise _error("mount a tmpfs (this needs a privileged container)", folder)
        selinux.label(folder, selinux.WRITABLE)

    def extend(self, region: int, length: int) -> None:
        """Leave it sparse: the mount has space for it and for nothing else.

        The kernel charges memory to the container that touches a page, and few pages are used.
        Blocks that are allocated here would all be charged to the agent.
        """
        os.ftruncate(region, length)

    def remove(self, folder: Path) -> None:
        """Unmount the usage folder.

        Raises:
            OSError: Unmounting is not permitted.
        """
        _unmount(folder)

    def _is_seen_by_the_host(self, mounted: Path) -> bool:
        """True if the mount has peers, as in `36 35 0:31 / /state rw shared:7 - tmpfs …`.

        A process in the mount namespace of process 1 needs none.
        """
        if self._namespace("self") == self._namespace("1"):
            return True
        for line in (self._proc / "self" / "mountinfo").read_text().splitlines():
            fields = line.partition(" - ")[0].split()
            if fields[4] == str(mounted):
                return any(field.startswith("shared:") for field in fields[6:])
        return False

    def _namespace(self, process: str) -> str:
        try:
            return os.readlink(self._proc / process / "ns" / "mnt")
        except OSError:
            return process  # process 1 belongs to another user, so its namespace is not ours


def _unmount(folder: Path) -> None:
    """Unmount a folder, however often it was mounted.

    A container that still has it mounted keeps it until it ends.

    Raises:
        OSError: Unmounting is not permitted.
    """
    libc = _libc()
    while not libc.umount2(os.fsencode(folder), _MNT_DETACH | _UMOUNT_NOFOLLOW):
        continue
    if ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
        raise _error("unmount", folder)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _error(what: str, folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"cannot {what}: {os.strerror(number)}", str(folder))


def folders_on(desired: UsageRegions) -> UsageFolders:
    """Return the folders that the configuration selects."""
    return BoundedFolders() if desired is UsageRegions.TMPFS else PlainFolders()
