"""GPUDevice: one object per physical device, published by the agent of its node.

`spec` has the administrator's settings (the agent never writes them after creation), `status` what
the agent sees and, in `allocated` and `claims`, what the operator gave away: a view.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from vgpu_api import quantity
from vgpu_api.empties import no_items
from vgpu_api.later_version import without_unknown_values
from vgpu_api.v1alpha1.base import (
    ONE_OF_EACH_TYPE,
    ApiModel,
    Condition,
    ListMap,
    Metadata,
    Name,
    OwnerReference,
    Percent,
    Size,
    Word,
    one_for_equals,
)

DeviceMode = Literal["Shared", "Exclusive", "MIG"]
MigInstances = Literal["OnDemand", "Static"]
CorePolicy = Literal["Default", "Force", "Disable"]
Scaling = Annotated[str, Field(max_length=16, pattern=r"^[0-9]{1,3}(\.[0-9]{1,3})?$")]

_NODES_KEPT = 1 << 14
"""The devices of a node have equal owners, and mostly equal specs and conditions."""


class DeviceMetadata(Metadata):
    """The part of a device's metadata that we read."""

    owner_references: list[Annotated[OwnerReference, one_for_equals(kept=_NODES_KEPT)]] = Field(
        default_factory=no_items
    )


class GPUDeviceSpec(ApiModel):
    """What the administrator wants of this device."""

    node_name: Annotated[
        Word,
        Field(
            min_length=1,
            max_length=253,
            json_schema_extra={
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "is set at creation and never changes",
                        "reason": "FieldValueForbidden",
                    }
                ]
            },
        ),
    ]
    """The node that holds the device. Set when the object is created, immutable."""
    cordoned: bool = False
    """Give nothing new on this device; what runs stays."""
    mode: DeviceMode = "Shared"
    """How the device is divided."""
    slots: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Requests that the device serves at most. Default: the configuration's, 10."""
    memory: Size | None = None
    """The device's memory where its driver does not report it, as on GB10. Default: the
    configuration's `preConfiguredDeviceMemory`. A driver that reports it is believed instead."""
    memory_scaling: Scaling | None = None
    """Factor between the device's memory and what is given away, such as 1.5. Default 1."""
    core_scaling: Scaling | None = None
    """Factor between the device's compute and what is given away. Default 1."""
    core_policy: CorePolicy = "Default"
    """When compute shares are enforced: while others are active, always, or never."""
    mig_instances: MigInstances | None = None
    """In MIG mode: OnDemand makes instances for claims; Static gives those that an administrator
    made, and never makes or removes one. Default: by the configuration's `migStrategy`."""

    @property
    def memory_mib(self) -> int:
        """The memory that the administrator gave, in MiB; 0 without any."""
        return 0 if self.memory is None else quantity.read_mib(self.memory)


class Amount(ApiModel):
    """An amount of a device."""

    memory: Size = "0"
    """Memory, a quantity of bytes."""
    cores: int = 0
    """Compute, in percent of one device."""
    slots: int = 0
    """Requests."""

    @property
    def memory_mib(self) -> int:
        """The memory in MiB."""
        return quantity.read_mib(self.memory)


SharedAmount = Annotated[Amount, one_for_equals()]
_LINKS_KEPT = 1 << 16
"""Equal are those that lead to one device: 5,000 nodes with 8 devices have 40,000."""


class Link(ApiModel):
    """How the device reaches another device of its node."""

    peer: Annotated[str, Field(max_length=128)]
    """The other device's UUID."""
    type: Annotated[Word, Field(max_length=32)] = ""
    """NVLink, or the PCIe class of the path."""
    score: int = 0
    """How well the two are connected; more is better."""


class MigPlacement(ApiModel):
    """A place on a device where an instance may lie."""

    start: Annotated[int, Field(ge=0, le=63)] = 0
    """Its first memory slice."""
    size: Annotated[int, Field(ge=1, le=64)]
    """How many memory slices it takes."""


class MigProfile(ApiModel):
    """A kind of instance that a device can be cut into."""

    name: Annotated[str, Field(max_length=64)]
    """As the driver spells it, such as 1g.5gb."""
    memory: Size
    """Memory of an instance."""
    cores: Percent = 0
    """Its part of the device's compute, percent."""
    slices: Annotated[int, Field(ge=0, le=64)] = 0
    """Its compute slices."""
    placements: Annotated[list[MigPlacement], Field(max_length=64)] = Field(
        default_factory=no_items
    )
    """Where it may lie; no two instances share a slice."""

    @property
    def memory_mib(self) -> int:
        """The memory in MiB."""
        return quantity.read_mib(self.memory)


