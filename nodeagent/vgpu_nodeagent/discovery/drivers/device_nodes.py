"""Device nodes that a container needs to use a device or an instance, and that making one needs.

An instance needs its device's node and two more that stand for the right to use it: one for the GPU
instance, one for the compute instance in it. The right to cut devices has a node too;
CAP_SYS_ADMIN gives every right. The numbers of all rights there could be are fixed, and the driver
lists them in a file (source: NVIDIA's MIG user guide, "Device Nodes and Capabilities").
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
    """A node that a container gets.

    Attributes:
        name: Below /dev, or its path in the container.
        major: Of what it leads to, where the host may have no such node and the runtime makes it;
            0: it is the host's.
        minor: The other number of that.
    """

    name: str
    major: int = 0
    minor: int = 0


def nodes_of_device(minor: int) -> tuple[DeviceNode, ...]:
    """What a device needs, by its number."""
    return (DeviceNode(f"nvidia{minor}"),)


def nodes_of_instance(
    minor: int, instance: MigInstance, *, proc: Path = PROC
) -> tuple[DeviceNode, ...]:
    """What an instance needs; rights that the driver does not have are left out.

    Args:
        minor: The device's number.
        instance: As the driver shows it.
        proc: Where the driver's files are.
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
    """Whether this process may make and remove instances.

    Args:
        proc: Where the driver lists rights, and the kernel ours.
        dev: Where device nodes are.
    """
    number = _capabilities(proc).get("config")
    if number is None:  # no such right: no driver that asks for it, or one that we cannot see
        return not (proc / "driver" / "nvidia").exists()
    return _is_admin(proc) or _can_open(dev / _node(number, 0).name)


def _node(number: int, major: int) -> DeviceNode:
    return DeviceNode(f"nvidia-caps/nvidia-cap{number}", major, number)


def _capabilities(proc: Path) -> Mapping[str, int]:
    """The number of each right, as in `gpu0/gi1/access 12`."""
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
    """Only opening it shows that: the device cgroup is checked nowhere else."""
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
