"""The agent's copy of the node's API objects: pods, claims and devices.

PreStart decides on this copy, so that containers start even while the API server is away. The
stores make no request themselves: reflectors feed pods and devices, and `claim_reads.py` reads
claims by name.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ValidationError

from vgpu_api.core.pod import Pod
from vgpu_api.resources import GPU_DEVICES, PODS
from vgpu_api.v1alpha1 import GPUDevice, Metadata, VGPUClaim
from vgpu_api.v1alpha1.base import version_of
from vgpu_api.vendors import kind_of
from vgpu_client.api import Api
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
    """Puts an event after each list: pods may have come and gone unseen before it."""

    def __init__(self, events: Events, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._events = events

    def listed(self, version: int, uids: Iterable[str]) -> None:
        """Put the event."""
        self._events.put(PodListRead())


class NodeView:
    """Pods bound to the node, claims allocated on it, and its devices.

    Args:
        node: The node's name.
        events: Where changes are put; None where nobody follows them.
    """

    def __init__(self, node: str, events: Events | None = None) -> None:
        self.node = node
        self.events = events = events or Events()
        self.pods: Store[Pod] = _Pods(events)
        self.claims: Store[VGPUClaim] = _Claims(events)
        self.devices: Store[GPUDevice] = _Devices(events)
        self._reflectors: list[Reflector[Pod] | Reflector[GPUDevice]] = []
        self._claims_listed = asyncio.Event()

    def reflectors(
        self, api: Api, pods: NodePods
    ) -> Sequence[Reflector[Pod] | Reflector[GPUDevice]]:
        """Return the reflectors that feed this view; the caller runs them."""
        self._reflectors = [
            _PodReflector(
                self.events,
                pods,
                PODS,
                self.pods,
                decode=Pod.model_validate,
                scope=self._scope("spec.nodeName"),
            ),
            Reflector(
                api,
                GPU_DEVICES,
                self.devices,
                decode=GPUDevice.read,
                scope=self._scope("spec.nodeName"),
            ),
        ]
        return self._reflectors

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

    def _scope(self, field: str) -> Scope:
        """Select objects that name this node, from the server's cache: there are many nodes."""
        return Scope(field_selector=f"{field}={self.node}", from_cache=True)

    @property
    def is_synced(self) -> bool:
        """True once every list has been read since the agent started."""
        synced = [self._claims_listed, *(reflector.synced for reflector in self._reflectors)]
        return bool(self._reflectors) and all(event.is_set() for event in synced)

    async def wait_synced(self) -> None:
        """Wait until `is_synced`."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._claims_listed.wait()

    def pod_with_uid(self, uid: str) -> Pod | None:
        """Return the pod with this UID if it is bound here and not gone."""
        return next((p for p in self.pods.objects.values() if p.metadata.uid == uid), None)

    def claim_with_uid(self, uid: str) -> VGPUClaim | None:
        """Return the claim with this UID if it is allocated here."""
        return next((c for c in self.claims.objects.values() if c.metadata.uid == uid), None)
