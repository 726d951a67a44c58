"""Carries out the effects of decisions about grants."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from vgpu_nodeagent.discovery.drivers.device_nodes import (
    DeviceNode,
    nodes_of_device,
    nodes_of_instance,
)
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.events import RoomMade
from vgpu_nodeagent.lifecycle import effects
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.claim_instances import made

logger = logging.getLogger(__name__)


class GrantEffector:
    """Carries out effects in order and without an await, so that the node's state stays the same.

    Args:
        node: The node.
        reports: Writes to the API server.
    """

    def __init__(self, node: LocalNode, reports: Reports) -> None:
        self._node = node
        self._reports = reports

    def carry_out(self, wanted: Iterable[effects.Effect]) -> None:
        """Carry out the effects until one fails.

        Raises:
            DriverFilesMissing: There is no driver for a container.
            PageDamaged: A page is damaged, or belongs to another allocation.
            OSError: A file cannot be written.
        """
        allocations = self._node.allocations
        for effect in wanted:
            match effect:
                case effects.Commit(state):
                    self._node.checkpoint.commit(state)
                case effects.OpenPage(name, grant):
                    allocations.open(name, grant, nodes=self._device_nodes())
                case effects.ResizePage(name, limits):
                    allocations.resize(name, limits)
                case effects.ShutPage(name):
                    self._shut(name)
                case effects.ClosePage(name):
                    allocations.close(name)
                case effects.ReportReleased(claim, allocation_id):
                    self._reports.released(claim, allocation_id)
                case effects.ReportInitEnded(claim, init_round):
                    self._reports.init_ended(claim, init_round)
                case effects.ReportInitWanted(claim, init_round):
                    self._reports.init_wanted(claim, init_round)
                case RoomMade():
                    self._node.events.put(effect)

    def _shut(self, name: str) -> None:
        try:
            self._node.allocations.shut(name)
        except PageDamaged as error:
            logger.warning("%s; it grants nothing", error)

    def _device_nodes(self) -> Mapping[str, Sequence[DeviceNode]]:
        """Return the device nodes by UUID of the device or instance."""
        devices = self._node.inventory.devices
        nodes = {uuid: nodes_of_device(device.minor) for uuid, device in devices.items()}
        for each in made(self._node.checkpoint.state.claim_instances).values():
            if (device := devices.get(each.card)) is not None:
                nodes[each.instance.uuid] = nodes_of_instance(device.minor, each.instance)
        return nodes
