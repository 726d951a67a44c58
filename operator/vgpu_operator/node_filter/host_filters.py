"""All filters of nodes together: what a pod may use, its devices apart."""

from __future__ import annotations

from dataclasses import replace

from vgpu_api.core import Node, Pod
from vgpu_api.reasons import Reason
from vgpu_operator.node_filter.node_rules import Hosts, NodeFilters, NodeRules
from vgpu_operator.node_filter.pod_affinity import Peers
from vgpu_operator.node_filter.resources_fit import HostDemand, Room
from vgpu_operator.node_filter.volume_binding import Volumes
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import ALL, NodeFilter


class HostFilters:
    """Which nodes take a pod.

    Args:
        columns: Gives nodes their numbers, and takes what CPU they have free.
        is_exact: True where no Filter follows, as in mode Gate: then resources, host ports, other
            pods and volumes count, too.

    Attributes:
        hosts: What is free of the nodes' CPU; fed with pods.
        rules: Taints, selectors and affinity.
        room: What is free on nodes besides devices; fed with pods. None where that does not count.
        volumes: Where pods' volumes are or can be; fed with pods and with volumes.
    """

    def __init__(self, columns: Columns, *, is_exact: bool) -> None:
        self.hosts = Hosts(columns)
        self.rules = NodeFilters()
        self.room = Room(columns) if is_exact else None
        self.volumes = Volumes(columns, self.rules)
        self._columns = columns
        self._peers = Peers(columns, self.rules.domains)

    def apply_node(self, node: Node) -> bool:
        """Take a version of a node; True if it may take pods that it did not take before."""
        self.hosts.apply_node(node)
        has_more = self.room is not None and self.room.apply_node(node)
        number = self._columns.node_id(node.metadata.name)
        return number is not None and (self.rules.put(number, node) or has_more)

    def remove_node(self, name: str, number: int | None) -> None:
        """Forget a node, and its number if it had one."""
        if number is not None:
            self.rules.remove(number)
        self.hosts.remove_node(name)
        if self.room is not None:
            self.room.remove_node(name)

    def expect_pod(self, pod: Pod, node: str) -> str:
        """Count what a pod takes of a node, once it is there or is to come.

        Returns:
            The node that has more room than before; empty: none.
        """
        if self.room is None:
            return ""
        grown = self.room.put(pod, node)
        self._peers.put(pod, node)
        self.volumes.put(pod, node)
        return grown

    def forget_pod(self, uid: str) -> str:
        """Count nothing for a pod any more; return as `expect_pod` does."""
        if self.room is None:
            return ""
        grown = self.room.remove(uid)
        self._peers.remove(uid)
        self.volumes.remove_pod(uid)
        return grown

    def of(self, rules: NodeRules, host_demand: HostDemand | None) -> NodeFilter:
        """Return the nodes that a pod may use; with its demand, only those with room for it."""
        found = self.rules.of(rules)
        if host_demand is None or self.room is None:
            return found
        volumes = self.volumes.of(host_demand.volumes)
        return replace(
            found,
            room=self.room.of(host_demand),
            peers=self._beside(found, host_demand),
            volumes=volumes.reached,
            attachable=volumes.attachable,
        )

    def why_not_on(
        self, number: int, rules: NodeRules, host_demand: HostDemand, uid: str
    ) -> Reason | None:
        """Return what keeps a pod from a node; the pod may be counted there already."""
        found = self.rules.of(rules)
        if self.room is not None:
            room = ALL if self.room.has(uid, host_demand, number) else 0
            volumes = self.volumes.of(host_demand.volumes, without=uid)
            found = replace(
                found,
                room=room,
                peers=self._beside(found, host_demand, without=uid),
                volumes=volumes.reached,
                attachable=volumes.attachable,
            )
        return found.refusal(number) if number not in found else self._columns.closed(number, found)

    def _beside(self, found: NodeFilter, host_demand: HostDemand, *, without: str = "") -> int:
        selected = found.selector & found.affinity
        return self._peers.of(
            host_demand.peers, selected=selected, tolerated=found.taints, without=without
        )
