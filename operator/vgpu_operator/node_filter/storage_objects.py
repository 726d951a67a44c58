"""Volumes, volume claims and storage classes, reduced to the fields that affect a pod's node.

A cluster has many more of these than GPU pods, so the full objects are not stored. Annotations and
labels are Kubernetes' own (Well-Known Labels, Annotations and Taints).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from vgpu_api.core import Pod
from vgpu_api.core.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from vgpu_api.errors import BadInput, QuantityError
from vgpu_api.quantity import parse
from vgpu_api.v1alpha1.base import Metadata
from vgpu_operator.node_filter.node_rules import Requirement, terms_of
from vgpu_operator.node_filter.pod_affinity import Selector

GA_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""The former names of the labels for zones and regions, and the names that replaced them."""
ZONE_LABELS = (*GA_LABELS, *GA_LABELS.values())
_SEVERAL_ZONES = "__"
_STORAGE = "storage"
_ONCE = "ReadWriteOncePod"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_CLASS = "volume.beta.kubernetes.io/storage-class"
_ANY = Selector()
_MIGRATED = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
}
"""The former in-tree volume plugins, and the CSI drivers that serve their volumes now."""


class VolumeClaimKey(NamedTuple):
    """The namespace and name of a PersistentVolumeClaim."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """The request of an unbound claim. Claims with equal requests can use the same volumes.

    Attributes:
        class_name: The StorageClass; empty for volumes without a class.
        size: The least size in bytes.
        access: The access modes, all of which the volume must have.
        mode: The volume mode.
        attributes_class: The VolumeAttributesClass; empty for none.
        selector: The label selector for volumes.
    """

    class_name: str = ""
    size: int = 0
    access: frozenset[str] = frozenset()
    mode: str = "Filesystem"
    attributes_class: str = ""
    selector: Selector = _ANY


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim.

    Attributes:
        controller: The UID of its controller, which is the pod for a generic ephemeral volume.
        is_going: True if it is being deleted.
        is_lost: True if its volume is gone.
        volume: The name of the volume to which it is bound, or which it requests.
        is_bound: True if it is bound to that volume.
        selected_node: The node for which its volume is being provisioned; empty if none.
        is_once: True if only one pod at a time may use it (`ReadWriteOncePod`).
        request: The request, or None if the claim is bound.
    """

    key: VolumeClaimKey
    uid: str
    controller: str
    is_going: bool
    is_lost: bool
    volume: str
    is_bound: bool
    selected_node: str
    is_once: bool
    request: VolumeRequest | None

    @classmethod
    def of(cls, claim: PersistentVolumeClaim) -> VolumeClaim:
        """Reduce a claim from the API.

        Raises:
            BadInput: The size is invalid.
        """
        metadata, spec = claim.metadata, claim.spec
        is_bound = bool(spec.volume_name) and _BOUND in metadata.annotations
        request = VolumeRequest(
            class_name=_class_of(metadata, spec.storage_class_name),
            size=_size_of(spec.resources.requests, "spec.resources.requests"),
            access=frozenset(spec.access_modes),
            mode=spec.volume_mode,
            attributes_class=spec.volume_attributes_class_name,
            selector=_ANY if spec.selector is None else Selector.of(spec.selector),
        )
        return cls(
            VolumeClaimKey(metadata.namespace or "", metadata.name),
            metadata.uid,
            next((owner.uid for owner in metadata.owner_references if owner.controller), ""),
            is_going=metadata.deletion_timestamp is not None,
            is_lost=claim.status.phase == "Lost",
            volume=spec.volume_name,
            is_bound=is_bound,
            selected_node=metadata.annotations.get(_SELECTED_NODE, ""),
            is_once=_ONCE in spec.access_modes,
            request=None if is_bound else request,
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume.

    Attributes:
        size: The capacity in bytes.
        is_free: True if any claim that it serves may be bound to it.
        is_going: True if it is being deleted.
        claim: The claim that it is reserved for or bound to, if any.
        claim_uid: The UID of that claim; empty if any claim with the name will do.
        labels: The labels, if it is free.
        affinity: The terms of its node affinity; None if all nodes can use it.
        zones: The allowed values of a node's labels for zone and region.
        driver: The CSI driver; empty if there is none.
        handle: The driver's name for the volume.
    """

    name: str
    class_name: str
    size: int
    access: frozenset[str]
    mode: str
    attributes_class: str
    is_free: bool
    is_going: bool
    claim: VolumeClaimKey | None
    claim_uid: str
    labels: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[Requirement, ...], ...] | None
    zones: tuple[tuple[str, frozenset[str]], ...]
    driver: str
    handle: str

    @classmethod
    def of(cls, volume: PersistentVolume) -> Volume:
        """Reduce a volume from the API.

        Raises:
            BadInput: The capacity is invalid, or the node affinity has an operator or values that
                Kubernetes rejects.
        """
        metadata, spec, reference = volume.metadata, volume.spec, volume.spec.claim_ref
        required = None if spec.node_affinity is None else spec.node_affinity.required
        is_going = metadata.deletion_timestamp is not None
        claim = None if reference is None else VolumeClaimKey(reference.namespace, reference.name)
        is_free = claim is None and volume.status.phase == "Available" and not is_going
        driver, handle = _attached_as(volume)
        return cls(
            metadata.name,
            _class_of(metadata, spec.storage_class_name),
            size=_size_of(spec.capacity, "spec.capacity"),
            access=frozenset(spec.access_modes),
            mode=spec.volume_mode,
            attributes_class=spec.volume_attributes_class_name,
            is_free=is_free,
            is_going=is_going,
            claim=claim,
            claim_uid="" if reference is None else reference.uid,
            labels=tuple(sorted(metadata.labels.items())) if is_free else (),
            affinity=None if required is None else terms_of(required, "spec.nodeAffinity.required"),
            zones=tuple(
                (key, frozenset(metadata.labels[key].split(_SEVERAL_ZONES)))
                for key in ZONE_LABELS
                if key in metadata.labels
            ),
            driver=driver,
            handle=handle,
        )

    def is_for(self, claim: VolumeClaim) -> bool:
        """Return True if the volume is reserved for the claim."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)

    def serves(self, request: VolumeRequest) -> bool:
        """Return True if a claim may be bound to the volume, unless another claim has it.

        A volume that is reserved for a claim need not match its selector and access modes.
        """
        fits = (
            self.size >= request.size
            and self.mode == request.mode
            and self.class_name == request.class_name
            and self.attributes_class == request.attributes_class
            and not self.is_going
        )
        if not fits or self.claim is not None:
            return fits
        return request.access <= self.access and request.selector.matches(dict(self.labels))


@dataclass(frozen=True, slots=True)
class VolumeClass:
    """A StorageClass.

    Attributes:
        driver: The driver that provisions its volumes; empty if it has no provisioner.
        waits: True if volumes are bound or provisioned for the pod's node (`WaitForFirstConsumer`).
        topologies: Terms about nodes' labels, one of which must match to provision a volume; empty
            if there is no restriction.
    """

    name: str
    driver: str
    waits: bool
    topologies: tuple[tuple[Requirement, ...], ...]

    @classmethod
    def of(cls, storage_class: StorageClass) -> VolumeClass:
        """Reduce a storage class from the API."""
        provisioner = storage_class.provisioner
        return cls(
            storage_class.metadata.name,
            "" if provisioner == _NO_PROVISIONER else _MIGRATED.get(provisioner, provisioner),
            storage_class.volume_binding_mode == "WaitForFirstConsumer",
            tuple(
                tuple(
                    Requirement(line.key, "In", tuple(line.values))
                    for line in term.match_label_expressions
                )
                for term in storage_class.allowed_topologies
            ),
        )


@dataclass(frozen=True, slots=True)
class NodeDrivers:
    """A CSINode: by driver, the most volumes that the node can attach, if limited."""

    name: str
    limits: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, node: CSINode) -> NodeDrivers:
        """Reduce a CSINode from the API."""
        return cls(
            node.metadata.name,
            tuple(
                (driver.name, driver.allocatable.count)
                for driver in node.spec.drivers
                if driver.allocatable is not None and driver.allocatable.count is not None
            ),
        )


