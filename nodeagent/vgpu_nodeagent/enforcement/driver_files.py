"""Finds the driver's files on the host, and their paths in containers.

Every limited container needs the shadow of `libcuda` in the driver's place
(`enforcement/library.py`), so the agent mounts the driver itself: the vendor's container runtime
would mount its files over the shadow later. The files are configured one by one, or
found below the roots in which drivers are installed: the host's own, and a driver container's.

A driver may be installed, upgraded or removed while the agent runs, so a cached result is used only
after checking that the files are still there.

Sources: glibc's `sysdeps/generic/dl-cache.h` (layout of ld.so.cache), NVIDIA's driver README,
"Installed Components" (names of the files).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.errors import DriverFilesMissing

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"

_LIBRARIES = (
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-compiler.so",
    "libnvidia-encode.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-nvvm70.so",
    "libnvidia-opencl.so",
    "libnvidia-opticalflow.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-tileiras.so",
    "libnvcuvid.so",
)
"""Libraries for compute, monitoring and transcoding; this project does not share graphics."""

_PROGRAMS = ("nvidia-smi",)
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "opt/bin", "home/kubernetes/bin/nvidia/bin")
_CONTAINER_PROGRAMS = PurePosixPath("/usr/bin")

_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_ELF_64 = b"\x7fELF\x02"
_OTHER_FOLDERS = (
    "usr/lib64",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "run/opengl-driver/lib",
)

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sII20x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_LINKS_FOLLOWED = 40


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """The driver's files for containers.

    Attributes:
        mounts: Their paths on the host and in the container.
        nvml: The path of NVML in this process's file system; None if the loader finds it.
        complete: True if a container needs nothing else, so the vendor's runtime must add nothing.
    """

    mounts: tuple[Mount, ...]
    nvml: Path | None = None
    complete: bool = False


class DriverSource(Protocol):
    """Finds the driver's files."""

    def files(self) -> DriverFiles:
        """Return the files as they are now.

        Raises:
            DriverFilesMissing: There is no driver for containers.
        """


@dataclass(frozen=True, slots=True)
class ConfiguredDriver:
    """The files of the command line; without any, something else provides the driver."""

    mounts: tuple[Mount, ...] = ()

    def files(self) -> DriverFiles:
        """Return the configured files."""
        return DriverFiles(self.mounts)


def driver_source(
    roots: Sequence[PurePosixPath], host: Path, configured: Sequence[Mount]
) -> DriverSource:
    """Return a source for the configured files, and for the driver below the roots if any."""
    return (
        InstalledDriver(roots, host=host, also=configured)
        if roots
        else ConfiguredDriver(tuple(configured))
    )


