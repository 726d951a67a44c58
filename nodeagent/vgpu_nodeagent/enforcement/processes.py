"""Which processes of the host still have something of an allocation, as far as can be known.

Proof that something still runs, whatever kubelet and API server report: a force-deleted pod
vanishes from both while its containers are still being stopped. What a process maps can be read
only with the right to look into it (`CAP_SYS_PTRACE`); its cgroup, which names its pod, can be
read by every process. Where neither shows it, it may be using the devices, and they stay taken.
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
_FIRST = "1"  # of the machine; no container runtime started it


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Processes by host PID.

    Attributes:
        certain: They use it.
        unknown: They cannot be read, and nothing else shows that they do not use it.
    """

    certain: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Whether any process uses it, or may."""
        return bool(self.certain or self.unknown)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that processes may have mapped.

    Attributes:
        path: Where it lies.
        device: As maps show it, where only that distinguishes it from others of its inode; else
        empty.
    """

    path: Path
    device: str = ""


FileIndex: TypeAlias = Mapping[str, Sequence[MappedFile]]
"""Files by inode."""


def processes_mapping(
    paths: Collection[Path], *, pod_uid: str = "", proc: Path = Path("/proc")
) -> ProcessTable:
    """The processes that have one of these files mapped, or may have.

    Args:
        paths: Files; one that is not there has no process that could be named.
        pod_uid: The pod whose processes alone can have them mapped, if that is known.
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
    """The processes in a pod's cgroup; none on a machine whose pods have no cgroups."""
    return _pids({folder for folder in _processes(proc) if pod_uid in _pod_uids(folder)})


def pods_of_process(pid: int, *, proc: Path = Path("/proc")) -> frozenset[str]:
    """The UIDs of the pods in whose cgroups a process is, one but for pods in pods."""
    return _pod_uids(proc / str(pid))


def start_time(pid: int, *, proc: Path = Path("/proc")) -> int:
    """When a process began, in clock ticks since boot: its identity beside its PID. 0: gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def name_of(pid: int, *, proc: Path = Path("/proc")) -> str:
    """What the kernel calls a process; empty once it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def index_of(paths: Iterable[Path]) -> FileIndex:
    """Files by what a process's maps show of them; those that are not there are left out.

    A container sees another path, and overlay file systems report another device: inode and file
    name distinguish most files, and a chance match only delays a release. Files that lie in a file
    system of their own, as usage regions do, all have the same inode: there the device decides.
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
    """Which of these files a process has mapped, as far as we may look."""
    return _mapped(_maps(proc / str(pid)) or [], files) if files else frozenset()


def _of_pod(folders: Collection[Path], pod_uid: str, proc: Path) -> set[Path]:
    """Those that may belong to the pod, by their cgroups.

    One that is surely another pod's does not, nor one from which this very process descends.
    Outside every pod it does not either, where pods have cgroups at all; and where they have
    none, an agent that is not root runs everything under its own user, and could have looked.
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
    """Lines of what it maps, none once it has ended; None when we may not look."""
    try:
        return (process / "maps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def _mapped(maps: Iterable[str], files: FileIndex) -> frozenset[Path]:
    """The files that these lines are of."""
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
    """Where it is in the tree of cgroups; anybody may read that. Empty once it has ended."""
    try:
        return (process / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def _is_in_a_pod(process: Path) -> bool:
    cgroup = _cgroup(process)
    return _PODS in cgroup or _POD.search(cgroup) is not None


def _ancestors(proc: Path) -> frozenset[int]:
    """The processes that this one descends from; anybody may read that."""
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
    """The pods that its cgroup names, one but for pods in pods; systemd writes `_` for `-`."""
    found = _POD.finditer(_cgroup(process))
    return frozenset(match[1].replace("_", "-").lower() for match in found)
