"""Events: observations of informers and outcomes of our own writes, as values.

There is no other way into the engine's state. `apply` applies an event and decides nothing. An
event may come late, twice or out of order, and to a replica that does not lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vgpu_api.core import (
    Node,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    ResourceClaim,
    ResourceQuota,
)
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine.effects import (
    DeleteClaim,
    EvictPod,
    LiftGate,
    PublishDevice,
    ReadPod,
    Requeue,
    WriteClaim,
    WriteDevice,
    WriteResourceClaim,
)
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.resource_claims.known import ResourceKey
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import StorageObject


@dataclass(frozen=True, slots=True)
class PodObserved:
    """A version of a pod, from any source."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """A pod is gone; `was_seen` is False if a list merely lacked it."""

    uid: str
    was_seen: bool = True


@dataclass(frozen=True, slots=True)
class PodsListed:
    """A list of pods is complete: all pods that existed at `version` have been observed.

    Attributes:
        version: The version of the list.
        uids: The UIDs of all pods in it.
        after_gap: True if the watch was lost before it.
    """

    version: int
    uids: frozenset[str]
    after_gap: bool = False


@dataclass(frozen=True, slots=True)
class ClaimObserved:
    """A version of a claim, from any source."""

    claim: VGPUClaim


@dataclass(frozen=True, slots=True)
class ClaimDeleted:
    """The claim with this UID is gone."""

    key: ClaimKey
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimUnreadable:
    """A version of a claim that is invalid, as it was received."""

    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """A version of a node."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    """A node is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class NodeUnreadable:
    """A node exists, but this version of it is invalid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeviceObserved:
    """A version of a device."""

    device: GPUDevice


@dataclass(frozen=True, slots=True)
class DeviceDeleted:
    """A device is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class QuotaObserved:
    """A version of a quota."""

    quota: ResourceQuota


@dataclass(frozen=True, slots=True)
class QuotaDeleted:
    """A quota is gone."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PodGroupObserved:
    """A version of a PodGroup of any API; `kind` names the API."""

    group: PodGroup
    kind: GroupKind = GroupKind.KUBERNETES


@dataclass(frozen=True, slots=True)
class PodGroupDeleted:
    """A PodGroup is gone."""

    key: GroupKey


@dataclass(frozen=True, slots=True)
class PodGroupsListed:
    """The end of a list of PodGroups of an API: the API server serves it."""

    kind: GroupKind


@dataclass(frozen=True, slots=True)
class PodGroupsNotServed:
    """The API server does not serve PodGroups of an API, or no longer in the version followed."""

    kind: GroupKind = GroupKind.KUBERNETES


@dataclass(frozen=True, slots=True)
class BudgetObserved:
    """A version of a disruption budget."""

    budget: PodDisruptionBudget


@dataclass(frozen=True, slots=True)
class BudgetDeleted:
    """A disruption budget is gone."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class BudgetsListed:
    """The end of a list of disruption budgets: all of them have been observed."""


@dataclass(frozen=True, slots=True)
class StorageObserved:
    """A version of a PersistentVolumeClaim, a volume, a StorageClass or a CSINode."""

    obj: StorageObject


@dataclass(frozen=True, slots=True)
class StorageDeleted:
    """Such an object is gone; only a PersistentVolumeClaim has a namespace."""

    kind: type[StorageObject]
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class StorageUnreadable:
    """A version of such an object that is invalid, and why."""

    kind: type[StorageObject]
    namespace: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class ClaimWritten:
    """The outcome of a `WriteClaim`.

    Attributes:
        effect: The write.
        outcome: `done`; `conflict`: not done, because the claim has changed; `refused`: not done,
            because the server refused it and would refuse it again; `unsent`: not done, try again;
            `unknown`: may have been done.
        claim: The current claim from the response or from a read; None if there is none or it is
            unknown.
        why: The server's message.
        tested: For an unknown outcome, the version of the claim that the request tests; empty if
            the claim was to be created and its status was not written.
    """

    effect: WriteClaim
    outcome: Literal["done", "conflict", "refused", "unsent", "unknown"]
    claim: VGPUClaim | None = None
    why: str = ""
    tested: str = ""


