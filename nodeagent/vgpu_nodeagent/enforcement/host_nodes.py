"""The vendor's device nodes on the host, in this process's own /dev, and in containers.

Only the driver's tools make these nodes, and not always on the host: a driver container has them in
its own /dev, and without NVIDIA's container runtime the node of unified memory is not made before
the first CUDA program runs. But the kernel knows their numbers, and a node that is specified by its
numbers need not exist on the host.

Source: NVIDIA's driver README, "NVIDIA kernel modules and device nodes"; `nvidia-modprobe(1)`.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from vgpu_client.clock import Clock
from vgpu_nodeagent.discovery.drivers.device_nodes import PROC, DeviceNode

logger = logging.getLogger(__name__)

_DEVICE = re.compile(r"nvidia(\d+)")
_CONTROL_MINOR = 255
_FRONTENDS = ("nvidia-frontend", "nvidia")
"""The kernel's names for the major number of the devices; the first one up to R515."""
_UVM = "nvidia-uvm"
_MODPROBE = "usr/bin/nvidia-modprobe"
_AGAIN_S = 60.0


def numbered(nodes: Iterable[DeviceNode], *, proc: Path = PROC) -> list[DeviceNode]:
    """Return the nodes with the numbers that the kernel has for them, if any.

    Args:
        nodes: Nodes by name below /dev; nodes with numbers keep them.
        proc: Where the kernel lists its devices.
    """
    majors = _majors(proc)
    return [node if node.major else _with_number(node, majors) for node in nodes]


def _with_number(node: DeviceNode, majors: Mapping[str, int]) -> DeviceNode:
    devices = next((majors[name] for name in _FRONTENDS if name in majors), 0)
    device = _DEVICE.fullmatch(node.name)
    if device is not None and devices:
        return replace(node, major=devices, minor=int(device[1]))
    if node.name == "nvidiactl" and devices:
        return replace(node, major=devices, minor=_CONTROL_MINOR)
    if node.name == _UVM and _UVM in majors:
        return replace(node, major=majors[_UVM], minor=0)
    return node


def copy_device_nodes(folders: Iterable[Path], dev: Path) -> None:
    """Make missing device nodes of the host in this process's own /dev.

    A container has the nodes that its host had when it started, and the driver makes them when it
    is loaded. Without the right to make nodes, this process has only those of its runtime.

    Args:
        folders: The /dev of the host and of driver containers.
        dev: The /dev of this process.
    """
    for folder in folders:
        for node in [*folder.glob("nvidia[0-9c-]*"), *folder.glob("nvidia-caps/*")]:
            copy = dev / node.relative_to(folder)
            try:
                status = node.stat()
                if stat.S_ISCHR(status.st_mode) and not copy.exists():
                    copy.parent.mkdir(exist_ok=True)
                    os.mknod(copy, status.st_mode, status.st_rdev)
            except OSError as error:
                logger.debug("no device node %s here: %s", copy, error)


class UnifiedMemory:
    """Loads the kernel module of unified memory, which every CUDA program needs.

    NVIDIA's runtime does that for its containers; without it the module would be missing until the
    first CUDA program runs on the host.

    Args:
        roots: The roots of drivers on the host.
        host: Where this process finds the host's root.
        proc: Where the kernel lists its devices.
        run: Runs a command in a root; tests replace it.
        clock: The time.
    """

    def __init__(
        self,
        roots: Sequence[PurePosixPath],
        *,
        host: Path,
        proc: Path = PROC,
        run: Callable[[Path, Sequence[str]], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._roots = [host / str(root).lstrip("/") for root in roots]
        self._proc = proc
        self._run = run or _run_in
        self._clock = clock or Clock()
        self._again_at = float("-inf")

    def load(self) -> None:
        """Load it if the driver is loaded without it; retry after a minute at the earliest."""
        majors = _majors(self._proc)
        is_desired = any(name in majors for name in _FRONTENDS) and _UVM not in majors
        if not is_desired or self._clock.monotonic() < self._again_at:
            return
        self._again_at = self._clock.monotonic() + _AGAIN_S
        for root in self._roots:
            if (root / _MODPROBE).is_file():
                try:
                    self._run(root, [f"/{_MODPROBE}", "-u", "-c", "0"])
                except (OSError, subprocess.SubprocessError) as error:
                    logger.warning("cannot load unified memory: %s", error)
                return
        roots = ", ".join(map(str, self._roots))
        logger.warning(
            "unified memory (%s) is not loaded, and there is no %s to load it below %s",
            _UVM,
            _MODPROBE,
            roots,
        )


def _run_in(root: Path, command: Sequence[str]) -> None:
    subprocess.run(
        ["chroot", str(root), *command], check=True, timeout=30, capture_output=True, text=True
    )


def _majors(proc: Path) -> Mapping[str, int]:
    """Return the major numbers of character devices by name, listed as `510 nvidia-uvm`."""
    try:
        lines = (proc / "devices").read_text().partition("Block devices:")[0].splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}
