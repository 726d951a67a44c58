"""Mounts a small disk for a folder, and fills it to the last byte."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_FILLER = "filler"


class _DiskFull(Exception):
    """The disk is full."""


@contextlib.contextmanager
def a_small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a file system of this size on a folder; yield False if mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "vgpu-small-disk", str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(folder: Path) -> None:
    """Fill the disk of a folder to the last byte.

    Raises:
        OSError: A write failed for a reason other than a full disk.
    """
    with open(folder / _FILLER, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(_DiskFull):
                while True:
                    _write(file.fileno(), bytes(size))


def empty_disk(folder: Path) -> None:
    """Remove what `fill_disk` wrote."""
    (folder / _FILLER).unlink(missing_ok=True)


def _write(file: int, content: bytes) -> None:
    try:
        os.write(file, content)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _DiskFull from error
