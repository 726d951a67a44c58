"""The state of the node's devices, which is published, offered and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.toolkit import Exposure
from vgpu_nodeagent.enforcement.watchdog import Stranger
from vgpu_nodeagent.state.plugin_standing import PluginProblem


@dataclass(slots=True)
class NodeDevices:
    """The devices of the node, and the faults that concern all of them.

    Attributes:
        inventory: The devices and their capacity.
        health: The health of the devices.
        config_fault: What is wrong with the mounted configuration; empty if it is valid.
        exposure: How containers without a claim get devices; None if they do not.
        plugin_problem: Why the kubelet does not offer the node's slots; None while it does.
        strangers: The processes without a claim, by device UUID.
    """

    inventory: Inventory
    health: Health
    config_fault: str = ""
    exposure: Exposure | None = None
    plugin_problem: PluginProblem | None = None
    strangers: Mapping[str, tuple[Stranger, ...]] = field(default_factory=dict)

    def is_usable(self, uuid: str) -> bool:
        """True for a device that the driver shows and that is healthy."""
        return self.inventory.is_present(uuid) and self.health.problem(uuid) is None

    def unclaimed(self, uuid: str) -> str:
        """Return the processes without a claim on a device, as a sentence; empty without any."""
        return "; ".join(map(str, self.strangers.get(uuid, ())))
