"""VGPUClaim: what one pod asks for, and, in its status, what it got.

`status.allocation` is the only truth about who holds which device: an allocation exists if and
only if it is there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from vgpu_api import quantity
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
"""In place of a MIG profile: whichever instance there is, the smallest first."""
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
Pattern = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[int, Field(ge=0, le=1000)]
AllocationID = Annotated[
    str,
    Field(max_length=36, pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
]
"""A UUID in lower case."""
Round = Annotated[int, Field(ge=0, le=2**31 - 1)]

MAX_REQUESTS = 16
"""Containers of a pod that ask for devices."""
MAX_PART_SIZE = 1000
"""Of parts that nodes register: a device has at most so many slots."""
MAX_CLAIM_BYTES = 32 << 10
"""Of a claim's metadata and spec as JSON: every process keeps all claims in memory."""

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
"""Names are the keys of the list, and yet it is no map: docs/design/truth-and-ledger.md."""


class DeviceSelector(ApiModel):
    """Which devices may serve a request. Exclusion wins."""

    models: Annotated[list[Pattern], Field(max_length=32)] = Field(default_factory=no_items)
    """Only models whose name contains one of these, whatever the case: A10 matches A100."""
    exclude_models: Annotated[list[Pattern], Field(max_length=32)] = Field(default_factory=no_items)
    """No model whose name contains one of these."""
    uuids: Annotated[list[Pattern], Field(max_length=64)] = Field(
        default_factory=no_items, alias="uuids"
    )
    """Only these devices."""
    exclude_uuids: Annotated[list[Pattern], Field(max_length=64)] = Field(
        default_factory=no_items, alias="excludeUUIDs"
    )
    """None of these devices."""


class VGPURequest(ApiModel):
    """What one container asks for. Neither memory nor memoryPercent: all memory of the device."""

    name: Annotated[str, Field(max_length=63)] = ""
    """The container's name. May be left out by a sole request: the pod's first asking container."""
    phase: Phase = "App"
    """Init for an ordinary init container; App for an app container or a sidecar."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many distinct devices."""
    memory: (
        Annotated[Size, Field(json_schema_extra={"x-kubernetes-validations": MEMORY_RULES})] | None
    ) = None
    """Memory of each device, such as 8Gi."""
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Memory as a percentage of each device's."""
    cores: Annotated[int, Field(ge=0, le=100)] | None = None
    """Percent of each device's compute. 0 or absent: no limit, nothing reserved. 100: it alone."""
    vendor: Annotated[str, Field(max_length=64)] = "nvidia"
    """Whose devices."""
    mode: RequestMode = "Any"
    """How the device must be divided."""
    mig_profile: Annotated[str, Field(max_length=64, pattern=r"^([0-9]+g\..+|any)$")] | None = None
    """The instance's profile, such as 1g.10gb, or `any`, in place of amounts. Only in mode MIG."""
    core_policy: CorePolicy = "Default"
    """When the compute share is enforced: while others are active, always, or never."""
    compute_priority: Annotated[int, Field(ge=0, le=10)] | None = None
    """Throttling between neighbours on a device; 0 is the highest."""
    selector: DeviceSelector | None = None
    """Which devices may serve."""
    app_class: AppClass | None = None
    """What the vendor's plugin lets go first on a device. Not for NVIDIA's devices."""
    qos_policy: QosPolicy | None = None
    """How the vendor's plugin shares a device's compute. Not for NVIDIA's devices."""
    links_first: bool = False
    """The node where the fewest links between free devices are cut. Not for NVIDIA's devices."""
    part_size: Annotated[int, Field(ge=1, le=MAX_PART_SIZE)] | None = None
    """The size of a part, where a vendor's devices are given in parts that nodes register."""
    part_memory: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """Least memory of such a part: GiB, or MiB where more than twice the largest part's GiB."""

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
        """The memory per device in MiB, if given as a size."""
        return None if self.memory is None else quantity.mib(self.memory)


class Weights(ApiModel):
    """How much each term counts in a device's score."""

    slots: Weight = 1
    """Weight of the used slots."""
    cores: Weight = 1
    """Weight of the used compute."""
    memory: Weight = 1
    """Weight of the used memory."""


