"""Publishes the node's devices as ResourceSlices, for the operator or for kube-scheduler.

On most nodes nobody allocates by them: each device carries the taint `vgpu.dev/ledger`, and
policies refuse claims that tolerate it. They show capacity to dashboards, to Kueue's quotas and to
`kubectl get resourceslices`. On a node with the label `vgpu.dev/allocator: Scheduler` the devices
have the attribute `allocator` in place of the taint, and kube-scheduler allocates them. The taint
goes only when no claim that the operator has allocated is left on the node: kube-scheduler does not
count it. A kubelet deletes all slices of its node when it starts, and those of a driver that
was away for 30 s, so a slice that is gone is published again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.dra import ALLOCATOR, DRIVER, TAINT, device_name
from vgpu_api.resources import NODES, RESOURCE_SLICES, VGPU_CLAIMS
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
_CONTENT = f"{names.GROUP}/content"
"""Annotation with a digest of what was published.

What the server stores cannot be compared: it drops the fields of features that are switched off.
"""
_NAME_KEPT = 200
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)")
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 30.0
SETTLE_S = 3.0
"""Wait this long after the node's label appears: a decision of the operator may be on its way."""
_LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A ResourceSlice of this driver and node, as far as its publisher must know it."""

    version: int
    generation: int
    content: str
    is_for_scheduler: bool


def devices_of(devices: NodeDevices, *, for_scheduler: bool = False) -> Sequence[Mapping[str, Any]]:
    """Return the devices of the node's slices, in the order of their numbers.

    Args:
        devices: The node's devices.
        for_scheduler: True if kube-scheduler allocates them. A device in MIG mode is left out then:
            its capacity cannot be shared by amounts, and nothing else about it is published.
    """
    capacities = devices.inventory.capacities()
    return [
        _device(
            each,
            capacities[each.uuid],
            is_usable=devices.is_usable(each.uuid),
            for_scheduler=for_scheduler,
        )
        for each in sorted(devices.inventory.devices.values(), key=lambda device: device.index)
        if each.memory_mib  # of an unknown size nothing can be shown
        and not (for_scheduler and capacities[each.uuid].in_mig_mode)
    ]


def _device(
    device: PhysicalDevice, capacity: DeviceCapacity, *, is_usable: bool, for_scheduler: bool
) -> Mapping[str, Any]:
    taints = [] if for_scheduler else [{"key": TAINT, "effect": "NoSchedule"}]
    if not is_usable:
        taints.append({"key": names.TAINT_UNHEALTHY, "effect": "NoSchedule"})
    attributes = _attributes(device, capacity)
    if for_scheduler:
        attributes[ALLOCATOR] = {"string": names.ALLOCATOR_SCHEDULER}
    memory, shares = f"{capacity.allocatable.memory_mib}Mi", str(capacity.allocatable.slots)
    return {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        **({"taints": taints} if taints else {}),
        "attributes": attributes,
        "capacity": {
            "memory": {"value": memory, "requestPolicy": _policy(memory, step="1Mi", most=memory)},
            "cores": {
                "value": str(capacity.allocatable.cores),
                "requestPolicy": _policy("0", step="1", most=str(DEVICE_CORES)),
            },
            "shares": {
                "value": shares,
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }


def _policy(default: str, *, step: str, most: str) -> Mapping[str, Any]:
    least = "0" if default == "0" else step
    return {"default": default, "validRange": {"min": least, "step": step, "max": most}}


def _attributes(device: PhysicalDevice, capacity: DeviceCapacity) -> dict[str, Any]:
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


def _shown(obj: Object) -> Sequence[Mapping[str, Any]]:
    """Return the devices of a stored slice."""
    return obj["spec"].get("devices") or ()


def _tell_of_dropped(written: Object) -> None:
    """Log that kube-scheduler cannot share a device, because the API server drops the field."""
    if any("allowMultipleAllocations" not in device for device in _shown(written)):
        logger.error(
            "the API server drops allowMultipleAllocations from ResourceSlices: switch the feature "
            "gate DRAConsumableCapacity on, or no pod gets devices of this node"
        )


class NodeLabel:
    """Follows the node's label that says who allocates its devices.

    Args:
        api: The API server.
        node: The node's name.
        wake: Set when the label has changed.
    """

    def __init__(self, api: Api, node: str, wake: asyncio.Event) -> None:
        self._wake = wake
        self.is_scheduler = False
        scope = Scope(field_selector=f"metadata.name={node}", from_cache=True)
        self._reflector: Reflector[Object] = Reflector(
            api, NODES, self, decode=lambda raw: raw, scope=scope
        )

    @property
    def synced(self) -> asyncio.Event:
        """Set once the node has been read."""
        return self._reflector.synced

    async def run(self) -> None:
        """Follow the label, for ever."""
        await self._reflector.run()

    def added(self, obj: Object) -> None:
        """Take the node."""
        self.modified(obj)

    def modified(self, obj: Object) -> None:
        """Take a newer version of the node."""
        value = (obj["metadata"].get("labels") or {}).get(names.LABEL_ALLOCATOR, "")
        if value not in ("", names.ALLOCATOR_LEDGER, names.ALLOCATOR_SCHEDULER):
            logger.warning(
                'metadata.labels[%s]: Unsupported value: "%s": supported values: "%s", "%s"; the '
                "operator allocates the devices",
                names.LABEL_ALLOCATOR, value, names.ALLOCATOR_LEDGER, names.ALLOCATOR_SCHEDULER,
            )  # fmt: skip
        is_scheduler = value == names.ALLOCATOR_SCHEDULER
        if is_scheduler != self.is_scheduler:
            self.is_scheduler = is_scheduler
            self._wake.set()

    def deleted(self, identity: ObjectIdentity) -> None:
        """Do nothing: the node's slices go with it."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Do nothing: nodes are taken as they are."""


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
        self._label = NodeLabel(api, node, self._wake)
        self._said = ""
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
            tasks.create_task(self._label.run())
            await self._reflector.synced.wait()
            await self._label.synced.wait()
            self._wake.set()
            failures = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._publish_in_turn()
                    failures = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
                except ClientError as error:
                    wait_s = failures.failed()
                    logger.warning("cannot publish slices, retrying in %.1f s: %s", wait_s, error)
                    await self._clock.sleep(wait_s)
                    self._wake.set()

    async def _publish_in_turn(self) -> None:
        """Publish for the operator or for kube-scheduler, and look again while one waits."""
        wanted = self._label.is_scheduler
        # What kube-scheduler has been shown once, it may have allocated: only the label ends that.
        had = any(each.is_for_scheduler for each in self._there.values())
        may = wanted and (had or await self._is_free_of_claims())
        await self.publish(for_scheduler=may)
        if wanted and not may:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._wake.set)

    async def _is_free_of_claims(self) -> bool:
        """Return True if no claim is left here that the operator has allocated by itself.

        Raises:
            ClientError: The claims could not be listed.
        """
        await self._clock.sleep(SETTLE_S)
        listing = await self._api.list(
            VGPU_CLAIMS, field_selector=f"status.allocation.nodeName={self._node}"
        )
        held = sorted(
            f"{each['metadata'].get('namespace')}/{each['metadata']['name']}"
            for each in listing.items
            if names.ANNOTATION_SCHEDULER_CLAIM not in (each["metadata"].get("annotations") or {})
        )
        if held:
            logger.warning(
                "node %s has the label %s=%s, and kube-scheduler gets its devices only when these "
                "claims are gone: %s",
                self._node, names.LABEL_ALLOCATOR, names.ALLOCATOR_SCHEDULER, ", ".join(held),
            )  # fmt: skip
        return not held

    async def publish(self, *, for_scheduler: bool = False) -> None:
        """Write all slices of the pool with a new generation, unless they show this already.

        Args:
            for_scheduler: True if kube-scheduler allocates the devices.

        Raises:
            ClientError: A slice could not be written; the rest follows at the next attempt.
        """
        devices = devices_of(self._devices, for_scheduler=for_scheduler)
        self._tell_of_left_out(len(devices) if for_scheduler else None)
        starts = range(0, len(devices), DEVICES_A_SLICE)
        parts = [devices[start : start + DEVICES_A_SLICE] for start in starts]
        content = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        desired = {self._name(number): part for number, part in enumerate(parts)}
        if self._shows(desired.keys(), content):
            return
        generation = 1 + max((each.generation for each in self._there.values()), default=0)
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
            if for_scheduler:
                _tell_of_dropped(written)
        for name in self._there.keys() - desired.keys():
            await self._delete(name)
        logger.info("published %d ResourceSlices, generation %d", len(desired), generation)

    def _shows(self, slices: Collection[str], content: str) -> bool:
        """Return True if exactly these slices are there, with this content and one generation."""
        there = self._there.values()
        return (
            self._there.keys() == set(slices)
            and {each.content for each in there} <= {content}
            and len({each.generation for each in there}) <= 1
        )

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
        is_for_scheduler = any(ALLOCATOR in (d.get("attributes") or {}) for d in _shown(obj))
        self._there[metadata["name"]] = PublishedSlice(
            version, pool["generation"], content, is_for_scheduler
        )
        self._wake.set()

    def _tell_of_left_out(self, shown: int | None) -> None:
        """Log once which devices kube-scheduler is not offered, and why."""
        left_out = sorted(
            uuid for uuid, each in self._devices.inventory.capacities().items() if each.in_mig_mode
        )
        said = "" if shown is None else ", ".join(left_out)
        if said and said != self._said:
            logger.warning(
                "not offered to kube-scheduler, because in MIG mode: %s; switch MIG mode off, or "
                "take the label %s off the node", said, names.LABEL_ALLOCATOR,
            )  # fmt: skip
        self._said = said

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
