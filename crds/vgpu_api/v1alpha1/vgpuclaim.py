"""VGPUClaim: the request of one pod, with the resulting allocation in its status.

`status.allocation` is the only source of truth for which claim holds which device: an allocation
exists if and only if this field is set.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from vgpu_api import names, quantity
from vgpu_api.empties import no_items
from vgpu_api.later_version import without_unknown_values
from vgpu_api.v1alpha1.base import (
    ApiModel,
    Conditions,
    Metadata,
    Name,
    Size,
    Time,
    Word,
    one_for_equals,
)
from vgpu_api.v1alpha1.gpudevice import CorePolicy

RequestMode = Literal["Any", "Shared", "Exclusive", "MIG"]
ANY_PROFILE = "any"
"""Stands for a MIG profile: any instance, the smallest first."""
Phase = Literal["App", "Init"]
AppClass = Literal["Online", "Offline"]
QosPolicy = Literal["BestEffort", "FixedShare", "BurstShare"]
NodePolicy = Literal["Binpack", "Spread", "NUMAFirst", "Fragmentation"]
DevicePolicy = Literal[
    "Binpack",
    "Spread",
    "BestFit",
    "IdleFirst",
    "NUMAFirst",
    "NUMA",
    "Topology",
    "Mutex",
    "Fragmentation",
]
NumaPolicy = Literal["None", "Prefer", "Require"]
BindingMode = Literal["WaitForFirstConsumer", "Immediate"]
ClaimState = Literal["Pending", "Allocated", "InUse", "Released", "Failed", "Terminating"]
MAX_PATTERN = 128
MAX_MODELS = 32
MAX_UUIDS = 64
MAX_KINDS = 16
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]
Weight = Annotated[int, Field(ge=0, le=1000)]
AllocationID = Annotated[
    str,
    Field(max_length=36, pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
]
"""A UUID in lower case."""
Round = Annotated[int, Field(ge=0, le=2**31 - 1)]

MAX_REQUESTS = 16
"""The most containers of a pod that can ask for devices."""
MAX_PART_SIZE = 1000
"""The largest part size; a device has at most this many slots."""
MAX_CLAIM_BYTES = 32 << 10
"""The largest metadata and spec of a claim as JSON: every process keeps all claims in memory."""

MEMORY_RULES: list[dict[str, str]] = [
    {
        "rule": "quantity(self).compareTo(quantity('1Mi')) >= 0",
        "message": f"must be {quantity.MIB_EXPECTED}",
    },
    {
        "rule": "quantity(self).isInteger() && quantity(self).asInteger() % 1048576 == 0",
        "message": f"must be {quantity.MIB_EXPECTED}",
    },
]

REQUEST_RULES: list[dict[str, str]] = [
    {
        "rule": "self.size() == 1 || self.all(r, has(r.name) && r.name != '')",
        "message": "a request without a name must be the only one",
    },
    {
        "rule": "self.size() == 1 || self.all(r, has(r.name) && "
        "self.exists_one(o, has(o.name) && o.name == r.name))",
        "message": "two requests have the same name",
    },
]
"""Names are the keys of the list, but it is not a list-map: docs/design/truth-and-ledger.md."""


Memory = Annotated[Size, Field(json_schema_extra={"x-kubernetes-validations": MEMORY_RULES})]


class DeviceKind(ApiModel):
    """Devices of some models and amounts of memory. Every field that is given must hold."""

    model_names: Annotated[list[Pattern], Field(max_length=MAX_MODELS)] = Field(
        default_factory=no_items
    )
    """Only models of exactly one of these names, as the driver spells them."""
    exclude_model_names: Annotated[list[Pattern], Field(max_length=MAX_MODELS)] = Field(
        default_factory=no_items
    )
    """No model of exactly one of these names."""
    min_memory: Memory | None = None
    """Only devices with at least this much allocatable memory."""
    max_memory: Memory | None = None
    """Only devices with at most this much allocatable memory."""

    @field_validator("min_memory", "max_memory")
    @classmethod
    def _whole_mib(cls, value: str | None) -> str | None:
        if value is not None:
            quantity.mib(value)
        return value


class DeviceSelector(ApiModel):
    """The devices that may serve a request. Exclusion takes precedence."""

    models: Annotated[list[Pattern], Field(max_length=MAX_MODELS)] = Field(default_factory=no_items)
    """Only models whose name contains one of these. Case is ignored: a10 matches A100."""
    exclude_models: Annotated[list[Pattern], Field(max_length=MAX_MODELS)] = Field(
        default_factory=no_items
    )
    """No model whose name contains one of these."""
    uuids: Annotated[list[Pattern], Field(max_length=MAX_UUIDS)] = Field(
        default_factory=no_items, alias="uuids"
    )
    """Only these devices."""
    exclude_uuids: Annotated[list[Pattern], Field(max_length=MAX_UUIDS)] = Field(
        default_factory=no_items, alias="excludeUUIDs"
    )
    """None of these devices."""
    kinds: Annotated[list[DeviceKind], Field(max_length=MAX_KINDS)] = Field(
        default_factory=no_items
    )
    """Only devices of one of these kinds."""


class VGPURequest(ApiModel):
    """One container's request. Without memory and memoryPercent: all memory of the device."""

    name: Annotated[str, Field(max_length=63)] = ""
    """The container's name. A sole request may omit it: the pod's first container that asks."""
    phase: Phase = "App"
    """Init for an ordinary init container; App for an app container or a sidecar."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """The number of distinct devices."""
    memory: Memory | None = None
    """The memory of each device, such as 8Gi."""
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """The memory as a percentage of each device's memory."""
    cores: Annotated[int, Field(ge=0, le=100)] | None = None
    """Percent of each device's compute. 0 or absent: no limit, no reservation. 100: exclusive
    use."""
    vendor: Annotated[str, Field(max_length=64)] = "nvidia"
    """The vendor of the devices."""
    mode: RequestMode = "Any"
    """The required division of the device."""
    mig_profile: Annotated[str, Field(max_length=64, pattern=r"^([0-9]+g\..+|any)$")] | None = None
    """The MIG profile, such as 1g.10gb, or `any`, instead of amounts. Only in mode MIG."""
    core_policy: CorePolicy = "Default"
    """The enforcement of the compute limit: only while others are active, always, or never."""
    compute_priority: Annotated[int, Field(ge=0, le=10)] | None = None
    """Priority when sharing a device's compute with other requests; 0 is the highest."""
    selector: DeviceSelector | None = None
    """The devices that may serve the request."""
    app_class: AppClass | None = None
    """The class that the vendor's plugin gives precedence on a device. Not for NVIDIA devices."""
    qos_policy: QosPolicy | None = None
    """The way the vendor's plugin shares a device's compute. Not for NVIDIA devices."""
    links_first: bool = False
    """Prefer the node where the fewest links between free devices break. Not for NVIDIA devices."""
    part_size: Annotated[int, Field(ge=1, le=MAX_PART_SIZE)] | None = None
    """The size of a part, for vendors whose nodes register devices in parts."""
    part_memory: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """The least memory of such a part in GiB, or in MiB if above twice the largest part's GiB."""

    @field_validator("memory")
    @classmethod
    def _whole_mib(cls, value: str | None) -> str | None:
        if value is not None:
            quantity.mib(value)
        return value

    @model_validator(mode="after")
    def _one_memory_form(self) -> VGPURequest:
        if self.memory is not None and self.memory_percent is not None:
            raise ValueError("give memory or memoryPercent, not both")
        return self

    @model_validator(mode="after")
    def _profile_stands_for_amounts(self) -> VGPURequest:
        if self.mig_profile is None:
            return self
        if self.mode != "MIG":
            raise ValueError("migProfile needs mode MIG")
        if self.memory is not None or self.memory_percent is not None or self.cores is not None:
            raise ValueError("migProfile has memory and cores: give no amount beside it")
        return self

    @model_validator(mode="after")
    def _neighbours_are_another_vendors(self) -> VGPURequest:
        given = self.app_class is not None or self.qos_policy is not None or self.links_first
        if given and self.vendor.lower() == "nvidia":
            raise ValueError("appClass, qosPolicy and linksFirst are not for NVIDIA's devices")
        return self

    @model_validator(mode="after")
    def _parts_are_another_vendors(self) -> VGPURequest:
        size, memory = self.part_size, self.part_memory
        if size is None and memory is None:
            return self
        if self.vendor.lower() == "nvidia":
            raise ValueError("partSize and partMemory are not for NVIDIA's devices")
        if size is not None and (memory is not None or self.cores is not None):
            raise ValueError("partSize names a part: give no amount beside it")
        if self.memory is not None or self.memory_percent is not None:
            raise ValueError("give memory, memoryPercent, partMemory or partSize")
        return self

    @property
    def memory_mib(self) -> int | None:
        """Return the memory per device in MiB, if set as a size."""
        return None if self.memory is None else quantity.mib(self.memory)


