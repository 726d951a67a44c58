"""The limit page, a file with the limits of the processes of one allocation.

It is created at its full size and denies before the kubelet gets the response. From then on it is
only changed in place: it is bind-mounted, so a rename would never reach the container. A writer
makes the sequence number odd, changes the fields and makes it even again; a reader that sees an odd
or changed number reads again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.abi import CorePolicy, PageState
from vgpu_nodeagent.errors import PageDamaged

ALL_CORES = 100
"""All of a device's compute, in percent."""


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """The limits of an allocation on one device.

    Attributes:
        uuid: The UUID of the device as the driver writes it.
        memory_bytes: The memory limit; `abi.UNLIMITED` for all memory of the device.
        cores: The compute limit in percent; 0 for no limit.
        policy: When to enforce `cores`.
        priority: The priority on the device; 0 is the highest.
        physical_bytes: The part of the limit that may be device memory; the rest becomes managed
            memory. 0 if the device is not oversubscribed.
        context_bytes: The memory of a context on this kind of device; 0 if unknown.
        ceiling: A temporary limit of compute in percent, whatever the policy; 0 for none.
    """

    uuid: str
    memory_bytes: int
    cores: int
    policy: CorePolicy = CorePolicy.DEFAULT
    priority: int = 0
    physical_bytes: int = 0
    context_bytes: int = 0
    ceiling: int = 0

    @property
    def limits_compute(self) -> bool:
        """True if `cores` is enforced, either always or only while the device is shared."""
        return 0 < self.cores < ALL_CORES and self.policy is not CorePolicy.DISABLE


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a page; `host_bytes` limits page-locked host memory, unless it is 0."""

    state: PageState
    epoch: int
    name: str
    devices: tuple[DeviceLimit, ...]
    host_bytes: int = 0


def create_page(path: Path, *, name: str) -> None:
    """Make a denying page for the allocation called `name`, durably.

    Raises:
        FileExistsError: The page exists already.
        OSError: It cannot be written; none of it remains.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # independent of the umask
        _fill(descriptor, name)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def remake_page(path: Path, *, name: str) -> None:
    """Replace the content of a damaged page by a denying one of full size, in place."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        os.ftruncate(descriptor, abi.PAGE_BYTES)
        # Without the magic number nothing is granted while the rest is rewritten.
        os.pwrite(descriptor, bytes(8), 0)
        os.pwrite(descriptor, bytes(abi.PAGE_BYTES), 0)
        _fill(descriptor, name)
    finally:
        os.close(descriptor)


def grant(path: Path, devices: Sequence[DeviceLimit], *, name: str, host_bytes: int = 0) -> None:
    """Grant exactly these devices with these limits.

    Args:
        path: The page.
        devices: The limits, one per device.
        name: The allocation.
        host_bytes: The limit of page-locked host memory; 0 for none.

    Raises:
        PageDamaged: The file is not the page of this allocation.
        ValueError: There are more devices than a page holds.
    """
    if len(devices) > abi.MAX_DEVICES:
        raise ValueError(f"{len(devices)} GPUs: a page holds {abi.MAX_DEVICES}")
    _change(path, PageState.GRANT, tuple(devices), name, host_bytes)


def vouch(path: Path, until_ns: Mapping[str, int]) -> None:
    """Write the time until which the container is known to be alone on each device, or 0.

    These words are not covered by the sequence lock: each is read on its own. Changing the sequence
    once a second would make every thread of the container reread the whole page.

    Args:
        path: The page.
        until_ns: The CLOCK_MONOTONIC time, by device UUID; 0 is written for devices without one.

    Raises:
        PageDamaged: The file is missing, truncated, or not a page.
    """
    with _opened(path, os.O_RDWR) as descriptor:
        devices = _content(path, os.pread(descriptor, abi.PAGE_BYTES, 0)).devices
        for number, device in enumerate(devices):
            word = abi.PAGE_ALONE.pack(until_ns.get(device.uuid, 0))
            start = abi.PAGE_DEVICES_OFFSET + number * abi.PAGE_DEVICE_BYTES
            os.pwrite(descriptor, word, start + abi.PAGE_ALONE_OFFSET)


def close(path: Path, *, name: str) -> None:
    """Deny, and say that the grant is over, until the page is granted again.

    Raises:
        PageDamaged: The file is not the page of this allocation.
    """
    _change(path, PageState.CLOSED, (), name, 0)


def read_page(path: Path) -> PageContent:
    """Read the page's content as the library does.

    Raises:
        PageDamaged: It is missing, truncated, or not a page.
    """
    with _opened(path, os.O_RDONLY) as descriptor:
        return _content(path, os.pread(descriptor, abi.PAGE_BYTES, 0))


def _fill(descriptor: int, name: str) -> None:
    os.posix_fallocate(descriptor, 0, abi.PAGE_BYTES)
    header = abi.PAGE_HEADER.pack(
        abi.PAGE_MAGIC,
        abi.ABI_VERSION,
        abi.PAGE_BYTES,
        2,  # even means stable
        PageState.DENY,
        1,
        0,
        0,
        _text(name),
        0,
    )
    os.pwrite(descriptor, header, 0)
    os.fsync(descriptor)


def _change(
    path: Path, state: PageState, devices: tuple[DeviceLimit, ...], name: str, host_bytes: int
) -> None:
    with _opened(path, os.O_RDWR) as descriptor:
        content = os.pread(descriptor, abi.PAGE_BYTES, 0)
        old = _content(path, content)
        if old.name != name:
            raise PageDamaged(path, f"is the page of {old.name!r}, not of {name!r}")
        (seq,) = abi.PAGE_SEQ.unpack_from(content, abi.PAGE_SEQ_OFFSET)
        is_stable = seq % 2 == 0
        if is_stable and (old.state, old.devices, old.host_bytes) == (state, devices, host_bytes):
            return
        # Touching a hole through the mapping while the disk is full would kill the agent (SIGBUS).
        os.posix_fallocate(descriptor, 0, abi.PAGE_BYTES)
        with mmap.mmap(descriptor, abi.PAGE_BYTES) as page:
            _rewrite(page, seq, PageContent(state, old.epoch + 1, name, devices, host_bytes))


def _rewrite(page: mmap.mmap, seq: int, new: PageContent) -> None:
    """Write everything but the header's constants under the sequence lock."""
    seq |= 1  # an odd number was left by a writer that died halfway: this write completes it
    abi.PAGE_SEQ.pack_into(page, abi.PAGE_SEQ_OFFSET, seq if seq > 1 else 3)
    for number in range(abi.MAX_DEVICES):
        start = abi.PAGE_DEVICES_OFFSET + number * abi.PAGE_DEVICE_BYTES
        if number < len(new.devices):
            _pack_device(page, start, new.devices[number])
        else:
            page[start : start + abi.PAGE_DEVICE_BYTES] = bytes(abi.PAGE_DEVICE_BYTES)
    abi.PAGE_BODY.pack_into(
        page,
        abi.PAGE_BODY_OFFSET,
        new.state,
        new.epoch,
        len(new.devices),
        0,
        _text(new.name),
        new.host_bytes,
    )
    abi.PAGE_SEQ.pack_into(page, abi.PAGE_SEQ_OFFSET, (seq + 1) & 0xFFFFFFFF)
    page.flush()