class Placement(ApiModel):
    """Preferences among the places that fit. What is absent comes from the configuration."""

    node: NodePolicy | None = None
    """Among nodes."""
    device: Annotated[list[DevicePolicy], Field(max_length=8)] = Field(default_factory=no_items)
    """Among the devices of a node: one policy, or several in order."""
    numa: NumaPolicy | None = None
    """Whether the devices must share a NUMA node."""
    weights: Weights | None = None
    """Weights of the device score."""


class VGPUClaimSpec(ApiModel):
    """What is asked for: a request per container, decided together on one node, all or nothing."""

    requests: Annotated[
        list[VGPURequest],
        Field(
            min_length=1,
            max_length=MAX_REQUESTS,
            json_schema_extra={"x-kubernetes-validations": REQUEST_RULES},
        ),
    ]
    """One per asking container, each with a name of its own, in the order in which the pod starts
    them: an Init request counts together with the App requests before it, which are sidecars'."""
    placement: Placement | None = None
    """Preferences among the places that fit."""
    binding_mode: BindingMode = "WaitForFirstConsumer"
    """Decide when the pod is scheduled, or at once."""
    scheduling_priority: int = 0
    """Orders waiting Immediate claims; more goes first."""
    ttl_seconds_after_unused: Annotated[int, Field(ge=0)] | None = None
    """Delete the claim that long after its pod ended. Absent: keep it, holding nothing."""

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
    """Its profile."""
    start: Annotated[int, Field(ge=0, le=63)] = 0
    """Its first memory slice on the device."""
    size: Annotated[int, Field(ge=0, le=64)] = 0
    """How many memory slices it takes."""
    uuid: Annotated[str, Field(max_length=128)] = ""
    """Its identity, once made."""


CoreID: TypeAlias = Annotated[int, Field(ge=0, le=7)]
"""The number of a core on its device."""


class AllocatedDevice(ApiModel):
    """One device, or a part of it, given to one request."""

    request: Annotated[Word, Field(max_length=63)] = ""
    """The request it serves."""
    name: Name = ""
    """The GPUDevice object."""
    uuid: Annotated[Word, Field(max_length=128)] = ""
    """The device."""
    index: int = 0
    """The device's number on its node."""
    memory: Size = "0"
    """Memory given."""
    cores: Annotated[int, Field(ge=0, le=100)] = 0
    """Compute given, percent; 0 is no reservation and no limit."""
    mig: MigAllocation | None = None
    """The MIG instance, if it is one."""
    device_memory: Size | None = None
    """All memory of the device when it was given, where a percentage was asked."""
    core_ids: Annotated[list[CoreID] | None, Field(alias="coreIDs", max_length=8)] = None
    """The cores that are the request's, where a vendor's devices are given by numbered cores."""
    part: Annotated[str, Field(max_length=63)] | None = None
    """The part of the device, as its node names it, where a vendor's devices are given in such."""

    @property
    def memory_mib(self) -> int:
        """The memory given, in MiB."""
        return quantity.read_mib(self.memory)


class Allocation(ApiModel):
    """The decision: which devices of which node. Exists, or does not; never in parts."""

    node_name: Annotated[Word, Field(max_length=253)] = ""
    """The node."""
    node_uid: Annotated[Word, Field(max_length=64)] = Field(default="", alias="nodeUID")
    """The node's identity. If the node is registered anew, only live pods keep their devices."""
    id: AllocationID = ""
    """Names this allocation among all that the claim may ever have: a UUID."""
    devices: Annotated[list[AllocatedDevice], Field(max_length=2048)] = Field(
        default_factory=no_items
    )
    """The devices, in the order of the requests."""
    allocated_time: Time | None = None
    """When it was decided; names nothing."""
    init_round: Round = 0
    """How often init containers were given devices anew after they had given theirs back."""


class ReservedFor(ApiModel):
    """The pod that may use the claim."""

    pod_name: Name = ""
    """Its name."""
    pod_uid: Annotated[str, Field(max_length=64)] = Field(default="", alias="podUID")
    """Its identity: a pod made anew under the same name is another consumer."""


class Released(ApiModel):
    """The agent's word that nothing of one allocation is in use any more."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """Which allocation."""
    time: Time | None = None
    """Since when."""


class InitReleased(ApiModel):
    """The agent's word that nothing of one round of init containers is in use any more."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """Of which allocation."""
    round: Round = 0
    """Which round: the allocation's `initRound` at that time."""
    time: Time | None = None
    """Since when."""


