"""Combines all node filters."""

from __future__ import annotations

from dataclasses import replace

from vgpu_api.core import Node, Pod
from vgpu_api.reasons import Reason
from vgpu_operator.node_filter.host_demand import HostDemand
from vgpu_operator.node_filter.node_rules import Hosts, NodeFilters, NodeRules
from vgpu_operator.node_filter.pod_affinity import Peers
from vgpu_operator.node_filter.resources_fit import Room
from vgpu_operator.node_filter.volume_binding import Volumes
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import ALL, NodeFilter


class HostFilters:
    """The filters of nodes by everything except devices.

    Args:
        columns: The numbers of nodes; the free CPU of each is written there.
        is_exact: True if kube-scheduler does not filter afterwards, as in Gate mode. Then
            resources, host ports, other pods and volumes are checked as well.

    Attributes:
        hosts: The free CPU of nodes.
        rules: Taints, selectors and affinity.
        room: The free resources and host ports of nodes, or None if they are not checked.
        volumes: The volumes of pods, and the nodes that can use them.
    """

    def __init__(self, columns: Columns, *, is_exact: bool) -> None:
        self.hosts = Hosts(columns)
        self.rules = NodeFilters()
        self.room = Room(columns) if is_exact else None
        self.volumes = Volumes(columns, self.rules)
        self._columns = columns
        self._peers = Peers(columns, self.rules.domains)

    def apply_node(self, node: Node) -> bool:
        """Record an added or updated node. Return True if it may accept more pods."""
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
        """Count a pod on the node where it runs or will run.

        Returns:
            The node that has more capacity than before, or an empty string.
        """
        if self.room is None:
            return ""
        grown = self.room.put(pod, node)
        self._peers.put(pod, node)
        self.volumes.put(pod, node)
        return grown

    def forget_pod(self, uid: str) -> str:
        """Stop counting a pod. The result is the same as for `expect_pod`."""
        if self.room is None:
            return ""
        grown = self.room.remove(uid)
        self._peers.remove(uid)
        self.volumes.remove_pod(uid)
        return grown

    def of(self, rules: NodeRules, host_demand: HostDemand | None) -> NodeFilter:
        """Return the nodes that a pod may use.

        In Gate mode a demand also rules out nodes by capacity, pod affinity and volumes.
        """
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
        """Return why a pod cannot use a node, or None. The pod may already be counted there."""
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