class Weights(ApiModel):
    """The weight of each term in a device's score."""

    slots: Weight = 1
    """Weight of the used slots."""
    cores: Weight = 1
    """Weight of the used compute."""
    memory: Weight = 1
    """Weight of the used memory."""


class Placement(ApiModel):
    """Preferences among the nodes and devices that fit. Unset: the configuration's defaults."""

    node: NodePolicy | None = None
    """The policy that chooses among nodes."""
    device: Annotated[list[DevicePolicy], Field(max_length=8)] = Field(default_factory=no_items)
    """The policy that chooses among the devices of a node, or several policies in order."""
    numa: NumaPolicy | None = None
    """The NUMA policy: none, or how strictly the devices must share a NUMA node."""
    weights: Weights | None = None
    """The weights of the device score."""


class VGPUClaimSpec(ApiModel):
    """The request: one per container, all decided together on one node, all or nothing."""

    requests: Annotated[
        list[VGPURequest],
        Field(
            min_length=1,
            max_length=MAX_REQUESTS,
            json_schema_extra={"x-kubernetes-validations": REQUEST_RULES},
        ),
    ]
    """One request per container that asks, each with its own name, in the order in which the pod
    starts the containers. An Init request counts together with the App requests before it, which
    belong to sidecars."""
    placement: Placement | None = None
    """Preferences among the nodes and devices that fit."""
    binding_mode: BindingMode = "WaitForFirstConsumer"
    """The time to allocate: once the pod is scheduled, or immediately."""
    scheduling_priority: int = 0
    """The order of waiting Immediate claims; higher goes first."""
    ttl_seconds_after_unused: Annotated[int, Field(ge=0)] | None = None
    """Delete the claim this many seconds after its pod ended. Absent: keep it without devices."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> VGPUClaimSpec:
        names = [request.name for request in self.requests]
        if len(set(names)) != len(names):
            raise ValueError("two requests have the same name")
        if len(names) > 1 and "" in names:
            raise ValueError("a request without a name must be the only one")
        return self


class MigAllocation(ApiModel):
    """The MIG instance that serves a request."""

    profile: Annotated[str, Field(max_length=64)] = ""
    """The instance's profile."""
    start: Annotated[int, Field(ge=0, le=63)] = 0
    """Its first memory slice on the device."""
    size: Annotated[int, Field(ge=0, le=64)] = 0
    """The number of memory slices."""
    uuid: Annotated[str, Field(max_length=128)] = ""
    """The instance's UUID, once it exists."""


