"""Copies the library and its shadow to the host, under names that are unique to the build.

Running processes map the file, so it is never overwritten: another build gets another name and its
own preload file. The shadow (`libvgpu/src/shadow.c`) takes the place of the driver's `libcuda` in
the container, so that a program that bypasses the preload still loads the library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vgpu_api import names
from vgpu_nodeagent.config import Mount

_BUILD_LENGTH = 12
_DRIVER = "libcuda.so"
# The shadow's file beside the library, and the names by which it loads library and driver.
_SHADOW = Path("shadow/libcuda.so.1")
_REAL_LIBRARY = f"{names.CONTAINER_FOLDER}/libvgpu.so"
_REAL_DRIVER = f"{names.CONTAINER_FOLDER}/libcuda-driver.so.1"


@dataclass(frozen=True, slots=True)
class Library:
    """One build of the library, ready to be mounted.

    Attributes:
        build: The name of the build.
        mounts: The mounts of a limited container.
        shadow: The path of the shadow on the host; None if the build has none.
    """

    build: str
    mounts: tuple[Mount, ...]
    shadow: Path | None = None

    def before(self, driver: Sequence[Mount]) -> tuple[Mount, ...]:
        """Return all mounts of a limited container, including the driver's files.

        The shadow replaces the driver's `libcuda` under all its names; the driver itself gets the
        name by which the shadow loads it.
        """
        real = [m for m in driver if PurePosixPath(m.container_path).name.startswith(_DRIVER)]
        if self.shadow is None or not real:
            return (*driver, *self.mounts)
        shadow, library = str(self.shadow), self.mounts[0].host_path
        return (
            *(Mount(shadow, m.container_path) if m in real else m for m in driver),
            *self.mounts,
            Mount(library, _REAL_LIBRARY),
            Mount(real[0].host_path, _REAL_DRIVER),
        )


def stage_library(source: Path, folder: Path) -> Library:
    """Copy the library, its shadow and its preload file into `folder`, if they are missing.

    Raises:
        OSError: The source cannot be read, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    build, library = _staged(source, folder, "libvgpu")
    inside = f"{names.CONTAINER_FOLDER}/{library.name}"
    preload = folder / f"preload-{build}"
    if not preload.exists():
        temporary = folder / f".{preload.name}.new"
        temporary.write_text(f"{inside}\n")
        temporary.chmod(0o644)
        os.rename(temporary, preload)
    beside = source.parent / _SHADOW
    shadow = _staged(beside, folder, "shadow")[1] if beside.is_file() else None
    mounts = (Mount(str(library), inside), Mount(str(preload), names.CONTAINER_PRELOAD))
    return Library(build, mounts, shadow)


def _staged(source: Path, folder: Path, name: str) -> tuple[str, Path]:
    """Copy a file under the name of its build; return the build and the copy's path."""
    build = hashlib.sha256(source.read_bytes()).hexdigest()[:_BUILD_LENGTH]
    copy = folder / f"{name}-{build}.so"
    if not copy.exists():
        temporary = folder / f".{copy.name}.new"
        shutil.copyfile(source, temporary)
        temporary.chmod(0o755)
        os.rename(temporary, copy)
    return build, copy
