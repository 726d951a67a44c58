"""A small disk of a folder's own, and how it is filled to its last byte."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_FILLER = "filler"


class _DiskFull(Exception):
    """Nothing more can be written."""


@contextlib.contextmanager
def a_small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes for a folder; False where this process may not mount one."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "vgpu-small-disk", str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(folder: Path) -> None:
    """Leave no byte free on the disk of a folder.

    Raises:
        OSError: For another reason than that it is full.
    """
    with open(folder / _FILLER, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(_DiskFull):
                while True:
                    _write(file.fileno(), bytes(size))


def empty_disk(folder: Path) -> None:
    """Take away what `fill_disk` wrote."""
    (folder / _FILLER).unlink(missing_ok=True)


def _write(file: int, content: bytes) -> None:
    try:
        os.write(file, content)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _DiskFull from error
