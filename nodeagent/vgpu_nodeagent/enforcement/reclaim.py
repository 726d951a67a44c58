"""Taking back what dead processes of an earlier container still hold in a usage region.

A process that dies leaves its slot charged, and the next process of its container empties it. But
a restarted container lives in a pid namespace of its own, where the pids of its predecessor mean
nothing: to it those slots stay charged for ever. The agent sees all processes of the host, so it
can. Everything here reads and writes the file, never maps it: the container may cut it any time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
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
        pid: In its own namespace.
        space: Low bits of the inode of its pid namespace; 0 when it was unreadable.
        start: Low bits of its start time; 0 when it was unreadable.
    """

    pid: int
    space: int
    start: int

    @classmethod
    def of(cls, word: int) -> Owner:
        """Read an owner word, whether its owner empties a slot or has it."""
        start = word >> (abi.OWNER_PID_BITS + abi.OWNER_NS_BITS)
        return cls(word & _PID_MASK, word >> abi.OWNER_PID_BITS & _SPACE_MASK, start & _START_MASK)


# The first pid namespace of a kernel has this inode, always.
_FIRST_SPACE = 0xEFFFFFFC
# In place of the namespace of a process that we may not look into.
_ANY_SPACE = -1


def clear_dead(path: Path, *, proc: Path = Path("/proc")) -> int:
    """Empty the slots of a region whose processes run no more; returns how many.

    A process of the host that might be the owner keeps a slot as it is: only what surely ended
    is cleared. Where a process of the owner's namespace has the region mapped, its library does
    this itself, and two must not do it at once: such slots are left to it.

    Raises:
        PageDamaged: The region cannot be opened, or is no file.
    """
    with opened(path, os.O_RDWR) as descriptor:
        # Owners first, processes after: who has a slot by now is seen while it lives.
        owners = owners_in(descriptor)
        if not owners or not _sees_the_host(proc):
            return 0
        living = living_in(proc, {owner.space for owner in owners.values()})
        dead = {
            slot: owner
            for slot, owner in owners.items()
            if owner.space and not any(may_be(owner, process) for process in living.values())
        }
        if not dead:
            return 0
        mapping = processes_mapping([path], proc=proc).certain
        tended = {process.space for pid, process in living.items() if pid in mapping}
        dead = {slot: owner for slot, owner in dead.items() if owner.space not in tended}
        for slot in dead:
            _empty(descriptor, slot)
        return len(dead)


def owners_in(descriptor: int) -> dict[int, Owner]:
    """The process of each slot of an open region; none for what is no region."""
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
    """Where a slot begins."""
    return abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES


def _empty(descriptor: int, slot: int) -> None:
    """Counts to zero first, then the owner: a free slot holds nothing."""
    start = slot_start(slot)
    counts = bytes(abi.SLOT_COUNTS_END - abi.REGION_SLOT_USED_OFFSET)
    os.pwrite(descriptor, counts, start + abi.REGION_SLOT_USED_OFFSET)
    os.pwrite(descriptor, bytes(4), start + abi.SLOT_HOST_PID_OFFSET)
    os.pwrite(descriptor, bytes(8), start + abi.SLOT_HOST_USED_OFFSET)
    os.pwrite(descriptor, bytes(4), start + abi.SLOT_IMPORTS_OFFSET)
    os.pwrite(descriptor, abi.OWNER.pack(0), start)


def _sees_the_host(proc: Path) -> bool:
    """Whether the containers' processes are among those we see.

    In a pid namespace of our own, process 1 is of our container and all others would look dead.
    """
    mounts = _link(proc / "self" / "ns" / "mnt")
    return (
        _link(proc / "self" / "ns" / "pid") == f"pid:[{_FIRST_SPACE}]"
        or _link(proc / "1" / "ns" / "mnt") != mounts
    )


def may_be(owner: Owner, process: Owner) -> bool:
    """Whether a slot may be a process's: start times that a side does not know prove nothing."""
    if owner.pid != process.pid or process.space not in (owner.space, _ANY_SPACE):
        return False
    return not owner.start or not process.start or owner.start == process.start


def living_in(
    proc: Path, spaces: Iterable[int], *, pids: Collection[int] | None = None
) -> dict[int, Owner]:
    """The processes of some pid namespaces, as they would own a slot, by host PID.

    Args:
        proc: The host's process list.
        spaces: Low bits of the namespaces' inodes.
        pids: The only processes to look at; None for all.
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
            continue  # it ended meanwhile: these two anybody may read
        pids = _pids(status)
        space = _space(folder)
        if space == _ANY_SPACE and len(pids) == 1:
            space = own_space  # known on one level only: on ours
        if space is None or space not in desired:
            continue
        # Under a clock of its own it recorded another start time than we read.
        same_clock = space != _ANY_SPACE and _link(folder / "ns" / "time") in (own_clock, "")
        start = int(line.rpartition(")")[2].split()[19]) if same_clock else 0
        found[int(folder.name)] = Owner(pids[-1] & _PID_MASK, space, start & _START_MASK)
    return found


def _pids(status: str) -> list[int]:
    """PID of a process on each level of namespaces, ours first."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return [int(pid) for pid in line.split()[1:]]
    return [0]  # a thread of the kernel that is just ending


def _link(path: Path) -> str | None:
    """Target of a link; None when there is none, empty when we may not look."""
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""


def _space(process: Path) -> int | None:
    """Low bits of the inode of its pid namespace, `pid:[4026531836]`; None when it ended."""
    link = _link(process / "ns" / "pid")
    if link is None:
        return None
    return int(link.partition("[")[2].rstrip("]")) & _SPACE_MASK if link else _ANY_SPACE
