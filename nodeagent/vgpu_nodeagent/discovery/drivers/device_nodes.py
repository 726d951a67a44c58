"""The device nodes for using a device or MIG instance, and for making instances.

An instance needs the node of its device and two nodes that grant the right to use it: one for the
GPU instance and one for the compute instance in it. The right to make instances has a node too;
CAP_SYS_ADMIN includes every right. The minor numbers of all possible rights are fixed, and the
driver lists them in a file (source: NVIDIA's MIG user guide, "Device Nodes and Capabilities").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpu_nodeagent.discovery.drivers.base import MigInstance

PROC = Path("/proc")
_CAPABILITIES = Path("driver", "nvidia-caps", "mig-minors")
_SYS_ADMIN = 1 << 21


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container.

    Attributes:
        name: Its path below /dev, or in the container.
        major: Its major number if the runtime must make the node, because the host may not have
            it; 0 if the host's node is used.
        minor: Its minor number in that case.
    """

    name: str
    major: int = 0
    minor: int = 0


def nodes_of_device(minor: int) -> tuple[DeviceNode, ...]:
    """Return the nodes for a device with this minor number."""
    return (DeviceNode(f"nvidia{minor}"),)


def nodes_of_instance(
    minor: int, instance: MigInstance, *, proc: Path = PROC
) -> tuple[DeviceNode, ...]:
    """Return the nodes for an instance, without rights that the driver does not list.

    Args:
        minor: The minor number of the device.
        instance: The instance as the driver shows it.
        proc: Where the driver lists rights.
    """
    capabilities, major = _capabilities(proc), _major(proc)
    gpu = f"gpu{minor}/gi{instance.gpu_instance}"
    numbers = [
        capabilities[right]
        for right in (f"{gpu}/access", f"{gpu}/ci{instance.compute_instance}/access")
        if right in capabilities and major
    ]
    return (*nodes_of_device(minor), *(_node(number, major) for number in numbers))


def may_partition(*, proc: Path = PROC, dev: Path = Path("/dev")) -> bool:
    """True if this process may make and remove instances.

    Args:
        proc: Where the driver lists rights and the kernel our capabilities.
        dev: Where device nodes are.
    """
    number = _capabilities(proc).get("config")
    if number is None:  # no such right: the driver does not require it, or is not visible to us
        return not (proc / "driver" / "nvidia").exists()
    return _is_admin(proc) or _can_open(dev / _node(number, 0).name)


def _node(number: int, major: int) -> DeviceNode:
    return DeviceNode(f"nvidia-caps/nvidia-cap{number}", major, number)


def _capabilities(proc: Path) -> Mapping[str, int]:
    """Return the minor number of each right, listed as `gpu0/gi1/access 12`."""
    lines = _lines(proc / _CAPABILITIES)
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _major(proc: Path) -> int:
    for line in _lines(proc / "devices"):
        number, _, name = line.strip().partition(" ")
        if name == "nvidia-caps":
            return int(number)
    return 0


def _is_admin(proc: Path) -> bool:
    for line in _lines(proc / "self" / "status"):
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _SYS_ADMIN)
    return False


def _can_open(node: Path) -> bool:
    """True if the node can be opened; only opening it checks the device cgroup."""
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
