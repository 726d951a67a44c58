"""The folder of a usage region: a file system of its own that is exactly full.

A container writes its region, and any file that it may write it may also make grow. On the host's
disk that was 1 TiB for any user of a container. In a tmpfs of the region's size, with inodes for
the region alone, every further byte and file is refused by the kernel
(docs/design/memory-accounting.md).

The mount must reach the host, where container runtimes take it from: the agent's state folder is
mounted with `mountPropagation: Bidirectional`, which Kubernetes allows to privileged containers.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Protocol

from vgpu_nodeagent.config import UsageRegions
from vgpu_nodeagent.enforcement import abi

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_INODES = 2
"""The root's and the region's."""
_PROBE = "mount-probe"


class UsageFolders(Protocol):
    """Makes and removes the folders in which regions lie."""

    def verify(self, state: Path) -> None:
        """Make sure that folders can be made below this one.

        Raises:
            OSError: They cannot; the message has what is missing.
        """

    def make(self, folder: Path) -> None:
        """Make a folder, unless it is there as it should be.

        Raises:
            OSError: It cannot be made.
        """

    def extend(self, region: int, length: int) -> None:
        """Give an open, empty region its length in bytes.

        Raises:
            OSError: There is no room for it.
        """

    def remove(self, folder: Path) -> None:
        """Take away what `make` did beyond a plain folder. May be repeated.

        Raises:
            OSError: It cannot be taken away.
        """


class PlainFolders:
    """Folders of the disk that has the state, for machines where all users may fill it anyway."""

    def verify(self, state: Path) -> None:
        """A plain folder can be made wherever the state can."""

    def make(self, folder: Path) -> None:
        """Make it, readable by all and root's to change."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)

    def extend(self, region: int, length: int) -> None:
        """Take all its blocks now: on a full disk a write to a hole ends the container (SIGBUS).

        Raises:
            OSError: The disk is full.
        """
        os.posix_fallocate(region, 0, length)

    def remove(self, folder: Path) -> None:
        """Unmount what an agent with bounded folders mounted there; else there is nothing.

        Raises:
            OSError: There is, and unmounting is not allowed.
        """
        if folder.is_mount():
            _unmount(folder)


class BoundedFolders:
    """One tmpfs a folder, with room for one region and no other file.

    Args:
        proc: The kernel's word on this process's mounts.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def verify(self, state: Path) -> None:
        """Mount and unmount one, where the host can see it.

        Raises:
            OSError: Mounting is not allowed, or a mount would stay this process's own.
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
        """Mount it, unless it is mounted: a reboot takes mounts away and leaves folders.

        Raises:
            OSError: Mounting is not allowed, or failed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_mount():
            return
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        options = f"size={abi.REGION_BYTES},nr_inodes={_INODES},mode=0755"
        if _libc().mount(b"vgpu", os.fsencode(folder), b"tmpfs", flags, options.encode()):
            raise _error("mount a tmpfs (this needs a privileged container)", folder)

    def extend(self, region: int, length: int) -> None:
        """Leave it sparse: the mount has room for it and for nothing else.

        Memory is charged to the container that touches a page, which uses few of them; blocks that
        are taken here would all be charged to the agent.
        """
        os.ftruncate(region, length)

    def remove(self, folder: Path) -> None:
        """Unmount it.

        Raises:
            OSError: Unmounting is not allowed.
        """
        _unmount(folder)

    def _is_seen_by_the_host(self, mounted: Path) -> bool:
        """Whether the mount has peers, as in `36 35 0:31 / /state rw shared:7 - tmpfs …`.

        A process in the namespace of process 1 needs none.
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
            return process  # another user's: not ours, then


def _unmount(folder: Path) -> None:
    """Unmount a folder, however often it was mounted.

    A container that still has it mounted keeps it until it ends.

    Raises:
        OSError: Unmounting is not allowed.
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
    """The folders that the configuration asks for."""
    return BoundedFolders() if desired is UsageRegions.TMPFS else PlainFolders()
