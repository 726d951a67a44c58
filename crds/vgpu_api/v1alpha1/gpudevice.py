"""GPUDevice: one object per physical device, published by the agent of its node.

`spec` has the administrator's settings, which the agent never writes after creation. `status` has
the agent's observations. `allocated` and `claims` in it are written by the operator as a view of
the claims.
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
"""Cache size for values that the devices of a node share: owners, and mostly specs, conditions."""


class DeviceMetadata(Metadata):
    """The metadata of a device that we read."""

    owner_references: list[Annotated[OwnerReference, one_for_equals(kept=_NODES_KEPT)]] = Field(
        default_factory=no_items
    )


class GPUDeviceSpec(ApiModel):
    """The administrator's settings for this device."""

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
    """The node that holds the device. Set at creation, immutable."""
    cordoned: bool = False
    """Allocate nothing new on this device. Running pods stay."""
    mode: DeviceMode = "Shared"
    """The way in which the device is divided."""
    slots: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The most requests that the device serves at once. Default: the configuration's, 10."""
    memory: Size | None = None
    """The device's memory, for devices whose driver does not report it, such as GB10. Default: the
    configuration's `preConfiguredDeviceMemory`. If the driver reports a size, that size is used."""
    memory_scaling: Scaling | None = None
    """Factor from the device's memory to its allocatable memory, such as 1.5. Default 1."""
    core_scaling: Scaling | None = None
    """Factor from the device's compute to its allocatable compute. Default 1."""
    core_policy: CorePolicy = "Default"
    """The enforcement of compute limits: only while others are active, always, or never."""
    mig_instances: MigInstances | None = None
    """In MIG mode: OnDemand creates instances for claims. Static uses the instances that an
    administrator created and never creates or deletes one. Default: the configuration's
    `migStrategy`."""

    @property
    def memory_mib(self) -> int:
        """Return the memory set by the administrator, in MiB; 0 if none is set."""
        return 0 if self.memory is None else quantity.read_mib(self.memory)


class Amount(ApiModel):
    """An amount of a device's memory, compute and slots."""

    memory: Size = "0"
    """Memory, a quantity of bytes."""
    cores: int = 0
    """Compute, in percent of one device."""
    slots: int = 0
    """Slots: each serves one request."""

    @property
    def memory_mib(self) -> int:
        """Return the memory in MiB."""
        return quantity.read_mib(self.memory)


SharedAmount = Annotated[Amount, one_for_equals()]
_LINKS_KEPT = 1 << 16
"""Cache size. Links to the same device are equal: 5,000 nodes with 8 devices have 40,000."""


class Link(ApiModel):
    """The connection between the device and another device of its node."""

    peer: Annotated[str, Field(max_length=128)]
    """The other device's UUID."""
    type: Annotated[Word, Field(max_length=32)] = ""
    """NVLink, or the PCIe class of the path."""
    score: int = 0
    """Quality of the connection; higher is better."""


class MigPlacement(ApiModel):
    """A position on a device where an instance can be placed."""

    start: Annotated[int, Field(ge=0, le=63)] = 0
    """Its first memory slice."""
    size: Annotated[int, Field(ge=1, le=64)]
    """The number of memory slices."""


class MigProfile(ApiModel):
    """A kind of MIG instance that the device supports."""

    name: Annotated[str, Field(max_length=64)]
    """The profile's name, as the driver spells it, such as 1g.5gb."""
    memory: Size
    """The memory of an instance."""
    cores: Percent = 0
    """The instance's share of the device's compute, in percent."""
    slices: Annotated[int, Field(ge=0, le=64)] = 0
    """The instance's compute slices."""
    placements: Annotated[list[MigPlacement], Field(max_length=64)] = Field(
        default_factory=no_items
    )
    """The positions where an instance can be placed; no two instances share a slice."""

    @property
    def memory_mib(self) -> int:
        """Return the memory in MiB."""
        return quantity.read_mib(self.memory)


class MigStatus(ApiModel):
    """The device's multi-instance (MIG) state."""

    enabled: bool = False
    """True if the device is in MIG mode."""
    static: bool = False
    """True if an administrator creates the instances; placements are where those instances are."""
    profiles: Annotated[list[MigProfile], Field(max_length=64)] = Field(default_factory=no_items)
    """The profiles that the device supports. A device that lists none serves no request."""
    instances: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=64)] = Field(
        default_factory=no_items
    )
    """The instances that exist, by UUID."""


