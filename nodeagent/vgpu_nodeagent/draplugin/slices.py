"""Publishes the node's devices as ResourceSlices, behind a taint that only the operator passes.

Nobody allocates by them: each device carries the taint `vgpu.dev/ledger`, and policies refuse
claims that tolerate it. They show capacity to dashboards, to Kueue's quotas and to `kubectl get
resourceslices`. A kubelet deletes all slices of its node when it starts, and those of a driver that
was away for 30 s, so a slice that is gone is published again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.dra import DRIVER, TAINT, device_name
from vgpu_api.resources import NODES, RESOURCE_SLICES
from vgpu_api.v1alpha1.base import version_of
from vgpu_client.api import Api
from vgpu_client.backoff import Backoff
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, NotFound
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DEVICE_CORES, DeviceCapacity
from vgpu_nodeagent.events import DeviceChanged, Event, InventoryChanged
from vgpu_nodeagent.reporting.node_devices import NodeDevices

logger = logging.getLogger(__name__)

DEVICES_A_SLICE = 64
"""The most devices with taints that the API server accepts in a slice."""
_UNHEALTHY = f"{names.GROUP}/unhealthy"
_CONTENT = f"{names.GROUP}/content"
"""Annotation with a digest of what was published.

What the server stores cannot be compared: it drops the fields of features that are switched off.
"""
_NAME_KEPT = 200
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)")
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A ResourceSlice of this driver and node, as far as its publisher must know it."""

    version: int
    generation: int
    content: str


def devices_of(devices: NodeDevices) -> Sequence[Mapping[str, Any]]:
    """Return the devices of the node's slices, in the order of their numbers."""
    capacities = devices.inventory.capacities()
    return [
        _device(each, capacities[each.uuid], is_usable=devices.is_usable(each.uuid))
        for each in sorted(devices.inventory.devices.values(), key=lambda device: device.index)
        if each.memory_mib  # of an unknown size nothing can be shown
    ]


def _device(
    device: PhysicalDevice, capacity: DeviceCapacity, *, is_usable: bool
) -> Mapping[str, Any]:
    taints = [{"key": TAINT, "effect": "NoSchedule"}]
    if not is_usable:
        taints.append({"key": _UNHEALTHY, "effect": "NoSchedule"})
    memory = f"{capacity.allocatable.memory_mib}Mi"
    return {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        "taints": taints,
        "attributes": _attributes(device, capacity),
        "capacity": {
            "memory": {"value": memory, "requestPolicy": _policy(memory, step="1Mi", most=memory)},
            "cores": {
                "value": str(capacity.allocatable.cores),
                "requestPolicy": _policy("0", step="1", most=str(DEVICE_CORES)),
            },
        },
    }


def _policy(default: str, *, step: str, most: str) -> Mapping[str, Any]:
    least = "0" if default == "0" else step
    return {"default": default, "validRange": {"min": least, "step": step, "max": most}}


def _attributes(device: PhysicalDevice, capacity: DeviceCapacity) -> Mapping[str, Any]:
    """Return the attributes, with the names of HAMi's DRA driver where it has one."""
    texts = {
        "type": "hami-gpu",
        "uuid": device.uuid,
        "productName": device.model,
        "architecture": device.architecture,
        "driverVersion": device.driver_version,
        "pcieBusID": device.pci_bus_id,
    }
    found: dict[str, Any] = {name: {"string": text} for name, text in texts.items() if text}
    found["minor"] = {"int": device.minor}
    found["mig"] = {"bool": capacity.in_mig_mode}
    if device.numa_node is not None:
        found["numa"] = {"int": device.numa_node}
    for name, text in (
        ("cudaComputeCapability", device.compute_capability),
        ("cudaDriverVersion", device.runtime_version),
    ):
        if _VERSION.fullmatch(text):
            found[name] = {"version": f"{text}.0"}
    return found


