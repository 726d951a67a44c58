"""Simulated GPU nodes: their devices, and the file that configures the simulated driver.

The presets have the names of real devices but round numbers, so that expected placements can be
worked out by hand. UUIDs depend only on node and index, so they are the same in every run.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vgpu_local.kubelet.node import NodeShape

_NAMESPACE = uuid.UUID("6f0e1f0a-7c52-4a53-9d5b-0f6b6a2f7e11")


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A model of device.

    Attributes:
        memory_mib: The device memory.
        compute: The compute capability, `major.minor`.
        multiprocessors: The number of multiprocessors.
        mig: `off` or `on` if the hardware supports MIG, else `none`.
    """

    name: str
    memory_mib: int
    compute: str
    multiprocessors: int
    mig: Literal["none", "off", "on"] = "none"


T4 = DeviceModel("Tesla T4", 16384, "7.5", 40)
V100 = DeviceModel("Tesla V100-SXM2-32GB", 32768, "7.0", 80)
A100 = DeviceModel("NVIDIA A100-SXM4-80GB", 81920, "8.0", 108, mig="off")
A100_PCIE = DeviceModel("NVIDIA A100-PCIE-40GB", 40960, "8.0", 108, mig="off")
A100_CUT = replace(A100_PCIE, mig="on")
P100 = DeviceModel("Tesla P100-PCIE-16GB", 16384, "6.0", 56)


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a node.

    Attributes:
        numa: The NUMA node, or -1 if the platform does not report it.
    """

    uuid: str
    model: DeviceModel
    numa: int = -1


@dataclass(frozen=True, slots=True)
class Link:
    """The link between two devices of a node, given by their indices.

    Attributes:
        nvlinks: The number of NVLink connections.
        level: The PCIe class as `nvidia-smi topo` names it; None to derive it from NUMA nodes.
    """

    one: int
    other: int
    nvlinks: int = 0
    level: Literal["PIX", "PXB", "PHB", "NODE", "SYS"] | None = None


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node with simulated devices."""

    shape: NodeShape
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.shape.name

    def machine_text(self) -> str:
        """Describe the machine for the simulated driver (format: libvgpu/fake/README.md)."""
        lines = ["# Simulated machine of node " + self.name]
        for index, device in enumerate(self.devices):
            model = device.model
            lines.append(
                f'card uuid={device.uuid} model="{model.name}" memory_mib={model.memory_mib} '
                f"numa={device.numa} bus=0000:{index + 1:02x}:00.0 cc={model.compute} "
                f"sms={model.multiprocessors} mig={model.mig}"
            )
        for link in self.links:
            level = f" level={link.level}" if link.level else ""
            lines.append(f"link {link.one} {link.other} nvlinks={link.nvlinks}{level}")
        return "\n".join(lines) + "\n"

    def write_machine(self, folder: Path) -> Path:
        """Write the description into a folder, in which the driver also keeps its state.

        The host's part is a tree `sysfs` that the agent reads.
        """
        path = folder / "machine"
        path.write_text(self.machine_text())
        places = {f"0000:{at + 1:02x}:00.0": device.numa for at, device in enumerate(self.devices)}
        write_sysfs(folder / "sysfs", places)
        return path


def write_sysfs(folder: Path, places: Mapping[str, int], *, nodes: str | None = None) -> None:
    """Write the files of sysfs about NUMA nodes and PCI devices.

    Args:
        folder: The folder that replaces /sys.
        places: The NUMA node of each PCI address; -1 if unknown, as the kernel writes it.
        nodes: The host's NUMA nodes as the kernel lists them; None for those of the devices, or
            node 0 without any.
    """
    known = sorted({numa for numa in places.values() if numa >= 0}) or [0]
    listed = ",".join(map(str, known)) if nodes is None else nodes
    host = folder / "devices" / "system" / "node"
    host.mkdir(parents=True, exist_ok=True)
    (host / "has_cpu").write_text(f"{listed}\n")
    for address, numa in places.items():
        device = folder / "bus" / "pci" / "devices" / address
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{numa}\n")


def device_uuid(node: str, index: int) -> str:
    """Return the UUID of a node's device, the same in every run."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def gpu_node(
    name: str, models: Sequence[DeviceModel], *, shape: NodeShape | None = None
) -> GpuNode:
    """Describe a node with one device of each of `models`, unlinked, NUMA unknown."""
    devices = tuple(Device(device_uuid(name, index), model) for index, model in enumerate(models))
    return GpuNode(replace(shape, name=name) if shape else NodeShape(name), devices)


def t4_node(name: str, devices: int = 1) -> GpuNode:
    """Describe a node with 16 GiB devices."""
    return gpu_node(name, [T4] * devices)


def v100_node(name: str, devices: int = 1) -> GpuNode:
    """Describe a node with 32 GiB devices."""
    return gpu_node(name, [V100] * devices)


def a100_node(name: str, devices: int = 1) -> GpuNode:
    """Describe a node with 80 GiB devices."""
    return gpu_node(name, [A100] * devices)


def a100_server(name: str) -> GpuNode:
    """Describe eight 80 GiB devices on two NUMA nodes, all joined by NVLink through a switch."""
    bare = gpu_node(name, [A100] * 8)
    devices = tuple(replace(device, numa=index // 4) for index, device in enumerate(bare.devices))
    links = tuple(Link(a, b, nvlinks=12) for a in range(8) for b in range(a + 1, 8))
    return replace(bare, devices=devices, links=links)