CoreID: TypeAlias = Annotated[int, Field(ge=0, le=7)]
"""The number of a core on its device."""


class AllocatedDevice(ApiModel):
    """One device, or a part of one, allocated to one request."""

    request: Annotated[Word, Field(max_length=63)] = ""
    """The name of the request."""
    name: Name = ""
    """The name of the GPUDevice."""
    uuid: Annotated[Word, Field(max_length=128)] = ""
    """The device's UUID."""
    index: int = 0
    """The device's number on its node."""
    memory: Size = "0"
    """The allocated memory."""
    cores: Annotated[int, Field(ge=0, le=100)] = 0
    """The allocated compute in percent; 0 means no reservation and no limit."""
    mig: MigAllocation | None = None
    """The MIG instance, if one serves the request."""
    device_memory: Size | None = None
    """The device's total memory at allocation, if a percentage was requested."""
    core_ids: Annotated[list[CoreID] | None, Field(alias="coreIDs", max_length=8)] = None
    """The cores allocated, for vendors whose devices are allocated by numbered cores."""
    part: Annotated[str, Field(max_length=63)] | None = None
    """The part's name on its node, for vendors whose devices are allocated in parts."""

    @property
    def memory_mib(self) -> int:
        """Return the allocated memory, in MiB."""
        return quantity.read_mib(self.memory)


class Allocation(ApiModel):
    """The devices allocated to the claim, all on one node. Written as a whole or not at all."""

    node_name: Annotated[Word, Field(max_length=253)] = ""
    """The node."""
    node_uid: Annotated[Word, Field(max_length=64)] = Field(default="", alias="nodeUID")
    """The node's UID. If the node is registered again, only running pods keep their devices."""
    id: AllocationID = ""
    """A UUID that is unique among all allocations of this claim."""
    devices: Annotated[list[AllocatedDevice], Field(max_length=2048)] = Field(
        default_factory=no_items
    )
    """The devices, in the order of the requests."""
    allocated_time: Time | None = None
    """The time of the decision; it does not identify the allocation."""
    init_round: Round = 0
    """The number of times init containers got devices again after giving them back."""
    resource_claim_uid: Annotated[str, Field(max_length=64)] = Field(
        default="", alias="resourceClaimUID"
    )
    """The UID of the ResourceClaim through which the pod gets the devices, in mode Claims. The
    agent prepares no other ResourceClaim for the pod. Empty in the other modes."""


class ReservedFor(ApiModel):
    """The pod that may use the claim."""

    pod_name: Name = ""
    """The pod's name."""
    pod_uid: Annotated[str, Field(max_length=64)] = Field(default="", alias="podUID")
    """The pod's UID: a new pod of the same name is a different consumer."""


