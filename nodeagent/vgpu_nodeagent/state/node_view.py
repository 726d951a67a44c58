"""The agent's copy of the node's API objects: pods, claims and devices.

PreStart decides on this copy, so that containers start even while the API server is away. The
stores make no request themselves: a reflector feeds pods, `claim_reads.py` and `device_reads.py`
read claims and devices by name.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ValidationError

from vgpu_api.core.pod import Pod
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import GPUDevice, Metadata, VGPUClaim
from vgpu_api.v1alpha1.base import version_of
from vgpu_api.vendors import kind_of
from vgpu_client.clock import Clock
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object
from vgpu_nodeagent.events import (
    ClaimChanged,
    DeviceChanged,
    Event,
    Events,
    PodChanged,
    PodListRead,
)
from vgpu_nodeagent.state.node_pods import NodePods

logger = logging.getLogger(__name__)


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=_HasMetadata)
Place = tuple[str, str]


class Store(ABC, Generic[T]):
    """Objects of one kind by (namespace, name); every change of one is an event."""

    kind: ClassVar[str]

    def __init__(self, events: Events) -> None:
        self._events = events
        self._objects: dict[Place, T] = {}

    @abstractmethod
    def _event(self, old: T | None, new: T | None) -> Event:
        """Return the event that reports a change."""

    @property
    def objects(self) -> Mapping[Place, T]:
        """Return the known objects."""
        return self._objects

    def added(self, obj: T) -> None:
        """Store a new object."""
        self._put(obj)

    def modified(self, obj: T) -> None:
        """Store a newer version."""
        self._put(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Drop an object that is gone, or no longer belongs to this node."""
        old = self._objects.pop((identity.namespace, identity.name), None)
        if old is not None:
            self._events.put(self._event(old, None))

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Drop an object that cannot be decoded any more: it must not grant anything."""
        logger.warning("%s %s/%s: %s", self.kind, identity.namespace, identity.name, error)
        self.deleted(identity)

    def _put(self, obj: T) -> None:
        place = (obj.metadata.namespace or "", obj.metadata.name)
        old = self._objects.get(place)
        self._objects[place] = obj
        self._events.put(self._event(old, obj))


class _Pods(Store[Pod]):
    kind = "pod"

    def _event(self, old: Pod | None, new: Pod | None) -> Event:
        return PodChanged(old, new)


class _Claims(Store[VGPUClaim]):
    kind = "claim"

    def _event(self, old: VGPUClaim | None, new: VGPUClaim | None) -> Event:
        return ClaimChanged(old, new)


class _Devices(Store[GPUDevice]):
    kind = "device"

    def _event(self, old: GPUDevice | None, new: GPUDevice | None) -> Event:
        return DeviceChanged(old, new)


def nvidias_part(claim: VGPUClaim) -> VGPUClaim:
    """Return the claim without devices of other vendors, which their own plugins serve.

    A claim without a device of NVIDIA counts as not allocated here.
    """
    requests, allocation = claim.spec.requests, claim.status.allocation
    others = {each.name for each in requests if kind_of(each.vendor) is not None}
    if not others or allocation is None:
        return claim
    kept = [each for each in allocation.devices if each.request not in others]
    if len(others) == len(requests):
        status = claim.status.model_copy(update={"allocation": None})
        return claim.model_copy(update={"status": status})
    own = [each for each in requests if each.name not in others]
    part = allocation.model_copy(update={"devices": kept})
    return claim.model_copy(
        update={
            "spec": claim.spec.model_copy(update={"requests": own}),
            "status": claim.status.model_copy(update={"allocation": part}),
        }
    )


class _PodReflector(Reflector[Pod]):
    """Puts an event after each list: pods may have come and gone unseen before it.

    Attributes:
        lost_at: The time at which the API server stopped answering, in monotonic seconds; None
            while it answers.
    """

    def __init__(self, events: Events, clock: Clock, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._events = events
        self._clock = clock
        self.lost_at: float | None = None

    def restarted(self, reason: str) -> None:
        """Note the time."""
        if self.lost_at is None:
            self.lost_at = self._clock.monotonic()

    def listed(self, version: int, uids: Iterable[str]) -> None:
        """Put the event."""
        self.lost_at = None
        self._events.put(PodListRead())


class NodeView:
    """Pods bound to the node, claims allocated on it, and its devices.

    Args:
        node: The node's name.
        events: Where changes are put; None where nobody follows them.
        clock: The time.
    """

    def __init__(
        self, node: str, events: Events | None = None, *, clock: Clock | None = None
    ) -> None:
        self.node = node
        self.events = events = events or Events()
        self.pods: Store[Pod] = _Pods(events)
        self.claims: Store[VGPUClaim] = _Claims(events)
        self.devices: Store[GPUDevice] = _Devices(events)
        self._clock = clock or Clock()
        self._pods: _PodReflector | None = None
        self._claims_listed = asyncio.Event()
        self._devices_listed = asyncio.Event()

    def reflector(self, pods: NodePods) -> Reflector[Pod]:
        """Return the reflector that feeds the view's pods; the caller runs it.

        It lists from the server's cache, because there are many nodes.
        """
        self._pods = _PodReflector(
            self.events,
            self._clock,
            pods,
            PODS,
            self.pods,
            decode=Pod.model_validate,
            scope=Scope(field_selector=f"spec.nodeName={self.node}", from_cache=True),
        )
        return self._pods

    @property
    def lost_s(self) -> float:
        """Return for how many seconds the API server has not answered. For any thread."""
        lost_at = None if self._pods is None else self._pods.lost_at
        return 0.0 if lost_at is None else self._clock.monotonic() - lost_at

    def take_claims(self, items: Iterable[Object], version: int) -> None:
        """Take a list of all claims allocated here, as of that version of the kind."""
        listed = {self.take_claim(raw) for raw in items}
        for place, claim in list(self.claims.objects.items()):
            if place not in listed and version_of(claim.metadata.resource_version) <= version:
                self.drop_claim(place)
        self._claims_listed.set()

    def take_claim(self, raw: Object) -> Place:
        """Take a claim as it was read or written; an older version than the known one is ignored.

        Returns:
            The claim's place.
        """
        metadata = Metadata.model_validate(raw["metadata"])
        place = (metadata.namespace or "", metadata.name)
        known = self.claims.objects.get(place)
        if known is not None and version_of(known.metadata.resource_version) >= version_of(
            metadata.resource_version
        ):
            return place
        try:
            claim = nvidias_part(VGPUClaim.read(raw))
        except ValidationError as error:
            self.claims.unreadable(ObjectIdentity(*place, metadata.uid), raw, error)
            return place
        allocation = claim.status.allocation
        if allocation is None or allocation.node_name != self.node:
            self.drop_claim(place)
        else:
            self.claims.modified(claim)
        return place

    def drop_claim(self, place: Place) -> None:
        """Drop a claim that is gone, or no longer allocated here."""
        self.claims.deleted(ObjectIdentity(*place, ""))

    def take_devices(self, items: Iterable[Object], version: int) -> None:
        """Take a list of all devices of this node, as of that version of the kind."""
        listed = {self.take_device(raw) for raw in items}
        for (_, name), device in list(self.devices.objects.items()):
            if name not in listed and version_of(device.metadata.resource_version) <= version:
                self.drop_device(name)
        self._devices_listed.set()

    def take_device(self, raw: Object) -> str:
        """Take a device as it was read or written; an older version than the known one is ignored.

        Returns:
            The device's name.
        """
        metadata = Metadata.model_validate(raw["metadata"])
        name = metadata.name
        known = self.devices.objects.get(("", name))
        if known is not None and version_of(known.metadata.resource_version) >= version_of(
            metadata.resource_version
        ):
            return name
        try:
            device = GPUDevice.read(raw)
        except ValidationError as error:
            self.devices.unreadable(ObjectIdentity("", name, metadata.uid), raw, error)
            return name
        if device.spec.node_name == self.node:
            self.devices.modified(device)
        else:
            self.drop_device(name)
        return name

    def drop_device(self, name: str) -> None:
        """Drop a device whose object is gone, or belongs to another node."""
        self.devices.deleted(ObjectIdentity("", name, ""))

    @property
    def is_synced(self) -> bool:
        """True once every list has been read since the agent started."""
        if self._pods is None:
            return False
        listed = (self._pods.synced, self._claims_listed, self._devices_listed)
        return all(event.is_set() for event in listed)

    async def wait_synced(self) -> None:
        """Wait until `is_synced`."""
        assert self._pods is not None
        await self._pods.synced.wait()
        await self._claims_listed.wait()
        await self._devices_listed.wait()

    def pod_with_uid(self, uid: str) -> Pod | None:
        """Return the pod with this UID if it is bound here and not gone."""
        return next((p for p in self.pods.objects.values() if p.metadata.uid == uid), None)

    def claim_with_uid(self, uid: str) -> VGPUClaim | None:
        """Return the claim with this UID if it is allocated here."""
        return next((c for c in self.claims.objects.values() if c.metadata.uid == uid), None)
