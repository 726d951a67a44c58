"""Runs a reflector for each kind of object and turns changes into events for the engine.

The tables below list every kind on which decisions depend. A replica stands for election only after
all of them have been listed (`leader/leadership.py`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from pydantic import ValidationError

from vgpu_api.config import ClusterConfig
from vgpu_api.core import (
    Node,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    PriorityClass,
    ResourceClaim,
    ResourceQuota,
)
from vgpu_api.core.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from vgpu_api.errors import BadInput
from vgpu_api.field_errors import describe
from vgpu_api.resources import (
    CSI_NODES,
    GPU_DEVICES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    STORAGE_CLASSES,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_client.reads import Listing
from vgpu_client.reflector import ObjectIdentity, Reflector, Source
from vgpu_client.transport import Object
from vgpu_operator.dialects.pod_groups import POD_GROUP_APIS, POD_GROUP_READERS, GroupKind
from vgpu_operator.engine import events
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.pod_reading import PodReader
from vgpu_operator.engine.resource_claims.known import ResourceKey
from vgpu_operator.engine.slices import Slice, Slices
from vgpu_operator.errors import NotServed
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.metrics import WATCH_RESTARTS
from vgpu_operator.node_filter import StorageObject
from vgpu_operator.node_filter.storage_objects import NodeDrivers, Volume, VolumeClaim, VolumeClass

logger = logging.getLogger(__name__)

T = TypeVar("T")
Observe = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class _Kind(Generic[T]):
    """The functions that turn the objects of a kind into events.

    Attributes:
        resource: The kind.
        decode: Decodes an object; may raise any exception if the object is invalid.
        observed: Returns the event for an added or updated object.
        deleted: Returns the event for a deleted object.
        unreadable: Returns the event for a version that `decode` refused, with the reason. If this
            is None, an invalid object counts as deleted, which is right for kinds that hold no
            devices.
    """

    resource: Resource
    decode: Callable[[Object], T]
    observed: Callable[[T], Event]
    deleted: Callable[[ObjectIdentity], Event]
    unreadable: Callable[[ObjectIdentity, Object, str], Event] | None = None


_KINDS: tuple[_Kind[Any], ...] = (
    # Nodes, devices and quotas come first, so that claims find their devices and limits.
    _Kind(
        NODES,
        Node.model_validate,
        events.NodeObserved,
        lambda gone: events.NodeDeleted(gone.name),
        lambda there, _raw, _why: events.NodeUnreadable(there.name, there.uid),
    ),
    _Kind(
        GPU_DEVICES,
        GPUDevice.read,
        events.DeviceObserved,
        lambda gone: events.DeviceDeleted(gone.name),
    ),
    _Kind(
        RESOURCE_QUOTAS,
        ResourceQuota.model_validate,
        events.QuotaObserved,
        lambda gone: events.QuotaDeleted(gone.namespace, gone.name),
    ),
    _Kind(
        VGPU_CLAIMS,
        VGPUClaim.read,
        events.ClaimObserved,
        lambda gone: events.ClaimDeleted(ClaimKey(gone.namespace, gone.name), gone.uid),
        lambda _there, raw, _why: events.ClaimUnreadable(raw),
    ),
    _Kind(
        PODS,
        Pod.model_validate,
        events.PodObserved,
        lambda gone: events.PodDeleted(gone.uid, was_seen=gone.was_seen),
    ),
)


def _storage(
    resource: Resource, kind: type[StorageObject], decode: Callable[[Object], StorageObject]
) -> _Kind[StorageObject]:
    return _Kind(
        resource,
        decode,
        events.StorageObserved,
        lambda gone: events.StorageDeleted(kind, gone.namespace, gone.name),
        lambda there, _raw, why: events.StorageUnreadable(kind, there.namespace, there.name, why),
    )


_STORAGE_KINDS: tuple[_Kind[Any], ...] = (
    _storage(
        STORAGE_CLASSES,
        VolumeClass,
        lambda raw: VolumeClass.of(StorageClass.model_validate(raw)),
    ),
    _storage(CSI_NODES, NodeDrivers, lambda raw: NodeDrivers.of(CSINode.model_validate(raw))),
    _storage(
        PERSISTENT_VOLUMES, Volume, lambda raw: Volume.of(PersistentVolume.model_validate(raw))
    ),
    _storage(
        PERSISTENT_VOLUME_CLAIMS,
        VolumeClaim,
        lambda raw: VolumeClaim.of(PersistentVolumeClaim.model_validate(raw)),
    ),
)


_BUDGETS: _Kind[Any] = _Kind(
    POD_DISRUPTION_BUDGETS,
    PodDisruptionBudget.model_validate,
    events.BudgetObserved,
    lambda gone: events.BudgetDeleted(gone.namespace, gone.name),
)


_RESOURCE_CLAIMS: _Kind[Any] = _Kind(
    RESOURCE_CLAIMS,
    ResourceClaim.model_validate,
    events.ResourceClaimObserved,
    lambda gone: events.ResourceClaimDeleted(ResourceKey(gone.namespace, gone.name), gone.uid),
)


DECISIVE = tuple(kind.resource for kind in _KINDS)
"""The kinds on which decisions depend in every mode."""
STORAGE = tuple(kind.resource for kind in _STORAGE_KINDS)
"""The kinds on which decisions depend in the modes Gate and Claims only."""


def kinds_of_mode(config: ClusterConfig) -> tuple[Resource, ...]:
    """Return the kinds on which decisions depend in the configured mode besides `DECISIVE`."""
    scheduling = config.scheduling
    claims = (RESOURCE_CLAIMS,) if scheduling.mode == "Claims" else ()
    return (*claims, *(STORAGE if scheduling.decides_first else ()))


def informers(api: Source, observe: Observe, config: ClusterConfig) -> list[Reflector[Any]]:
    """Return the informers that are needed in every mode.

    Args:
        api: The API server to list and watch.
        observe: Receives the events.
        config: The configuration, which defines which pods request devices.
    """
    pods = PodReader(config, has_room=config.scheduling.decides_first)
    kinds = (replace(k, decode=pods.read) if k.resource is PODS else k for k in _KINDS)
    return [_Informer(api, _Handler(kind, observe)) for kind in kinds]


def more_informers(
    api: Source, observe: Observe, resources: Collection[Resource]
) -> list[Reflector[Any]]:
    """Return informers of kinds that only some configurations need.

    Volumes, their claims, classes and drivers (`STORAGE`) do not matter in Extender mode: there
    kube-scheduler has checked volumes before it calls us, and the operator has no right to read
    them. Disruption budgets matter where preemption is enabled.
    """
    known = (_RESOURCE_CLAIMS, *_STORAGE_KINDS, _BUDGETS)
    kinds = (kind for kind in known if kind.resource in resources)
    return [_Informer(api, _Handler(kind, observe)) for kind in kinds]


_GROUPS_AGAIN_S = 60.0
"""The time between two checks for an API server that serves PodGroups."""


class EventReceiver(Protocol):
    """The part of the engine that receives events."""

    def observe(self, event: Event) -> None:
        """Queue an event."""


async def follow_pod_groups(
    api: Source, receiver: EventReceiver, clock: Clock, kind: GroupKind = GroupKind.KUBERNETES
) -> NoReturn:
    """Watch the PodGroups of an API in the version that the API server serves, if it serves any.

    Kubernetes' own is off by default up to 1.37, and an upgrade of the control plane may change the
    version; the others come and go with their schedulers. So nothing waits for this informer, and
    it checks again from time to time.
    """
    while True:
        for resource in POD_GROUP_APIS[kind]:
            informer = _Informer(
                _WhileServed(api), _Handler(_pod_groups(resource), receiver.observe)
            )
            try:
                await informer.run()
            except NotServed:
                if informer.synced.is_set():
                    receiver.observe(events.PodGroupsNotServed(kind))
        receiver.observe(events.PodGroupsNotServed(kind))
        await clock.sleep(_GROUPS_AGAIN_S * (0.5 + clock.jitter()))


def _pod_groups(resource: Resource) -> _Kind[PodGroup]:
    kind, read = POD_GROUP_READERS[resource.api_version]
    return _Kind(
        resource,
        read,
        lambda group: events.PodGroupObserved(group, kind),
        lambda gone: events.PodGroupDeleted(GroupKey(gone.namespace, gone.name, kind)),
    )


@dataclass(frozen=True, slots=True)
class _WhileServed:
    """A source that raises `NotServed`, which ends a reflector, if the kind is not served."""

    api: Source

    async def list(self, resource: Resource, **options: Any) -> Listing:
        try:
            return await self.api.list(resource, **options)
        except NotFound as error:
            raise NotServed(f"{resource.api_version} {resource.plural}") from error

    def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[Object, None]:
        return self.api.watch(resource, **options)


async def current_events(api: Api, kinds: Collection[Resource] = DECISIVE) -> list[Event]:
    """Return all current objects as events, without watching, for a command that exits.

    Args:
        api: The API server to list.
        kinds: The kinds to read. Events come in the order of `DECISIVE`, then `STORAGE`; disruption
            budgets and PodGroups come last.

    Raises:
        ClientError: The API server is not reachable, or refuses a kind.
    """
    found: list[Event] = []
    groups = [_pod_groups(each) for versions in POD_GROUP_APIS.values() for each in versions]
    for kind in (*_KINDS, _RESOURCE_CLAIMS, *_STORAGE_KINDS, _BUDGETS, *groups):
        if kind.resource not in kinds:
            continue
        handler = _Handler(kind, found.append)
        for raw in (await api.list(kind.resource)).items:
            try:
                handler.added(kind.decode(raw))
            except (ValidationError, BadInput) as error:
                metadata = raw["metadata"]
                identity = ObjectIdentity(
                    metadata.get("namespace", ""), metadata["name"], metadata["uid"]
                )
                handler.unreadable(identity, raw, error)
    return found


async def priority_classes(api: Source) -> list[PriorityClass]:
    """Return the PriorityClasses, without those that cannot be read, for questions about new pods.

    Raises:
        ClientError: The API server is not reachable, or refuses the list.
    """
    found = []
    for raw in (await api.list(PRIORITY_CLASSES)).items:
        with suppress(ValidationError):
            found.append(PriorityClass.model_validate(raw))
    return found


class _Informer(Reflector[Any]):
    """A reflector that also reports complete lists, and counts restarts of its watch."""

    def __init__(self, api: Source, handler: _Handler[Any]) -> None:
        kind = handler.kind
        super().__init__(api, kind.resource, handler, decode=kind.decode)
        self._observe = handler.observe
        self._had_gap = False

    def restarted(self, reason: str) -> None:
        self._had_gap = True
        WATCH_RESTARTS.labels(kind=self.resource.kind, reason=reason).inc()

    def listed(self, version: int, uids: Iterable[str]) -> None:
        had_gap, self._had_gap = self._had_gap, False
        if self.resource is PODS:
            self._observe(events.PodsListed(version, frozenset(uids), after_gap=had_gap))
        elif self.resource is POD_DISRUPTION_BUDGETS:
            self._observe(events.BudgetsListed())
        elif self.resource.kind == PodGroup.__name__:
            self._observe(events.PodGroupsListed(GroupKind(self.resource.group)))


@dataclass(frozen=True, slots=True)
class InSlices:
    """An `Api` whose watches let calls go first between two slices of events; see `Slices`."""

    api: Api
    slices: Slices

    async def list(self, resource: Resource, **options: Any) -> Listing:
        """Same as `Api.list`."""
        return await self.api.list(resource, **options)

    async def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[Object, None]:
        """See `Api.watch`. Events are delivered in slices."""
        slice_ = Slice(self.slices)
        async with aclosing(self.api.watch(resource, **options)) as events:
            async for event in events:
                yield event
                if slice_.is_over():
                    await slice_.next()


@dataclass(frozen=True, slots=True)
class _Handler(Generic[T]):
    """A reflector's handler that turns changes into events."""

    kind: _Kind[T]
    observe: Observe

    def added(self, obj: T) -> None:
        self.observe(self.kind.observed(obj))

    def modified(self, obj: T) -> None:
        self.observe(self.kind.observed(obj))

    def deleted(self, identity: ObjectIdentity) -> None:
        self.observe(self.kind.deleted(identity))

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        logger.error("%s %s cannot be read: %s", self.kind.resource.kind, identity.name, error)
        if self.kind.unreadable is not None:
            why = describe(error) if isinstance(error, ValidationError) else str(error)
            self.observe(self.kind.unreadable(identity, raw, why))
        else:
            self.observe(self.kind.deleted(identity))