class Released(ApiModel):
    """The agent's report that nothing of one allocation is in use any more."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """The allocation."""
    time: Time | None = None
    """The time since which this has been true."""


class InitReleased(ApiModel):
    """The agent's report that nothing of one round of init containers is in use any more."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """The allocation."""
    round: Round = 0
    """The round: the allocation's `initRound` at that time."""
    time: Time | None = None
    """The time since which this has been true."""


class InitWanted(ApiModel):
    """The agent's report that init containers must run again and need devices again."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """The allocation."""
    round: Round = 0
    """The round that had ended: the allocation's `initRound` at that time."""


class KeptDevices(ApiModel):
    """Devices of one node that could serve the claim but are kept for other requests."""

    node_name: Annotated[Word, Field(max_length=253)] = ""
    """The node."""
    devices: Annotated[int, Field(ge=0)] = 0
    """The number of devices."""


class VGPUClaimStatus(ApiModel):
    """The result of the claim."""

    allocation: Allocation | None = None
    """The allocated devices; absent until the claim is allocated."""
    reserved_for: ReservedFor | None = None
    """The pod that may use the devices."""
    released: Released | None = None
    """Set by the agent once nothing of this allocation is in use any more."""
    init_released: InitReleased | None = None
    """Set by the agent once nothing of the init containers of this round is in use any more."""
    init_wanted: InitWanted | None = None
    """Set by the agent if init containers must run again after this round and need devices."""
    kept_for_others: Annotated[list[KeptDevices] | None, Field(max_length=64)] = None
    """Devices that the last refusal found kept for requests that have waited longer."""
    state: ClaimState | None = None
    """One word for the printed columns. It does not cover containers: see Prepared."""
    summary: Annotated[Word, Field(max_length=256)] = ""
    """The request in short, for the printed columns."""
    cards: Annotated[str, Field(max_length=1024)] = ""
    """The devices' UUIDs, for the printed columns."""
    pod: Name = ""
    """The pod that holds the claim or waits with it, for the printed columns."""
    observed_generation: int | None = None
    """The generation of the spec that was last processed."""
    decider: Annotated[str, Field(max_length=256)] = ""
    """The operator replica that took over the decision, so that writes by a former one fail."""
    conditions: Conditions
    """Allocated, Prepared, InitReleased, Released, Ready (the operator is done) and others."""


class VGPUClaim(ApiModel):
    """A pod's request for GPUs, and the devices that it got."""

    plural: ClassVar[str] = "vgpuclaims"
    api_version: Word = "vgpu.dev/v1alpha1"
    kind: Word = "VGPUClaim"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: Annotated[VGPUClaimSpec, one_for_equals()]
    """The request."""
    status: VGPUClaimStatus = Field(
        default_factory=lambda: VGPUClaimStatus(conditions=[]),
        # Until the operator has seen it: kstatus takes a claim without a status for a healthy one.
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
    """The result."""

    @property
    def shown_state(self) -> str:
        """Return the state in one word, also if the operator has not written it yet."""
        if self.metadata.deletion_timestamp is not None:
            return "Terminating"
        return self.status.state or "Pending"

    @property
    def shown_pod(self) -> str:
        """Return the pod that holds the claim or waits with it; empty if none is known."""
        reserved = self.status.reserved_for
        return self.status.pod if reserved is None else reserved.pod_name

    @property
    def is_pods_own(self) -> bool:
        """True if the pod it is reserved for owns it: the operator made it for that pod."""
        reserved = self.status.reserved_for
        return reserved is not None and any(
            owner.uid == reserved.pod_uid for owner in self.metadata.owner_references
        )

    @property
    def is_mirror(self) -> bool:
        """True if kube-scheduler has allocated the devices, and the claim repeats that."""
        return names.ANNOTATION_SCHEDULER_CLAIM in self.metadata.annotations

    @property
    def held_for(self) -> str:
        """Return the system whose pod the claim holds devices for; empty if we serve the pod."""
        return self.metadata.labels.get(names.LABEL_HELD_FOR, "")

    @property
    def unknown_values(self) -> tuple[str, ...]:
        """Values of a later version, as `path: "value"`; a claim with any is not decided."""
        return ()

    @classmethod
    def read(cls, raw: dict[str, Any]) -> VGPUClaim:
        """Read a claim as the API server sent it.

        Raises:
            pydantic.ValidationError: It cannot be read; its devices count as full until it can.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            found = without_unknown_values(raw, error)
            if found is None:
                raise
            return _LaterClaim.of(*found)


class _LaterClaim(VGPUClaim):
    """A claim with values of a later version; as a subclass it costs other claims no memory."""

    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @property
    def unknown_values(self) -> tuple[str, ...]:
        return self._unknown

    @classmethod
    def of(cls, known: dict[str, Any], unknown: tuple[str, ...]) -> VGPUClaim:
        """Return the claim as far as this version knows it."""
        claim = cls.model_validate(known)
        claim._unknown = unknown
        return claim
