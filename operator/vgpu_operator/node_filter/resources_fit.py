"""Filters nodes by free resources and host ports.

kube-scheduler checks CPU, memory and other resources before it calls an extender. In Gate mode a
pod's node is decided before kube-scheduler has seen the pod and cannot be changed afterwards, so
the check must be exact: all resources, the number of pods, and host ports. Source: Kubernetes, the
scheduler's plugins NodeResourcesFit and NodePorts.

Free amounts are arrays indexed by node, so checking 5,000 nodes takes one comparison per resource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vgpu_api.core import Node, Pod
from vgpu_api.host import allocatable_of, sizes_of
from vgpu_operator.node_filter.host_demand import ANY_ADDRESS, HostDemand, Port
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import ALL, only


@dataclass(frozen=True, slots=True)
class _Placed:
    node: str
    host_demand: HostDemand
    version: tuple[object, ...]


class Room:
    """The free resources and the used host ports of each node.

    Args:
        columns: The numbers of the nodes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._allocatable: dict[str, dict[str, int]] = {}
        self._requested: dict[str, Counter[str]] = {}
        self._ports: dict[str, Counter[Port]] = {}
        self._shares: dict[str, _Placed] = {}  # pod UID → its node and demand
        self._free: dict[str, npt.NDArray[np.int64]] = {}

    def apply_node(self, node: Node) -> bool:
        """Record an added or updated node. Return True if it can take more than before."""
        name, new = node.metadata.name, allocatable_of(node)
        before = self._allocatable.get(name, {})
        self._allocatable[name] = new
        self._write(name, {*before, *new, *self._requested.get(name, ())})
        return any(amount > before.get(resource, 0) for resource, amount in new.items())

    def remove_node(self, name: str) -> None:
        """Forget a node. Its pods are removed individually."""
        before = self._allocatable.pop(name, {})
        self._write(name, {*before, *self._requested.get(name, ())})

    def put(self, pod: Pod, node: str) -> str:
        """Record a pod that is on a node or expected there.

        Returns:
            The node that has more capacity than before, or an empty string.
        """
        uid, version = pod.metadata.uid, (pod.metadata.generation, *sizes_of(pod))
        known = self._shares.get(uid)
        if known is not None and (known.node, known.version) == (node, version):
            return ""
        freed = self.remove(uid)
        share = self._shares[uid] = _Placed(node, HostDemand.of(pod), version)
        self._add(share, 1)
        return freed

    def remove(self, uid: str) -> str:
        """Forget a pod that is gone, has ended or is no longer expected.

        Returns:
            The same as `put`.
        """
        share = self._shares.pop(uid, None)
        if share is None:
            return ""
        self._add(share, -1)
        return share.node

    def of(self, host_demand: HostDemand) -> int:
        """Return the nodes that have enough free capacity for a demand, as a bit mask."""
        size = len(self._columns.node_name)
        fits = np.ones(size, dtype=bool)
        for resource, amount in host_demand.amounts:
            free = self._free.get(resource)
            if free is None:
                return 0
            fits[: len(free)] &= free[:size] >= amount
            fits[len(free) :] = False
        bits = int.from_bytes(np.packbits(fits, bitorder="little").tobytes(), "little")
        return bits & self._without_conflict(host_demand.ports)

    def has(self, uid: str, host_demand: HostDemand, number: int) -> bool:
        """Return True if a node has enough capacity for a pod besides the other pods there."""
        known = self._shares.pop(uid, None)
        if known is not None:
            self._add(known, -1)
        fits = bool(self.of(host_demand) >> number & 1)
        if known is not None:
            self._shares[uid] = known
            self._add(known, 1)
        return fits

    def _without_conflict(self, ports: tuple[Port, ...]) -> int:
        nodes = ALL
        if ports:
            for name, used in self._ports.items():
                number = self._columns.node_id(name)
                if number is not None and any(_conflict(p, q) for p in ports for q in used):
                    nodes &= ~only(number)
        return nodes

    def _add(self, share: _Placed, sign: int) -> None:
        requested = self._requested.setdefault(share.node, Counter())
        for resource, amount in share.host_demand.amounts:
            requested[resource] += sign * amount
            if not requested[resource]:
                del requested[resource]
        if share.host_demand.ports:
            ports = self._ports.setdefault(share.node, Counter())
            for port in share.host_demand.ports:
                ports[port] += sign
                if not ports[port]:
                    del ports[port]
        self._write(share.node, {resource for resource, _ in share.host_demand.amounts})

    def _write(self, name: str, resources: set[str]) -> None:
        number = self._columns.node_id(name)
        if number is None:
            return
        allocatable = self._allocatable.get(name, {})
        requested: Mapping[str, int] = self._requested.get(name, {})
        for resource in resources:
            free = self._free.get(resource)
            if free is None or number >= len(free):
                grown = np.zeros(max(64, 2 * number + 1), dtype=np.int64)
                if free is not None:
                    grown[: len(free)] = free
                free = self._free[resource] = grown
            free[number] = allocatable.get(resource, 0) - requested.get(resource, 0)


def _conflict(one: Port, other: Port) -> bool:
    """Return True if two ports have the same number and their addresses overlap."""
    addresses = {one[1], other[1]}
    same_address = len(addresses) == 1 or ANY_ADDRESS in addresses
    return one[0] == other[0] and one[2] == other[2] and same_address