@dataclass(frozen=True, slots=True)
class ClaimDeletionEnded:
    """The outcome of a `DeleteClaim`; `why` is empty if it succeeded."""

    effect: DeleteClaim
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceWritten:
    """The outcome of a `WriteDevice` or `PublishDevice`.

    Attributes:
        effect: The write.
        why: Why it was not done; empty if it was.
        version: The resourceVersion that the write produced.
    """

    effect: WriteDevice | PublishDevice
    why: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class PodRead:
    """The result of a `ReadPod`.

    Attributes:
        effect: The effect that requested the read.
        found: `there`; `gone`, also if another pod has the name now; `unknown` without a response.
        pod: The pod, if it exists.
    """

    effect: ReadPod
    found: Literal["there", "gone", "unknown"]
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class RequeueEnded:
    """The outcome of a `Requeue`; `why` is empty if it succeeded."""

    effect: Requeue
    why: str = ""


@dataclass(frozen=True, slots=True)
class GateEnded:
    """The outcome of a `LiftGate`.

    Attributes:
        effect: The request.
        outcome: `lifted`; `refused`: not done; `unknown`: it may still be done.
        pod: The current pod, if the response or a read brought it.
        why: The server's message.
    """

    effect: LiftGate
    outcome: Literal["lifted", "refused", "unknown"]
    pod: Pod | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResourceClaimObserved:
    """A version of a ResourceClaim, from any source."""

    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ResourceClaimDeleted:
    """A ResourceClaim is gone."""

    key: ResourceKey
    uid: str


@dataclass(frozen=True, slots=True)
class ResourceClaimWritten:
    """The outcome of a `WriteResourceClaim`.

    Attributes:
        effect: The write.
        outcome: `done`; `refused`: not done; `unknown`: it may still be done.
        claim: The current claim, if the response or a read brought it.
        is_gone: True if the claim does not exist.
        why: The server's message.
    """

    effect: WriteResourceClaim
    outcome: Literal["done", "refused", "unknown"]
    claim: ResourceClaim | None = None
    is_gone: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class BindingEnded:
    """The outcome of a Binding that was posted.

    Attributes:
        pod_uid: The pod's UID.
        allocation_id: The allocation for which it was posted.
        outcome: `bound`: to this node; `refused`: by the server, and the pod is not bound;
            `elsewhere`: the pod is bound to another node; `gone`: this Binding was refused because
            the pod is gone, but an earlier one may have succeeded; `unknown`: it may still succeed.
    """

    pod_uid: str
    allocation_id: str
    outcome: Literal["bound", "refused", "elsewhere", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class EvictionEnded:
    """The outcome of evicting a pod for another one.

    Attributes:
        effect: The eviction.
        outcome: `evicted`: accepted by the server; `gone`: the pod is gone; `protected`: a budget
            refuses it; `failed`: it was not carried out, or that is unknown.
    """

    effect: EvictPod
    outcome: Literal["evicted", "gone", "protected", "failed"]


Event: TypeAlias = (
    PodObserved
    | PodDeleted
    | PodsListed
    | ClaimObserved
    | ClaimDeleted
    | ClaimUnreadable
    | NodeObserved
    | NodeDeleted
    | NodeUnreadable
    | DeviceObserved
    | DeviceDeleted
    | QuotaObserved
    | QuotaDeleted
    | PodGroupObserved
    | PodGroupDeleted
    | PodGroupsListed
    | PodGroupsNotServed
    | BudgetObserved
    | BudgetDeleted
    | BudgetsListed
    | StorageObserved
    | StorageDeleted
    | StorageUnreadable
    | ClaimWritten
    | ClaimDeletionEnded
    | DeviceWritten
    | PodRead
    | RequeueEnded
    | GateEnded
    | ResourceClaimObserved
    | ResourceClaimDeleted
    | ResourceClaimWritten
    | BindingEnded
    | EvictionEnded
)