StorageObject: TypeAlias = VolumeClaim | Volume | VolumeClass | NodeDrivers


def volume_claims_of(pod: Pod) -> tuple[VolumeClaimKey, ...]:
    """Return the claims of a pod's volumes in order, without duplicates."""
    return tuple(dict.fromkeys(key for key, _ in claims_of_volumes(pod)))


def claims_of_volumes(pod: Pod) -> list[tuple[VolumeClaimKey, bool]]:
    """Return the claim of each volume, and True if it is for an ephemeral volume."""
    namespace, found = pod.metadata.namespace or "", []
    for volume in pod.spec.volumes:
        named = volume.get("persistentVolumeClaim")
        if named:
            found.append((VolumeClaimKey(namespace, str(named.get("claimName", ""))), False))
        elif volume.get("ephemeral"):
            name = f"{pod.metadata.name}-{volume.get('name', '')}"
            found.append((VolumeClaimKey(namespace, name), True))
    return found


def _size_of(amounts: Mapping[str, str | int], field: str) -> int:
    """Return the amount of storage in bytes."""
    given = amounts.get(_STORAGE, 0)
    try:
        return math.ceil(parse(given))
    except QuantityError as error:
        named = f"{field}[{_STORAGE}]"
        raise BadInput(field=named, value=given, detail=error.detail) from error


def _class_of(metadata: Metadata, named: str) -> str:
    """Return an object's class: its old annotation, which still takes precedence, or `named`."""
    return metadata.annotations.get(_CLASS, named)


def _attached_as(volume: PersistentVolume) -> tuple[str, str]:
    """Return the CSI driver that attaches a volume, and the driver's handle of the volume."""
    spec = volume.spec
    if spec.csi is not None:
        return spec.csi.driver, spec.csi.volume_handle
    for plugin, source in zip(
        _MIGRATED,
        (spec.aws_elastic_block_store, spec.gce_persistent_disk, spec.azure_disk),
        strict=True,
    ):
        if source is not None:
            return _MIGRATED[plugin], volume.metadata.name
    return "", ""