class MigStatus(ApiModel):
    """Multi-instance mode of the device."""

    enabled: bool = False
    """Whether the device is in MIG mode."""
    static: bool = False
    """Whether instances are given as an administrator made them: placements are where those lie."""
    profiles: Annotated[list[MigProfile], Field(max_length=64)] = Field(default_factory=no_items)
    """What the device may be cut into; nothing is given of a device that lists none."""
    instances: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=64)] = Field(
        default_factory=no_items
    )
    """The instances that exist, by UUID."""


class DevicePart(ApiModel):
    """A part that a vendor's plugin makes of a device."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """As the node registers it, such as 3g.24gb."""
    size: Annotated[int, Field(ge=1, le=1000)]
    """By which pods ask for it."""
    memory: Size
    """Its memory."""
    cores: Annotated[int, Field(ge=1, le=100)]
    """Its part of the device's compute, percent."""

    @property
    def memory_mib(self) -> int:
        """The memory in MiB."""
        return quantity.read_mib(self.memory)


_PARTS_KEPT = 1 << 12


class DeviceClaim(ApiModel):
    """One claim that holds a part of the device."""

    namespace: Name = ""
    """The claim's namespace."""
    name: Name = ""
    """The claim's name."""
    memory: Size = "0"
    """Memory it holds."""
    cores: int = 0
    """Compute it holds, percent."""


class GPUDeviceStatus(ApiModel):
    """What the agent sees, and what the operator gave away."""

    vendor: Annotated[Word, Field(max_length=64)] = ""
    """The maker, such as nvidia."""
    index: int | None = None
    """The device's number on its node."""
    uuid: Annotated[str, Field(max_length=128)] = ""
    """The device's own identity, as the driver spells it."""
    model: Annotated[Word, Field(max_length=128)] = ""
    """The model's name, as the driver spells it."""
    architecture: Annotated[Word, Field(max_length=64)] = ""
    """The chip's generation."""
    compute_capability: Annotated[Word, Field(max_length=16)] = ""
    """CUDA compute capability, such as 8.0."""
    driver_version: Annotated[Word, Field(max_length=64)] = ""
    """The driver's version."""
    runtime_version: Annotated[Word, Field(max_length=64)] = ""
    """The newest CUDA version that the driver serves."""
    pci_bus_id: Annotated[Word, Field(max_length=64)] = Field(default="", alias="pciBusID")
    """Where the device sits on the bus."""
    numa_node: int | None = None
    """The NUMA node it belongs to; absent when unknown."""
    links: Annotated[
        list[Annotated[Link, one_for_equals(kept=_LINKS_KEPT)]], Field(max_length=64)
    ] = Field(default_factory=no_items)
    """How it reaches the other devices."""
    capacity: SharedAmount | None = None
    """What the device has."""
    allocatable: SharedAmount | None = None
    """What may be given away: capacity times the scaling factors."""
    mig: Annotated[MigStatus, one_for_equals()] | None = None
    """Multi-instance mode."""
    parts: Annotated[
        list[Annotated[DevicePart, one_for_equals(kept=_PARTS_KEPT)]] | None, Field(max_length=64)
    ] = None
    """What it is given in, where a vendor's plugin divides it, from the smallest to the largest."""
    observed_time: Annotated[Word, Field(max_length=64)] = ""
    """When the agent looked last and something had changed (RFC 3339)."""
    allocated: SharedAmount | None = None
    """What claims hold: a view of the claims, written by the operator within five seconds."""
    claims: Annotated[
        list[DeviceClaim],
        Field(
            max_length=1000,
            json_schema_extra={"x-kubernetes-list-type": "map", ListMap: ["namespace", "name"]},
        ),
    ] = Field(default_factory=no_items)
    """The claims that hold it: a view, written by the operator."""
    conditions: Annotated[
        list[Annotated[Condition, one_for_equals(kept=_NODES_KEPT)]], ONE_OF_EACH_TYPE
    ]
    """Ready and Healthy."""


class GPUDevice(ApiModel):
    """A physical GPU of a node, and what of it is given away."""

    plural: ClassVar[str] = "gpudevices"
    api_version: Word = "vgpu.dev/v1alpha1"
    kind: Word = "GPUDevice"
    metadata: DeviceMetadata = Field(default_factory=DeviceMetadata)
    spec: Annotated[GPUDeviceSpec, one_for_equals(kept=_NODES_KEPT)]
    """What the administrator wants."""
    status: GPUDeviceStatus = Field(default_factory=lambda: GPUDeviceStatus(conditions=[]))
    """What is."""

    @classmethod
    def read(cls, raw: dict[str, Any]) -> GPUDevice:
        """The device as the API server sent it; cordoned, if it has values of a later version.

        What is on it stays, and nothing new is given of a device that is divided by rules which
        this version does not know.

        Raises:
            pydantic.ValidationError: it cannot be read.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            found = without_unknown_values(raw, error)
            if found is None:
                raise
            device = cls.model_validate(found[0])
            spec = device.spec.model_copy(update={"cordoned": True})
            return device.model_copy(update={"spec": spec})
