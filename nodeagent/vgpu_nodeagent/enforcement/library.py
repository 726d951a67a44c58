"""The library on the host, under a name that belongs to this build alone.

Running processes map the file, so it is never overwritten: another build gets another name, and
its own preload file that names it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vgpu_api import names
from vgpu_nodeagent.enforcement.cdi import Mount

_BUILD_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Library:
    """One build of the library, ready to be mounted."""

    build: str
    mounts: tuple[Mount, ...]


def stage_library(source: Path, folder: Path) -> Library:
    """Copy the library and its preload file into `folder`, unless that build is there already.

    Raises:
        OSError: The source cannot be read or the folder not be written.
    """
    build = hashlib.sha256(source.read_bytes()).hexdigest()[:_BUILD_LENGTH]
    name = f"libvgpu-{build}.so"
    inside = f"{names.CONTAINER_FOLDER}/{name}"
    folder.mkdir(parents=True, exist_ok=True)
    library, preload = folder / name, folder / f"preload-{build}"
    if not library.exists():
        temporary = folder / f".{name}.new"
        shutil.copyfile(source, temporary)
        temporary.chmod(0o755)
        os.rename(temporary, library)
    if not preload.exists():
        temporary = folder / f".{preload.name}.new"
        temporary.write_text(f"{inside}\n")
        temporary.chmod(0o644)
        os.rename(temporary, preload)
    return Library(
        build, (Mount(str(library), inside), Mount(str(preload), names.CONTAINER_PRELOAD))
    )
