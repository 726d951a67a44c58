"""Creates a GPUDevice object for each device and keeps its status up to date.

The agent writes an object's spec once, with the node's name: the rest of the spec belongs to the
administrator. It applies the status with its own field manager, so that the operator's `allocated`
and `claims` stay, and only if something in it has changed.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from vgpu_api import names
from vgpu_api.resources import GPU_DEVICES, NODES
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_api.vendors import kind_of
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import AlreadyExists, ClientError, Conflict, NotFound
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity
from vgpu_nodeagent.events import DeviceChanged, Event, InventoryChanged, StrangersChanged
from vgpu_nodeagent.reporting.device_status import absent, change, conditions_of, said_by, said_of
from vgpu_nodeagent.reporting.hami_register import Entry, HamiRegister
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.state.node_view import NodeView

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 30.0
_ROUND_S = 60.0


class Publisher:
    """Keeps this node's GPUDevice objects up to date.

    Args:
        api: The API server.
        view: The newest known objects of this node.
        devices: The state of the devices.
        register: Writes HAMi's annotations to the Node; None to leave them out.
        clock: The time, and the waits between attempts.
    """

    def __init__(
        self,
        api: Api,
        view: NodeView,
        devices: NodeDevices,
        *,
        register: HamiRegister | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._node = view.node
        self._view = view
        self._devices = devices
        self._inventory = devices.inventory
        self._register = register
        self._clock = clock or Clock()
        self._desired = asyncio.Event()

    def observe(self, event: Event) -> None:
        """Publish soon after an event that may change the published objects."""
        match event:
            case DeviceChanged(new=new):
                if new is not None:
                    self._take_settings(new)
                self.wake()
            case InventoryChanged() | StrangersChanged():
                self.wake()

    def wake(self) -> None:
        """Publish soon."""
        self._desired.set()

    async def run(self) -> None:
        """Publish after every change, and at least once a minute."""
        retry_s = _FIRST_RETRY_S
        await self._view.wait_synced()
        while True:
            self._desired.clear()
            try:
                await self.publish()
            except ClientError as error:
                logger.warning("publishing failed, retrying in %.1f s: %s", retry_s, error)
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            try:
                async with asyncio.timeout(_ROUND_S):  # wait_for may swallow a cancellation
                    await self._desired.wait()
            except TimeoutError:
                continue

    async def publish(self) -> None:
        """Bring every object up to date.

        Raises:
            ClientError: An object could not be read or written.
        """
        capacity = self._inventory.capacities()
        entries: list[Entry] = []
        for uuid, gpu in self._inventory.devices.items():
            device = self._own(uuid) or await self._create(gpu)
            if device is not None:
                desired = conditions_of(device, gpu, self._devices)
                await self._write(device, self._said(gpu, capacity[uuid]), desired)
                healthy = self._devices.is_usable(uuid)
                if gpu.memory_mib:  # HAMi's register cannot express unknown memory
                    entries.append(Entry(gpu, capacity[uuid], device.spec.mode, healthy))
        # The objects of devices that are gone stay, and show it.
        for device in list(self._view.devices.objects.values()):
            if kind_of(device.status.vendor) is not None:
                continue  # the operator publishes devices of other vendors
            if device.status.uuid and device.status.uuid not in self._inventory.devices:
                conditions = absent(self._inventory.driver_error)
                await self._write(device, said_by(device), conditions)
        # Without a response of the driver no device is known, and the register would look empty.
        if self._register is not None and (entries or self._inventory.driver_error is None):
            await self._register.write(entries)

    def _take_settings(self, device: GPUDevice) -> None:
        """Take the administrator's settings from a device's object."""
        for uuid, gpu in self._inventory.devices.items():
            if device.metadata.name in self._names(gpu):
                self._inventory.set_spec(uuid, device.spec)

    def _names(self, gpu: PhysicalDevice) -> tuple[str, str]:
        return (
            names.device_object_name(gpu.uuid),
            names.device_object_name_on_node(gpu.uuid, self._node),
        )

    def _own(self, uuid: str) -> GPUDevice | None:
        gpu = self._inventory.devices[uuid]
        for name in self._names(gpu):
            device = self._view.devices.objects.get(("", name))
            if device is not None and device.metadata.deletion_timestamp is None:
                self._inventory.set_spec(uuid, device.spec)
                return device
        return None

    async def _create(self, gpu: PhysicalDevice) -> GPUDevice | None:
        """Create the device's object, under another name if another live node has the first."""
        node = await self._api.get(NODES, self._node)
        plain, on_node = self._names(gpu)
        for name in (plain, on_node):
            try:
                made = await self._api.create(
                    GPU_DEVICES,
                    {
                        "apiVersion": names.API_VERSION,
                        "kind": "GPUDevice",
                        "metadata": {
                            "name": name,
                            "ownerReferences": [
                                {
                                    "apiVersion": "v1",
                                    "kind": "Node",
                                    "name": self._node,
                                    "uid": node["metadata"]["uid"],
                                }
                            ],
                        },
                        "spec": {"nodeName": self._node},
                    },
                    field_manager=names.FIELD_MANAGER_AGENT,
                )
            except AlreadyExists:
                if not await self._is_taken(name):
                    return None  # ours, or about to be deleted with its node
                logger.warning("GPU %s: object %s belongs to another node", gpu.uuid, name)
                continue
            logger.info("GPU %s is published as %s", gpu.uuid, name)
            if self._register is not None:
                self._register.forget()  # the old annotations may have gone with another Node
            self._view.take_device(made)
            return GPUDevice.read(made)
        return None

    async def _is_taken(self, name: str) -> bool:
        """True if the object of this name belongs to another live node."""
        try:
            raw = await self._api.get(GPU_DEVICES, name)
        except NotFound:
            self.wake()
            return False
        other = GPUDevice.read(raw)
        if other.spec.node_name == self._node:
            self._view.take_device(raw)
            return False
        try:
            await self._api.get(NODES, other.spec.node_name)
        except NotFound:
            return False  # it is deleted with its node; the next round finds the name free
        return True

    async def _write(
        self, device: GPUDevice, said: dict[str, Any], desired: list[Condition]
    ) -> None:
        """Apply a status unless the object has it already."""
        body = change(device, said, desired, timestamp=self._stamp())
        if body is None:
            return
        try:
            written = await self._api.apply(
                GPU_DEVICES,
                {
                    "metadata": {"name": device.metadata.name, "uid": device.metadata.uid},
                    "status": body,
                },
                field_manager=names.FIELD_MANAGER_AGENT,
                force=True,
                subresource="status",
            )
        except (NotFound, Conflict) as error:
            logger.info("device %s was deleted or recreated: %s", device.metadata.name, error)
            self._view.drop_device(device.metadata.name)  # the next round creates or finds it
        else:
            self._view.take_device(written)

    def _said(self, gpu: PhysicalDevice, capacity: DeviceCapacity) -> dict[str, Any]:
        return said_of(gpu, capacity, vendor=self._inventory.vendor)

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
