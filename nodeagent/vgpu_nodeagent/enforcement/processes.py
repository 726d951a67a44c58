"""Finds the processes of the host that still use an allocation.

They prove that something still runs, whatever kubelet and API server report: a force-deleted pod
vanishes from both while its containers are still being stopped. Reading what a process maps needs
`CAP_SYS_PTRACE`; every process may read its cgroup, which names its pod. If neither can be read,
the process may be using the devices, and they stay allocated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_POD = re.compile(r"pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", re.IGNORECASE)
_PODS = "kubepods"
_FIRST = "1"  # the machine's init; no container runtime started it


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Processes that use a file, by host PID.

    Attributes:
        certain: Processes that use it.
        unknown: Processes that may use it, because they cannot be inspected.
    """

    certain: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Return True if any process uses it, or may."""
        return bool(self.certain or self.unknown)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that processes may have mapped.

    Attributes:
        path: Its path.
        device: Its device as /proc/PID/maps shows it, if only that tells it from others; else
        empty.
    """

    path: Path
    device: str = ""


FileIndex: TypeAlias = Mapping[str, Sequence[MappedFile]]
"""Files by inode number."""


def processes_mapping(
    paths: Collection[Path], *, pod_uid: str = "", proc: Path = Path("/proc")
) -> ProcessTable:
    """Return the processes that map one of these files, or may.

    Args:
        paths: The files; a missing one has no processes.
        pod_uid: The only pod whose processes can map them; empty if unknown.
        proc: The host's process list.
    """
    files = index_of(paths)
    certain, unknown = set(), set()
    for folder in _processes(proc):
        maps = _maps(folder)
        if maps is None:
            if folder.name != _FIRST:
                unknown.add(folder)
        elif _mapped(maps, files):
            certain.add(folder)
    return ProcessTable(_pids(certain), _pids(_of_pod(unknown, pod_uid, proc)))


def processes_of_pod(pod_uid: str, *, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return the processes in a pod's cgroup; none on a machine whose pods have no cgroups."""
    return _pids({folder for folder in _processes(proc) if pod_uid in _pod_uids(folder)})


def pods_of_process(pid: int, *, proc: Path = Path("/proc")) -> frozenset[str]:
    """Return the UIDs of the pods that a process belongs to: several only if pods are nested."""
    return _pod_uids(proc / str(pid))


def start_time(pid: int, *, proc: Path = Path("/proc")) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is gone.

    PID and start time identify a process.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def name_of(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return the name of a process; empty once it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def file_seen_by(pid: int, path: str, *, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Return device and inode of the file that a process finds at a path; None if it finds none."""
    try:
        status = (proc / str(pid) / "root" / path.lstrip("/")).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def index_of(paths: Iterable[Path]) -> FileIndex:
    """Return the existing files by the inode number that /proc/PID/maps shows.

    A container sees another path, and overlay file systems report another device, so inode and file
    name identify a file; a chance match only delays a release. Usage regions are in file systems of
    their own and all have the same inode number, so their device decides.
    """
    index: dict[str, list[MappedFile]] = {}
    for path in paths:
        try:
            status = path.stat()
            is_alone = path.parent.is_mount()
        except OSError:
            continue
        number = status.st_dev
        device = f"{os.major(number):02x}:{os.minor(number):02x}" if is_alone else ""
        index.setdefault(str(status.st_ino), []).append(MappedFile(path, device))
    return index


def mapped_by(pid: int, files: FileIndex, *, proc: Path = Path("/proc")) -> frozenset[Path]:
    """Return those of the files that a process maps, as far as it can be read."""
    return _mapped(_maps(proc / str(pid)) or [], files) if files else frozenset()


def _of_pod(folders: Collection[Path], pod_uid: str, proc: Path) -> set[Path]:
    """Return the processes that may belong to the pod, by their cgroups.

    Processes of other pods and ancestors of this process are excluded. If pods have cgroups, so are
    processes outside all of them. If pods have none, an agent without root runs
    everything as its own user, and could have inspected the process.
    """
    if not folders:
        return set()
    has_cgroups = any(_is_in_a_pod(folder) for folder in _processes(proc))
    ancestors = _ancestors(proc)
    may_be: set[Path] = set()
    for folder in folders:
        if int(folder.name) in ancestors:
            continue
        uids = _pod_uids(folder)
        if uids:
            is_possible = not pod_uid or pod_uid in uids
        elif _is_in_a_pod(folder):
            is_possible = True
        else:
            is_possible = not has_cgroups and os.geteuid() == 0
        if is_possible:
            may_be.add(folder)
    return may_be


def _processes(proc: Path) -> Sequence[Path]:
    return [folder for folder in proc.iterdir() if folder.name.isdigit()]


def _pids(folders: Collection[Path]) -> frozenset[int]:
    return frozenset(int(folder.name) for folder in folders)


def _maps(process: Path) -> list[str] | None:
    """Return the lines of /proc/PID/maps, none once it has ended; None if not permitted."""
    try:
        return (process / "maps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def _mapped(maps: Iterable[str], files: FileIndex) -> frozenset[Path]:
    """Return the files that these lines belong to."""
    found = set()
    for line in maps:
        fields = line.split(None, 5)  # address, permissions, offset, device, inode, path
        if len(fields) != 6:
            continue
        for file in files.get(fields[4], ()):
            is_there = file.device in ("", fields[3])
            if is_there and Path(fields[5]).name.startswith(file.path.name):
                found.add(file.path)
    return frozenset(found)


def _cgroup(process: Path) -> str:
    """Return the cgroups of a process, which anybody may read; empty once it has ended."""
    try:
        return (process / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _is_in_a_pod(process: Path) -> bool:
    cgroup = _cgroup(process)
    return _PODS in cgroup or _POD.search(cgroup) is not None


def _ancestors(proc: Path) -> frozenset[int]:
    """Return the ancestors of this process, which anybody may read."""
    found: set[int] = set()
    process = proc / "self"
    while True:
        try:
            line = (process / "stat").read_text(errors="replace")
        except OSError:
            return frozenset(found)
        parent = int(line.rpartition(")")[2].split()[1])
        if not parent or parent in found:
            return frozenset(found)
        found.add(parent)
        process = proc / str(parent)


def _pod_uids(process: Path) -> frozenset[str]:
    """Return the pod UIDs in a cgroup's path; systemd writes `_` for `-`."""
    found = _POD.finditer(_cgroup(process))
    return frozenset(match[1].replace("_", "-").lower() for match in found)
