"""Nodes whose registers become devices, by the operator and an API server together."""

from __future__ import annotations

from uuid import uuid4

from vgpu_api import conditions
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.v1alpha1 import GPUDevice, GPUDeviceStatus
from vgpu_api.vendors import Kind
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.devices.registers import publish_registered
from vgpu_operator.engine.effects import Effect, PublishDevice, RecordEvent
from vgpu_operator.engine.events import DeviceObserved, DeviceWritten, NodeObserved
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import Ledger


class World:
    """The engine's state with nodes, whose devices are written as an API server would."""

    def __init__(self, config: ClusterConfig) -> None:
        self.state = State(config, Ledger(config=config), lambda: str(uuid4()))
        self.devices: dict[str, GPUDevice] = {}
        self.events: list[RecordEvent] = []
        self._version = 1

    def observe(self, node: Node) -> None:
        """Observe the node and all resulting writes, until there are no more."""
        apply(NodeObserved(node), self.state)
        for _ in range(3):
            effects = [each for batch in publish_registered(self.state) for each in batch]
            for effect in effects:
                self._carry_out(effect)
        assert [each for each in effects if isinstance(each, PublishDevice)] == []

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, RecordEvent):
            self.events.append(effect)
            return
        assert isinstance(effect, PublishDevice)
        self._version += 1
        known = self.devices.get(effect.name)
        made = effect.create if known is None else known.to_wire()
        assert made is not None
        metadata = {**made["metadata"], "resourceVersion": str(self._version)}
        device = GPUDevice.model_validate({**made, "metadata": metadata, "status": effect.status})
        self.devices[effect.name] = device
        apply(DeviceWritten(effect, version=str(self._version)), self.state)
        apply(DeviceObserved(device), self.state)

    def ready(self, kind: Kind, node: str) -> dict[str, GPUDeviceStatus]:
        """Return the ids of the node's devices of a kind that may be allocated."""
        return {
            device.status.uuid: device.status
            for device in self.devices.values()
            if (device.status.vendor, device.spec.node_name) == (kind.name, node)
            and conditions.is_true(device.status.conditions, conditions.READY)
        }