class InstalledDriver:
    """The driver installed below the first of several roots that has one.

    Args:
        roots: Absolute paths on the host.
        host: Where this process finds the host's root.
        also: Further mounts.
        machine: The processor (`uname -m`): libraries for another one are ignored.
    """

    def __init__(
        self,
        roots: Sequence[PurePosixPath],
        *,
        host: Path = Path("/"),
        also: Sequence[Mount] = (),
        machine: str | None = None,
    ) -> None:
        self._roots = tuple(roots)
        self._host = host
        self._also = tuple(also)
        self._machine = machine or os.uname().machine
        self._found: tuple[Path, tuple[int, int, int], DriverFiles] | None = None

    def files(self) -> DriverFiles:
        """Return the driver's files; search again if `libcuda` is not the one found before.

        Raises:
            DriverFilesMissing: No root has a `libcuda.so.1` for this machine.
        """
        if self._found is not None and _mark(self._found[0]) == self._found[1]:
            return self._found[2]
        for root in self._roots:
            here = self._host / str(root).lstrip("/")
            for folder in self._folders(here):
                library = _inside(here, folder / CUDA)
                mark = _mark(library) if library is not None else None
                if library is None or mark is None or not self._is_for_this_machine(library):
                    continue
                files = self._collect(root, here, folder, library)
                self._found = (library, mark, files)
                return files
        self._found = None
        roots = ", ".join(map(str, self._roots))
        raise DriverFilesMissing(
            f"no {CUDA} for {self._machine} is installed below {roots}: "
            "install the driver, or name its root with --driver-root"
        )

    def _folders(self, here: Path) -> Iterator[PurePosixPath]:
        """Yield folders below a root that may hold the driver, first those in the loader cache."""
        cached = [PurePosixPath(path.lstrip("/")).parent for path in _cached(here, CUDA)]
        triple = _MULTIARCH.get(self._machine)
        usual = [f"usr/lib/{triple}", f"lib/{triple}"] if triple else []
        yield from dict.fromkeys([*cached, *map(PurePosixPath, (*usual, *_OTHER_FOLDERS))])

    def _is_for_this_machine(self, library: Path) -> bool:
        try:
            with library.open("rb") as file:
                head = file.read(20)
        except OSError:
            return False
        if len(head) < 20 or not head.startswith(_ELF_64):
            return False
        desired = _ELF_MACHINES.get(self._machine)
        return desired is None or int.from_bytes(head[18:20], "little") == desired

    def _collect(
        self, root: PurePosixPath, here: Path, folder: PurePosixPath, cuda: Path
    ) -> DriverFiles:
        """Return all files of the version of this `libcuda`, under every name that programs use."""
        names = self._libraries(here, folder, cuda)
        inside = [PurePosixPath("/usr/lib64")]
        if triple := _MULTIARCH.get(self._machine):
            inside.insert(0, PurePosixPath("/usr/lib", triple))
        mounts = [
            Mount(self._on_host(root, here, file), str(place / name))
            for file, known in names.items()
            for name in known
            for place in inside
        ]
        mounts += self._programs(root, here)
        nvml = next((file for file, known in names.items() if NVML in known), None)
        return DriverFiles((*mounts, *self._also), nvml=nvml, complete=True)

    def _libraries(self, here: Path, folder: PurePosixPath, cuda: Path) -> dict[Path, list[str]]:
        """Return the names of each library of the version of this `libcuda`."""
        version = cuda.name.partition(".so.")[2]
        names: dict[Path, list[str]] = {}
        for name in sorted(os.listdir(_inside(here, folder) or cuda.parent)):
            if not name.startswith(tuple(f"{library}." for library in _LIBRARIES)):
                continue
            file = _inside(here, folder / name)
            if file is None or not self._is_for_this_machine(file):
                continue
            if "." not in version or file.name.endswith(f".so.{version}"):
                names.setdefault(file, []).append(name)
        if "libcuda.so" not in names.setdefault(cuda, []):
            names[cuda].append("libcuda.so")  # some programs open it by this name
        return names

    def _programs(self, root: PurePosixPath, here: Path) -> Iterator[Mount]:
        """Yield the mounts of the driver's programs, each from the first folder that has it."""
        for program in _PROGRAMS:
            for place in _PROGRAM_FOLDERS:
                file = _inside(here, PurePosixPath(place, program))
                if file is not None and file.is_file():
                    inner = str(_CONTAINER_PROGRAMS / program)
                    yield Mount(self._on_host(root, here, file), inner)
                    break

    def _on_host(self, root: PurePosixPath, here: Path, file: Path) -> str:
        return str(root / file.relative_to(here))


def _mark(file: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with the content of a regular file; None if it is none."""
    try:
        status = file.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _inside(root: Path, path: PurePosixPath) -> Path | None:
    """Resolve links as a process with that root would; None if there is no such file.

    `Path.resolve` follows an absolute link into our own root, where there may be another driver.

    Args:
        root: The root, in this process's file system.
        path: Relative to it.
    """
    left, done, followed = list(path.parts), PurePosixPath(), 0
    while left:
        part = left.pop(0)
        if part in ("", "/", "."):
            continue
        if part == "..":
            done = done.parent
            continue
        try:
            target = os.readlink(root / done / part)
        except OSError as error:
            if error.errno != errno.EINVAL:  # readlink fails for a plain file
                return None
            done /= part
            continue
        followed += 1
        if followed > _LINKS_FOLLOWED:
            return None
        if target.startswith("/"):
            done = PurePosixPath()
        left[:0] = PurePosixPath(target).parts
    return root / done


def _cached(root: Path, name: str) -> list[str]:
    """Return the paths of a library in the loader's cache of a root; none without a cache."""
    file = _inside(root, PurePosixPath("etc/ld.so.cache"))
    if file is None:
        return []
    try:
        return list(cached_libraries(file.read_bytes()).get(name, ()))
    except OSError:
        return []


def cached_libraries(cache: bytes) -> Mapping[str, Sequence[str]]:
    """Return the paths of each library in an `ld.so.cache` by name, in the cache's order.

    An unknown or damaged file has none; the usual folders are searched in any case.
    """
    start = cache.find(_CACHE_MAGIC)
    if start < 0 or len(cache) < start + _CACHE_HEADER.size:
        return {}
    _, count, _ = _CACHE_HEADER.unpack_from(cache, start)
    found: dict[str, list[str]] = {}
    for number in range(count):
        at = start + _CACHE_HEADER.size + number * _CACHE_ENTRY.size
        if at + _CACHE_ENTRY.size > len(cache):
            break
        _, key, value, _, _ = _CACHE_ENTRY.unpack_from(cache, at)
        found.setdefault(_text(cache, start + key), []).append(_text(cache, start + value))
    return found


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return os.fsdecode(data[start:end]) if 0 <= start <= end else ""
