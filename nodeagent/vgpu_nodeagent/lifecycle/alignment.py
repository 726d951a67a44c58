"""Compares the CPUs of a container with the NUMA node of its devices, if the claim requires one.

The kubelet chooses CPUs when it admits a pod, after the device was decided, and gets no topology
hint from this plugin, because slots belong to no device (docs/design/node-and-grants.md). So a
mismatch can only be found afterwards, and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.kubelet.identity import Consumer


def misaligned(
    consumer: Consumer,
    claim: VGPUClaim,
    allocation: Allocation,
    *,
    devices: Mapping[str, PhysicalDevice],
    host: HostNuma,
) -> str:
    """Return a sentence about CPUs and devices on different NUMA nodes; empty if there are none.

    Args:
        consumer: The pod, and the CPUs that the CPU manager assigned to its containers exclusively.
        claim: Its claim.
        allocation: The claim's allocation.
        devices: The node's devices, by UUID.
        host: The node's NUMA nodes.
    """
    if claim.spec.placement is None or claim.spec.placement.numa != "Require":
        return ""
    found = []
    for container, cpus in sorted(consumer.cpus.items()):
        mine = [d.uuid for d in allocation.devices if d.request in (container, "")]
        places = _places(mine, devices)
        of_cpus = host.nodes_of_cpus(cpus)
        if places and of_cpus and not of_cpus <= places:
            found.append(
                f"container {container} has devices of NUMA node {_listed(places)} and CPUs of "
                f"{_listed(of_cpus)}"
            )
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: the kubelet's CPU manager had no others free, or chose without "
        "knowing; a pod that comes later may get others"
    )


def _places(uuids: Iterable[str], devices: Mapping[str, PhysicalDevice]) -> frozenset[int]:
    """Return the known NUMA nodes of these devices."""
    known = (devices[uuid].numa_node for uuid in uuids if uuid in devices)
    return frozenset(node for node in known if node is not None)


def _listed(nodes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