class InitWanted(ApiModel):
    """The agent reports that init containers must run again and need devices anew."""

    allocation_id: AllocationID = Field(default="", alias="allocationID")
    """Of which allocation."""
    round: Round = 0
    """After which round: the allocation's `initRound` at that time."""


class KeptDevices(ApiModel):
    """Devices of one node that have room for the claim, and are kept for other requests."""

    node_name: Annotated[Word, Field(max_length=253)] = ""
    """The node."""
    devices: Annotated[int, Field(ge=0)] = 0
    """How many."""


class VGPUClaimStatus(ApiModel):
    """What came of it."""

    allocation: Allocation | None = None
    """The devices, once decided."""
    reserved_for: ReservedFor | None = None
    """The pod that may use them."""
    released: Released | None = None
    """Nothing of this allocation is in use any more (agent)."""
    init_released: InitReleased | None = None
    """Nothing that init containers had in this round is in use any more (agent)."""
    init_wanted: InitWanted | None = None
    """Init containers must run again after this round; then they keep what they have (agent)."""
    kept_for_others: Annotated[list[KeptDevices] | None, Field(max_length=64)] = None
    """Devices that the last refusal found kept for requests that have waited longer."""
    state: ClaimState | None = None
    """One word for the printed columns. It has no state of containers: see Prepared."""
    summary: Annotated[Word, Field(max_length=256)] = ""
    """The request in short, for the printed columns."""
    cards: Annotated[str, Field(max_length=1024)] = ""
    """The devices' UUIDs, for the printed columns."""
    pod: Name = ""
    """The pod that it is reserved for, or that waits with it, for the printed columns."""
    observed_generation: int | None = None
    """The generation of the spec that was read."""
    decider: Annotated[str, Field(max_length=256)] = ""
    """The operator's replica that took over the decision, so that a former one's writes fail."""
    conditions: Conditions
    """Allocated, Prepared, InitReleased, Released, Ready (the operator is done): for people."""


class VGPUClaim(ApiModel):
    """What one pod asks of the cluster's GPUs, and what it got."""

    plural: ClassVar[str] = "vgpuclaims"
    api_version: Word = "vgpu.dev/v1alpha1"
    kind: Word = "VGPUClaim"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: Annotated[VGPUClaimSpec, one_for_equals()]
    """What is asked for."""
    status: VGPUClaimStatus = Field(
        default_factory=lambda: VGPUClaimStatus(conditions=[]),
        # Until the operator has looked: kstatus takes a claim without a status for a healthy one.
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
    """What came of it."""

    @property
    def shown_state(self) -> str:
        """One word for people: also where the operator has not written it yet."""
        if self.metadata.deletion_timestamp is not None:
            return "Terminating"
        return self.status.state or "Pending"

    @property
    def shown_pod(self) -> str:
        """The pod that has it or waits with it, for people; empty: none is known."""
        reserved = self.status.reserved_for
        return self.status.pod if reserved is None else reserved.pod_name

    @property
    def is_pods_own(self) -> bool:
        """Whether the pod that it is reserved for owns it: the operator made it for that pod."""
        reserved = self.status.reserved_for
        return reserved is not None and any(
            owner.uid == reserved.pod_uid for owner in self.metadata.owner_references
        )

    @property
    def unknown_values(self) -> tuple[str, ...]:
        """Values of a later version, as `path: "value"`: with any, nothing is decided about it."""
        return ()

    @classmethod
    def read(cls, raw: dict[str, Any]) -> VGPUClaim:
        """The claim as the API server sent it.

        Raises:
            pydantic.ValidationError: it cannot be read; its devices count as full until it can.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            found = without_unknown_values(raw, error)
            if found is None:
                raise
            return _LaterClaim.of(*found)


class _LaterClaim(VGPUClaim):
    """A claim with values of a later version. Only it takes memory for them."""

    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @property
    def unknown_values(self) -> tuple[str, ...]:
        return self._unknown

    @classmethod
    def of(cls, known: dict[str, Any], unknown: tuple[str, ...]) -> VGPUClaim:
        """Return the claim with what is known of it."""
        claim = cls.model_validate(known)
        claim._unknown = unknown
        return claim
