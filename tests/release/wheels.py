"""Fetches the packages that `kubectl vgpu` is published with, for all machines and Pythons.

    python -m release.wheels

pip downloads them, with the hashes of the lock, into a folder of the cache that is named for what
it holds. Only pydantic's core is compiled; the parser of YAML also works without its compiled part.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from manual.words import ROOT

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
COMPILED = "pydantic-core"
ON_DEMAND = "numpy"
"""Too large to publish for each machine and Python: 16 MB for each. It is installed when needed."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of machine.

    Attributes:
        os: The operating system, in krew's words.
        arch: The processor, in krew's words.
        tags: Its tags in the names of wheels.
    """

    os: str
    arch: str
    tags: Sequence[str]

    @property
    def name(self) -> str:
        """Return `linux-amd64`."""
        return f"{self.os}-{self.arch}"


PLATFORMS = (
    Platform("linux", "amd64", ("manylinux_2_17_x86_64", "manylinux2014_x86_64")),
    Platform("linux", "arm64", ("manylinux_2_17_aarch64", "manylinux2014_aarch64")),
    Platform("darwin", "amd64", ("macosx_10_12_x86_64",)),
    Platform("darwin", "arm64", ("macosx_11_0_arm64",)),
)


@dataclass(frozen=True, slots=True)
class Wheels:
    """The downloaded packages.

    Attributes:
        plain: Those that are the same for all machines.
        compiled: The folder of each of `PLATFORMS` and `PYTHONS`.
    """

    plain: Sequence[Path]
    compiled: Mapping[tuple[str, str], Path]


def fetched(lock: str) -> Wheels:
    """Return the packages of a lock, downloaded if the cache has them not.

    Args:
        lock: The client's requirements, with hashes.
    """
    cache = Path(os.environ.get("VGPU_CACHE") or Path.home() / ".cache" / "vgpu")
    digest = hashlib.sha256(repr((lock, PYTHONS, PLATFORMS)).encode()).hexdigest()[:16]
    folder = cache / f"wheels-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="wheels.") as unfinished:
            _download(lock, Path(unfinished))
            shutil.copytree(unfinished, f"{unfinished}.whole")
        Path(f"{unfinished}.whole").rename(folder)
    return Wheels(
        sorted((folder / "plain").glob("*.whl")),
        {
            (platform.name, python): next((folder / platform.name / python).glob("*.whl"))
            for platform in PLATFORMS
            for python in PYTHONS
        },
    )


def entries(lock: str) -> Mapping[str, str]:
    """Return the entry of each package of a lock."""
    blocks = [block for block in re.split(r"\n(?=[a-z0-9])", lock) if block.strip()]
    return {block.partition("==")[0].strip(): block for block in blocks}


def _download(lock: str, folder: Path) -> None:
    found = entries(lock)
    plain = [text for name, text in found.items() if name not in (COMPILED, ON_DEMAND)]
    jobs = [("\n".join(plain), folder / "plain", list[str]())]
    for platform in PLATFORMS:
        tags = [word for tag in platform.tags for word in ("--platform", tag)]
        for python in PYTHONS:
            version = ["--python-version", python, "--implementation", "cp"]
            jobs.append((found[COMPILED], folder / platform.name / python, [*tags, *version]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _pip(*job), jobs))


def _pip(requirements: str, folder: Path, options: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    listed = folder / "requirements.txt"
    listed.write_text(requirements + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += [*options, "--requirement", str(listed), "--dest", str(folder)]
    subprocess.run(command, check=True)


def locked(part: str) -> str:
    """Return the requirements of a part of the project, with hashes."""
    command = [sys.executable, str(ROOT / "tests" / "packaging" / "locked.py"), part]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(f"{len(fetched(locked('client')).compiled)} builds of {COMPILED}")
