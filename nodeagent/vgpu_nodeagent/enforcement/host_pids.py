"""Writes host PIDs into the usage region, for the library in the container.

The driver counts memory by host PIDs, which a process in a PID namespace does not know. The library
compares the driver's figure with its ledger (contexts and modules take memory that no program
allocated), so the agent writes each process's host PID into its slot.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.reclaim import living_in, may_be, owners_in, slot_start
from vgpu_nodeagent.enforcement.region import opened


def write_host_pids(path: Path, pids: Collection[int], *, proc: Path = Path("/proc")) -> int:
    """Write host PIDs into the slots of a region; return how many were new.

    A slot that two of the processes may own is skipped: a wrong figure is worse than none.

    Args:
        path: The region.
        pids: The host PIDs of the processes that map it.
        proc: The host's process list.

    Raises:
        PageDamaged: The region cannot be opened, or is not a file.
    """
    count = 0
    with opened(path, os.O_RDWR) as descriptor:
        owners = owners_in(descriptor)
        living = living_in(proc, {owner.space for owner in owners.values()}, pids=pids)
        for slot, owner in owners.items():
            candidates = [pid for pid, process in living.items() if may_be(owner, process)]
            if len(candidates) != 1:
                continue
            word, at = abi.SLOT_HOST_PID.pack(candidates[0]), slot_start(slot)
            if os.pread(descriptor, len(word), at + abi.SLOT_HOST_PID_OFFSET) == word:
                continue
            before = os.pread(descriptor, abi.OWNER.size, at)
            os.pwrite(descriptor, word, at + abi.SLOT_HOST_PID_OFFSET)
            if (
                os.pread(descriptor, abi.OWNER.size, at) != before
            ):  # the slot has got a new owner since
                os.pwrite(descriptor, bytes(len(word)), at + abi.SLOT_HOST_PID_OFFSET)
                continue
            count += 1
    return count
