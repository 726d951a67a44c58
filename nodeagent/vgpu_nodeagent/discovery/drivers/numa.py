"""Finds the NUMA node of the host that is nearest to a PCI device.

The kernel's `numa_node` of the PCI device is the first source, the driver's memory affinity the
second. `nvmlDeviceGetNumaNodeId` is neither: it names the node that the GPU's own memory *is*, and
answers only on Grace. A device that neither source knows is on the host's only node, or its node is
unknown, and on a host with several nodes two unknown nodes are never considered equal.
Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of the kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)

SYSFS = Path("/sys")
_WORD_BITS = 64
_MOST_NODES = 1023
"""The kernel's CONFIG_NODES_SHIFT is 10 at most."""
_MOST_CPUS = 8191
"""The kernel's CONFIG_NR_CPUS is 8192 at most."""


@dataclass(slots=True)
class HostNuma:
    """The host's NUMA nodes, read from sysfs.

    Attributes:
        sysfs: Where sysfs is mounted.
    """

    sysfs: Path = SYSFS
    _reported: set[str] = field(default_factory=set, init=False)

    def node_of(self, bus_id: str, affinity: Sequence[int]) -> int | None:
        """Return the NUMA node nearest to a device; None if unknown.

        Args:
            bus_id: The PCI bus id as NVML writes it (`00000000:07:00.0`).
            affinity: The driver's memory affinity, one bit per node in words of 64 bits; empty if
                the driver does not support it.
        """
        nodes = self.nodes()
        for found in (self._of_device(bus_id), _only_bit(affinity)):
            if found is None:
                continue
            if nodes and found not in nodes:
                self._report(f"PCI device {bus_id}: NUMA node {found} is none of the host's")
                continue
            return found
        if len(nodes) > 1:
            self._report(f"PCI device {bus_id}: its NUMA node is unknown on a host with several")
            return None
        return next(iter(nodes), 0)

    def nodes(self) -> frozenset[int]:
        """Return the NUMA nodes that have CPUs. Nodes that consist only of GPU memory have none.

        If the kernel's list of them is missing or unreadable, return all online nodes; empty if
        these cannot be read either, as in a kernel without NUMA support.
        """
        for name in ("has_cpu", "online"):
            path = self.sysfs / "devices" / "system" / "node" / name
            try:
                return frozenset(_numbers(path.read_text()))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._report(f"{path}: {error}")
        return frozenset()

    def nodes_of_cpus(self, cpus: Collection[int]) -> frozenset[int]:
        """Return the nodes of these CPUs; empty if no node's list can be read."""
        found = set()
        for node in self.nodes():
            path = self.sysfs / "devices" / "system" / "node" / f"node{node}" / "cpulist"
            try:
                listed = _numbers(path.read_text(), most=_MOST_CPUS)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._report(f"{path}: {error}")
                continue
            if not frozenset(cpus).isdisjoint(listed):
                found.add(node)
        return frozenset(found)

    def _of_device(self, bus_id: str) -> int | None:
        path = self.sysfs / "bus" / "pci" / "devices" / _address(bus_id) / "numa_node"
        try:
            node = int(path.read_text())
        except FileNotFoundError:
            return None  # no such device: a container without sysfs, or another namespace
        except (OSError, ValueError) as error:
            self._report(f"{path}: {error}")
            return None
        return node if node >= 0 else None

    def _report(self, sentence: str) -> None:
        """Log a fault once, not each time the devices are read."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.warning("%s", sentence)


def _address(bus_id: str) -> str:
    """Return the bus id as sysfs writes it: lower case, the domain with at least four digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def _only_bit(words: Sequence[int]) -> int | None:
    """Return the number of the only bit that is set; None if none or several are."""
    mask = sum(word << (_WORD_BITS * at) for at, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def _numbers(text: str, *, most: int = _MOST_NODES) -> list[int]:
    """Parse a list as the kernel writes it, such as `0-1,4`.

    Raises:
        ValueError: It is not such a list.
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high <= most:
            raise ValueError(f"{part!r} is not a range of numbers up to {most}")
        found.extend(range(low, high + 1))
    return found