class SlicePublisher:
    """Keeps the node's ResourceSlices up to date.

    Args:
        api: The API server.
        node: The node's name.
        devices: The node's devices.
        clock: Waits between attempts.
    """

    def __init__(
        self, api: Api, node: str, devices: NodeDevices, *, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._node = node
        self._devices = devices
        self._clock = clock or Clock()
        self._there: dict[str, PublishedSlice] = {}
        self._wake = asyncio.Event()
        scope = Scope(
            field_selector=f"spec.nodeName={node},spec.driver={DRIVER}",
            from_cache=True,
        )
        self._reflector: Reflector[Object] = Reflector(
            api, RESOURCE_SLICES, self, decode=lambda raw: raw, scope=scope
        )

    def observe(self, event: Event) -> None:
        """Publish soon after an event that may change what the slices show."""
        if isinstance(event, InventoryChanged | DeviceChanged):
            self._wake.set()

    async def run(self) -> None:
        """Publish after every change of devices, and whenever a slice is gone, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            await self._reflector.synced.wait()
            self._wake.set()
            failures = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self.publish()
                    failures = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
                except ClientError as error:
                    wait_s = failures.failed()
                    logger.warning("cannot publish slices, retrying in %.1f s: %s", wait_s, error)
                    await self._clock.sleep(wait_s)
                    self._wake.set()

    async def publish(self) -> None:
        """Write all slices of the pool with a new generation, unless they show this already.

        Raises:
            ClientError: A slice could not be written; the rest follows at the next attempt.
        """
        devices = devices_of(self._devices)
        starts = range(0, len(devices), DEVICES_A_SLICE)
        parts = [devices[start : start + DEVICES_A_SLICE] for start in starts]
        content = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        desired = {self._name(number): part for number, part in enumerate(parts)}
        generations = {each.generation for each in self._there.values()}
        if (
            self._there.keys() == desired.keys()
            and {each.content for each in self._there.values()} <= {content}
            and len(generations) <= 1
        ):
            return
        generation = 1 + max(generations, default=0)
        owner = await self._owner()
        for name, part in desired.items():
            pool = {"name": self._node, "generation": generation, "resourceSliceCount": len(parts)}
            spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": part}
            metadata = {
                "name": name,
                "annotations": {_CONTENT: content},
                "labels": dict([names.PART_OF_LABEL.split("=")]),
                "ownerReferences": [owner],
            }
            written = await self._api.apply(
                RESOURCE_SLICES,
                {"metadata": metadata, "spec": spec},
                field_manager=names.FIELD_MANAGER_AGENT,
                force=True,
            )
            self._take(written)
        for name in self._there.keys() - desired.keys():
            await self._delete(name)
        logger.info("published %d ResourceSlices, generation %d", len(desired), generation)

    def added(self, obj: Object) -> None:
        """Take a slice that is there."""
        self._take(obj)

    def modified(self, obj: Object) -> None:
        """Take a slice that was changed, by us or by others."""
        self._take(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Publish a slice again that somebody deleted: a kubelet that was restarted, mostly."""
        if self._there.pop(identity.name, None) is not None:
            self._wake.set()

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Do nothing: slices are taken as they are."""

    def _take(self, obj: Object) -> None:
        metadata, pool = obj["metadata"], obj["spec"]["pool"]
        version = version_of(metadata["resourceVersion"])
        known = self._there.get(metadata["name"])
        if known is not None and known.version >= version:
            return
        content = (metadata.get("annotations") or {}).get(_CONTENT, "")
        self._there[metadata["name"]] = PublishedSlice(version, pool["generation"], content)
        self._wake.set()

    async def _delete(self, name: str) -> None:
        try:
            await self._api.delete(RESOURCE_SLICES, name)
        except NotFound:
            logger.info("slice %s was deleted meanwhile", name)
        self._there.pop(name, None)

    async def _owner(self) -> Mapping[str, Any]:
        node = await self._api.get(NODES, self._node)
        uid = node["metadata"]["uid"]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": uid,
            "controller": True,
        }

    def _name(self, number: int) -> str:
        kept = self._node
        if len(kept) > _NAME_KEPT:
            kept = f"{kept[:_NAME_KEPT]}-{hashlib.sha256(kept.encode()).hexdigest()[:8]}"
        return f"{kept}-{DRIVER}-{number}"
