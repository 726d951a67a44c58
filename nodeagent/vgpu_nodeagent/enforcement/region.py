"""The usage region, in which the processes of a container record what they use.

The agent makes it (zero-filled, full size, writable by any user of the container) and reads it. The
container can write anything to it, so its content is reported and never relied on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.errors import PageDamaged


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The recorded usage of one device by an allocation, including managed memory."""

    uuid: str
    used_bytes: int
    peak_bytes: int
    denied_count: int
    throttled_ns: int = 0


def create_region(path: Path, *, extend: Callable[[int, int], None] = os.ftruncate) -> None:
    """Make an empty region of full size, 0666: any user of the container may write it.

    Its folder keeps it from growing (`usage_folders.py`).

    Args:
        path: Its path.
        extend: Gives an open, empty file its length in bytes.

    Raises:
        FileExistsError: The region exists already.
        OSError: It cannot be written; none of it remains.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # independent of the umask
        extend(descriptor, abi.REGION_BYTES)
        os.fsync(descriptor)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def read_region(path: Path) -> tuple[DeviceUse, ...]:
    """Return the usage of each device, by column; nothing before the first process.

    Raises:
        PageDamaged: It is missing, truncated, or not a region.
    """
    with opened(path, os.O_RDONLY) as descriptor:
        length = os.fstat(descriptor).st_size
        if length != abi.REGION_BYTES:
            raise PageDamaged(path, f"has {length} bytes instead of {abi.REGION_BYTES}")
        # Read only slots that were used: a node reads 150 regions of 2 MiB every few seconds.
        content = os.pread(descriptor, abi.REGION_SLOTS_OFFSET, 0)
        magic, version, size, slots, _, state, high = abi.REGION_HEADER.unpack_from(content, 0)
        if state != abi.REGION_READY:
            return ()
        high = min(high, abi.REGION_SLOTS)
        content += os.pread(descriptor, high * abi.REGION_SLOT_BYTES, abi.REGION_SLOTS_OFFSET)
    if len(content) != abi.REGION_SLOTS_OFFSET + high * abi.REGION_SLOT_BYTES:
        raise PageDamaged(path, "was truncated while it was read")
    if (magic, version, size, slots) != (
        abi.REGION_MAGIC,
        abi.ABI_VERSION,
        abi.REGION_BYTES,
        abi.REGION_SLOTS,
    ):
        raise PageDamaged(path, "does not begin like a usage region")
    used = [0] * abi.MAX_DEVICES
    for slot in range(high):
        start = abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES
        words = abi.REGION_SLOT_USED.unpack_from(content, start + abi.REGION_SLOT_USED_OFFSET)
        managed = abi.SLOT_MANAGED.unpack_from(content, start + abi.SLOT_MANAGED_OFFSET)
        used = [
            total + word + units * abi.MANAGED_UNIT
            for total, word, units in zip(used, words, managed, strict=True)
        ]
    uses = []
    for column in range(abi.MAX_DEVICES):
        start = abi.REGION_COLUMNS_OFFSET + column * abi.REGION_COLUMN_BYTES
        key, uuid, denied, _, peak = abi.REGION_COLUMN.unpack_from(content, start)
        if key:
            text = uuid.split(b"\0", 1)[0].decode(errors="replace")
            (waited,) = abi.COLUMN_WAITED.unpack_from(content, start + abi.COLUMN_WAITED_OFFSET)
            uses.append(DeviceUse(text, used[column], peak, denied, waited))
    return tuple(uses)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a region; the container can write its folder, so the path may be anything.

    Raises:
        PageDamaged: It cannot be opened, is a link, or is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise PageDamaged(path, f"cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PageDamaged(path, "is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)