class DevicePart(ApiModel):
    """A part that a vendor's device plugin makes of a device."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The part's name, as the node registers it, such as 3g.24gb."""
    size: Annotated[int, Field(ge=1, le=1000)]
    """The size by which pods ask for it."""
    memory: Size
    """The part's memory."""
    cores: Annotated[int, Field(ge=1, le=100)]
    """The part's share of the device's compute, in percent."""

    @property
    def memory_mib(self) -> int:
        """Return the memory in MiB."""
        return quantity.read_mib(self.memory)


_PARTS_KEPT = 1 << 12


class DeviceClaim(ApiModel):
    """A claim that holds a part of the device."""

    namespace: Name = ""
    """The claim's namespace."""
    name: Name = ""
    """The claim's name."""
    memory: Size = "0"
    """The memory that the claim holds."""
    cores: int = 0
    """The compute that the claim holds, in percent."""


class GPUDeviceStatus(ApiModel):
    """The device's observed state, and what is allocated on it."""

    vendor: Annotated[Word, Field(max_length=64)] = ""
    """The vendor, such as nvidia."""
    index: int | None = None
    """The device's number on its node."""
    uuid: Annotated[str, Field(max_length=128)] = ""
    """The device's UUID, as the driver spells it."""
    model: Annotated[Word, Field(max_length=128)] = ""
    """The model name, as the driver spells it."""
    architecture: Annotated[Word, Field(max_length=64)] = ""
    """The GPU architecture."""
    compute_capability: Annotated[Word, Field(max_length=16)] = ""
    """CUDA compute capability, such as 8.0."""
    driver_version: Annotated[Word, Field(max_length=64)] = ""
    """The driver's version."""
    runtime_version: Annotated[Word, Field(max_length=64)] = ""
    """The newest CUDA version that the driver supports."""
    pci_bus_id: Annotated[Word, Field(max_length=64)] = Field(default="", alias="pciBusID")
    """The device's PCI bus address."""
    numa_node: int | None = None
    """The device's NUMA node; absent if unknown."""
    links: Annotated[
        list[Annotated[Link, one_for_equals(kept=_LINKS_KEPT)]], Field(max_length=64)
    ] = Field(default_factory=no_items)
    """Connections to the other devices of the node."""
    capacity: SharedAmount | None = None
    """The device's physical memory, compute and slots."""
    allocatable: SharedAmount | None = None
    """The amounts that can be allocated: capacity times the scaling factors."""
    mig: Annotated[MigStatus, one_for_equals()] | None = None
    """The device's multi-instance (MIG) state."""
    parts: Annotated[
        list[Annotated[DevicePart, one_for_equals(kept=_PARTS_KEPT)]] | None, Field(max_length=64)
    ] = None
    """The parts that a vendor's plugin makes of the device, from the smallest to the largest."""
    observed_time: Annotated[Word, Field(max_length=64)] = ""
    """The last time the agent observed a change (RFC 3339)."""
    allocated: SharedAmount | None = None
    """The amounts that claims hold. Derived from the claims by the operator within five seconds."""
    claims: Annotated[
        list[DeviceClaim],
        Field(
            max_length=1000,
            json_schema_extra={"x-kubernetes-list-type": "map", ListMap: ["namespace", "name"]},
        ),
    ] = Field(default_factory=no_items)
    """The claims that hold a part of the device. Derived from the claims by the operator."""
    conditions: Annotated[
        list[Annotated[Condition, one_for_equals(kept=_NODES_KEPT)]], ONE_OF_EACH_TYPE
    ]
    """Ready, Healthy and other conditions."""


class GPUDevice(ApiModel):
    """A physical GPU of a node, and how much of it is allocated."""

    plural: ClassVar[str] = "gpudevices"
    api_version: Word = "vgpu.dev/v1alpha1"
    kind: Word = "GPUDevice"
    metadata: DeviceMetadata = Field(default_factory=DeviceMetadata)
    spec: Annotated[GPUDeviceSpec, one_for_equals(kept=_NODES_KEPT)]
    """The administrator's settings."""
    status: GPUDeviceStatus = Field(default_factory=lambda: GPUDeviceStatus(conditions=[]))
    """The observed state."""

    @classmethod
    def read(cls, raw: dict[str, Any]) -> GPUDevice:
        """Read a device as the API server sent it; cordon it if it has values of a later version.

        Its pods stay, but nothing new is allocated on a device whose rules this version does not
        know.

        Raises:
            pydantic.ValidationError: It cannot be read.
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
