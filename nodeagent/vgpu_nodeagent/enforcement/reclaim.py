"""Clears the slots of dead processes of earlier containers in a usage region.

A process that dies leaves its slot charged, and the next process of its container clears it. But a
restarted container has a new PID namespace, in which the PIDs of its predecessor mean nothing, so
it cannot clear them. The agent sees all processes of the host, so it can. It reads and writes the
file and never maps it, because the container may truncate it at any time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.processes import processes_mapping
from vgpu_nodeagent.enforcement.region import opened

_PID_MASK = (1 << abi.OWNER_PID_BITS) - 1
_SPACE_MASK = (1 << abi.OWNER_NS_BITS) - 1
_START_MASK = (1 << abi.OWNER_START_BITS) - 1


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a slot, as far as one word can hold it.

    Attributes:
        pid: The PID in its own namespace.
        space: Low bits of the inode number of its PID namespace; 0 if it was unreadable.
        start: Low bits of its start time; 0 if it was unreadable.
    """

    pid: int
    space: int
    start: int

    @classmethod
    def of(cls, word: int) -> Owner:
        """Decode the owner word of a slot that is in use or being cleared."""
        start = word >> (abi.OWNER_PID_BITS + abi.OWNER_NS_BITS)
        return cls(word & _PID_MASK, word >> abi.OWNER_PID_BITS & _SPACE_MASK, start & _START_MASK)


# The initial PID namespace of a kernel always has this inode number.
_FIRST_SPACE = 0xEFFFFFFC
# The namespace recorded for a process that cannot be inspected.
_ANY_SPACE = -1


def clear_dead(path: Path, *, proc: Path = Path("/proc")) -> int:
    """Clear the slots of processes that have ended; return how many.

    A slot is kept if any process of the host might be its owner. If a process of the owner's
    namespace maps the region, its library clears slots itself; two must not do it at once, so such
    slots are left to it.

    Raises:
        PageDamaged: The region cannot be opened, or is not a regular file.
    """
    with opened(path, os.O_RDWR) as descriptor:
        # Read the owners before the processes, so that every living owner is among the processes.
        owners = owners_in(descriptor)
        if not owners or not _sees_the_host(proc):
            return 0
        living = living_in(proc, {owner.space for owner in owners.values()})
        dead = {slot: owner for slot, owner in owners.items() if _is_dead(owner, living)}
        if not dead:
            return 0
        mapping = processes_mapping([path], proc=proc).certain
        tended = {process.space for pid, process in living.items() if pid in mapping}
        dead = {slot: owner for slot, owner in dead.items() if owner.space not in tended}
        for slot in dead:
            _empty(descriptor, slot)
        return len(dead)


def _is_dead(owner: Owner, living: Mapping[int, Owner]) -> bool:
    return bool(owner.space) and not any(may_be(owner, process) for process in living.values())


def owners_in(descriptor: int) -> dict[int, Owner]:
    """Return the owner of each slot of an open region; none if it is not a region."""
    header = os.pread(descriptor, abi.REGION_HEADER.size, 0)
    if len(header) < abi.REGION_HEADER.size:
        return {}
    magic, version, size, slots, _, _, high = abi.REGION_HEADER.unpack(header)
    if (magic, version, size, slots) != (
        abi.REGION_MAGIC,
        abi.ABI_VERSION,
        abi.REGION_BYTES,
        abi.REGION_SLOTS,
    ):
        return {}
    owners = {}
    for slot in range(min(high, abi.REGION_SLOTS)):
        word = os.pread(descriptor, abi.OWNER.size, slot_start(slot))
        if len(word) == abi.OWNER.size and any(word):
            owners[slot] = Owner.of(*abi.OWNER.unpack(word))
    return owners


def slot_start(slot: int) -> int:
    """Return the offset of a slot."""
    return abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES


def _empty(descriptor: int, slot: int) -> None:
    """Zero the counts, then the owner, because a free slot must hold nothing."""
    start = slot_start(slot)
    counts = bytes(abi.SLOT_COUNTS_END - abi.SLOT_SEEN_OFFSET)
    os.pwrite(descriptor, counts, start + abi.SLOT_SEEN_OFFSET)
    os.pwrite(descriptor, bytes(4), start + abi.SLOT_HOST_PID_OFFSET)
    os.pwrite(descriptor, bytes(8), start + abi.SLOT_HOST_USED_OFFSET)
    os.pwrite(descriptor, bytes(4), start + abi.SLOT_IMPORTS_OFFSET)
    os.pwrite(descriptor, abi.OWNER.pack(0), start)


def _sees_the_host(proc: Path) -> bool:
    """True if this process sees the processes of containers.

    In a PID namespace of its own it would not, and all owners would look dead.
    """
    mounts = _link(proc / "self" / "ns" / "mnt")
    return (
        _link(proc / "self" / "ns" / "pid") == f"pid:[{_FIRST_SPACE}]"
        or _link(proc / "1" / "ns" / "mnt") != mounts
    )


def may_be(owner: Owner, process: Owner) -> bool:
    """True if a slot may belong to a process; an unknown start time matches any."""
    if owner.pid != process.pid or process.space not in (owner.space, _ANY_SPACE):
        return False
    return not owner.start or not process.start or owner.start == process.start


def living_in(
    proc: Path, spaces: Iterable[int], *, pids: Collection[int] | None = None
) -> dict[int, Owner]:
    """Return the processes of some PID namespaces as owners of slots, by host PID.

    Args:
        proc: The host's process list.
        spaces: Low bits of the inode numbers of the namespaces.
        pids: The host PIDs to look at; None for all.
    """
    desired = frozenset(spaces) | {_ANY_SPACE}
    own_space = _space(proc / "self")
    own_clock = _link(proc / "self" / "ns" / "time")
    found = {}
    folders = proc.iterdir() if pids is None else [proc / str(pid) for pid in pids]
    for folder in folders:
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "status").read_text(errors="replace")
            line = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has ended: anybody may read these two files
        pids = _pids(status)
        space = _space(folder)
        if space == _ANY_SPACE and len(pids) == 1:
            space = own_space  # known only in our own namespace
        if space is None or space not in desired:
            continue
        # In a time namespace it recorded another start time than we read.
        same_clock = space != _ANY_SPACE and _link(folder / "ns" / "time") in (own_clock, "")
        start = int(line.rpartition(")")[2].split()[19]) if same_clock else 0
        found[int(folder.name)] = Owner(pids[-1] & _PID_MASK, space, start & _START_MASK)
    return found


def _pids(status: str) -> list[int]:
    """Return the PIDs of a process in each nested namespace, ours first."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return [int(pid) for pid in line.split()[1:]]
    return [0]  # a process that is just ending


def _link(path: Path) -> str | None:
    """Return the target of a link; None if there is none, empty if not permitted."""
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""


def _space(process: Path) -> int | None:
    """Return low bits of the PID namespace's inode, `pid:[4026531836]`; None if it ended."""
    link = _link(process / "ns" / "pid")
    if link is None:
        return None
    return int(link.partition("[")[2].rstrip("]")) & _SPACE_MASK if link else _ANY_SPACE