def _pack_device(page: mmap.mmap, start: int, device: DeviceLimit) -> None:
    abi.PAGE_DEVICE.pack_into(
        page,
        start,
        _text(device.uuid),
        device.memory_bytes,
        device.cores,
        device.policy,
        device.priority,
        0,
        device.physical_bytes,
        device.context_bytes,
        device.ceiling,
        0,
        0,  # not of the device that was here before
    )


def _content(path: Path, page: bytes) -> PageContent:
    header = abi.PAGE_HEADER.unpack_from(page, 0)
    magic, version, size, _, state, epoch, count, _, name, host_bytes = header
    if magic != abi.PAGE_MAGIC:
        raise PageDamaged(path, "does not begin like a limit page")
    if (version, size) != (abi.ABI_VERSION, abi.PAGE_BYTES):
        raise PageDamaged(path, f"has ABI version {version} and size {size}")
    if state not in tuple(PageState) or count > abi.MAX_DEVICES:
        raise PageDamaged(path, f"has state {state} and {count} GPUs")
    devices = []
    for number in range(count):
        start = abi.PAGE_DEVICES_OFFSET + number * abi.PAGE_DEVICE_BYTES
        fields = abi.PAGE_DEVICE.unpack_from(page, start)
        uuid, memory, cores, policy, priority, _, physical, context, ceiling, *_ = fields
        if policy not in tuple(CorePolicy):
            raise PageDamaged(path, f"has core policy {policy}")
        devices.append(
            DeviceLimit(
                _untext(path, uuid),
                memory,
                cores,
                CorePolicy(policy),
                priority,
                physical,
                context,
                ceiling,
            )
        )
    return PageContent(PageState(state), epoch, _untext(path, name), tuple(devices), host_bytes)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise PageDamaged(path, f"cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
        if size != abi.PAGE_BYTES:
            raise PageDamaged(
                path, f"has {size} bytes instead of {abi.PAGE_BYTES}: it was truncated"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) >= abi.UUID_BYTES:
        raise ValueError(f"{value!r} is longer than {abi.UUID_BYTES - 1} bytes")
    return encoded


def _untext(path: Path, value: bytes) -> str:
    try:
        return value.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError as error:
        raise PageDamaged(path, "has a name that is not text") from error
