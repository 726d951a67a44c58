"""The fields of volumes and volume claims that affect where a pod can run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from vgpu_api.core.pod import NodeSelector
from vgpu_api.empties import no_entries, no_items
from vgpu_api.v1alpha1.base import ApiModel, Metadata, Word


class VolumeResources(ApiModel):
    """The requested size of a PersistentVolumeClaim."""

    requests: dict[str, str | int] = Field(default_factory=no_entries)


class PersistentVolumeClaimSpec(ApiModel):
    """The fields of a PersistentVolumeClaim's spec that we read."""

    access_modes: list[Word] = Field(default_factory=no_items)
    resources: VolumeResources = Field(default_factory=VolumeResources)
    storage_class_name: Word = ""
    volume_name: str = ""
    volume_mode: Word = "Filesystem"
    volume_attributes_class_name: Word = ""
    selector: dict[str, Any] | None = None


class StoragePhase(ApiModel):
    """The phase in the status of a claim or a volume."""

    phase: Word = ""


class PersistentVolumeClaim(ApiModel):
    """A PersistentVolumeClaim."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PersistentVolumeClaimSpec = Field(default_factory=PersistentVolumeClaimSpec)
    status: StoragePhase = Field(default_factory=StoragePhase)


class ClaimReference(ApiModel):
    """The claim for which a volume is reserved; without a UID, the next claim of that name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class CSISource(ApiModel):
    """A volume of a CSI driver."""

    driver: Word = ""
    volume_handle: str = ""


class VolumeNodeAffinity(ApiModel):
    """The nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiModel):
    """The fields of a PersistentVolume's spec that we read."""

    capacity: dict[str, str | int] = Field(default_factory=no_entries)
    access_modes: list[Word] = Field(default_factory=no_items)
    storage_class_name: Word = ""
    volume_mode: Word = "Filesystem"
    volume_attributes_class_name: Word = ""
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    aws_elastic_block_store: dict[str, Any] | None = Field(
        default=None, alias="awsElasticBlockStore"
    )
    gce_persistent_disk: dict[str, Any] | None = Field(default=None, alias="gcePersistentDisk")
    azure_disk: dict[str, Any] | None = None


class PersistentVolume(ApiModel):
    """A PersistentVolume."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PersistentVolumeSpec = Field(default_factory=PersistentVolumeSpec)
    status: StoragePhase = Field(default_factory=StoragePhase)


class TopologyLine(ApiModel):
    """A label that a node must have, with one of the values."""

    key: str = ""
    values: list[str] = Field(default_factory=no_items)


class TopologyTerm(ApiModel):
    """Requirements that must all be met; a term without any matches no node."""

    match_label_expressions: list[TopologyLine] = Field(default_factory=no_items)


class StorageClass(ApiModel):
    """A StorageClass."""

    metadata: Metadata = Field(default_factory=Metadata)
    provisioner: str = ""
    volume_binding_mode: Word = "Immediate"
    allowed_topologies: list[TopologyTerm] = Field(default_factory=no_items)


class AttachLimit(ApiModel):
    """The maximum number of a driver's volumes on a node; None means no limit."""

    count: int | None = None


class CSINodeDriver(ApiModel):
    """A CSI driver on a node."""

    name: Word = ""
    allocatable: AttachLimit | None = None


def _or_none(given: Any) -> Any:
    """Return a list in place of the null that Kubernetes writes for a node without drivers."""
    return no_items() if given is None else given


class CSINodeSpec(ApiModel):
    """The CSI drivers on a node."""

    drivers: Annotated[list[CSINodeDriver], BeforeValidator(_or_none)] = Field(
        default_factory=no_items
    )


class CSINode(ApiModel):
    """A report of the CSI drivers on the node of the same name."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: CSINodeSpec = Field(default_factory=CSINodeSpec)
