"""What is free of the nodes' CPU: allocatable, less what pods ask for that are there or to come.

A soft view, for the fragmentation policy: kube-scheduler judges whether a pod's CPU fits. A pod
with a reservation counts before it is bound, or a burst of pods would be sent to one node.
"""

from __future__ import annotations

from typing import NamedTuple

from vgpu_api.core import Node, Pod
from vgpu_api.host import allocatable_cpu_milli, cpu_milli_of
from vgpu_operator.placement.columns import CPU_UNKNOWN, Columns


class _Share(NamedTuple):
    node: str
    cpu_milli: int


class Hosts:
    """Free CPU by node, written into the columns.

    Args:
        columns: Where; of nodes that they know.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._allocatable: dict[str, int] = {}
        self._asked: dict[str, int] = {}  # node → milli-CPU of all its pods
        self._shares: dict[str, _Share] = {}  # pod UID → where and how much

    def apply_node(self, node: Node) -> None:
        """A node was added or changed, and the columns know it."""
        allocatable = allocatable_cpu_milli(node)
        if allocatable is None:
            self._allocatable.pop(node.metadata.name, None)
        else:
            self._allocatable[node.metadata.name] = allocatable
        self._write(node.metadata.name)

    def remove_node(self, name: str) -> None:
        """A node is gone; its pods go one by one."""
        self._allocatable.pop(name, None)
        self._write(name)

    def apply_pod(self, pod: Pod) -> bool:
        """A pod was seen; whether it is new on a node. One without a node changes nothing."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if pod.is_terminal:
            self.remove_pod(uid)
            return False
        if not node:
            return False
        known = self._shares.get(uid)
        self._put(uid, _Share(node, cpu_milli_of(pod)))
        return known is None or known.node != node

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, or its reservation."""
        share = self._shares.pop(uid, None)
        if share is not None:
            self._add(share.node, -share.cpu_milli)

    def expect(self, uid: str, *, node: str, cpu_milli: int) -> None:
        """A pod is to come to a node."""
        self._put(uid, _Share(node, cpu_milli))

    def _put(self, uid: str, share: _Share) -> None:
        if self._shares.get(uid) != share:
            self.remove_pod(uid)
            self._shares[uid] = share
            self._add(share.node, share.cpu_milli)

    def _add(self, node: str, cpu_milli: int) -> None:
        asked = self._asked.get(node, 0) + cpu_milli
        if asked:
            self._asked[node] = asked
        else:
            self._asked.pop(node, None)
        self._write(node)

    def _write(self, name: str) -> None:
        number = self._columns.node_id(name)
        if number is not None:
            allocatable = self._allocatable.get(name)
            free = CPU_UNKNOWN if allocatable is None else allocatable - self._asked.get(name, 0)
            self._columns.set_cpu_free(number, free)
