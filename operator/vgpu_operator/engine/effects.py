"""Effects: the writes and other actions that decisions result in, as values.

`effector` carries them out. A write carries its precondition as data: the version on which it was
decided. If the object has changed since then, the write fails, and the engine decides again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vgpu_api.v1alpha1 import Condition, VGPUClaimStatus
from vgpu_client.recorder import Regarding
from vgpu_operator.ledger import ClaimKey


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """A write of a claim's status, and of its finalizer if necessary.

    Attributes:
        key: The claim.
        version: The resourceVersion on which this was decided; empty if there is no claim yet.
        status: The status to write.
        before: The status at that version; None if there is no claim yet.
        create: The claim to create first, if it does not exist.
        finalizers: The claim's finalizers at that version.
        add_finalizer: Add our finalizer before the status is written.
        let_go: Remove our finalizer after the status is written.
        allocation_id: The id of the allocation in the status; empty if it has none.
        is_news: Record an event on the claim after the write, because its allocation or the reason
            of its condition Allocated changes.
    """

    key: ClaimKey
    version: str
    status: VGPUClaimStatus
    before: VGPUClaimStatus | None = None
    create: dict[str, Any] | None = None
    finalizers: tuple[str, ...] = ()
    add_finalizer: bool = False
    let_go: bool = False
    allocation_id: str = ""
    is_news: bool = False


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """A deletion of a claim, unless the claim has changed since the decision."""

    key: ClaimKey
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class WriteDevice:
    """A write of the operator's fields in a device's status.

    Attributes:
        name: The device.
        node: The node it is on.
        status: All fields of our field manager.
    """

    name: str
    node: str
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublishDevice:
    """A write of a device that a vendor's plugin registers on its Node.

    Attributes:
        name: The device.
        node: The node it is on.
        status: All fields that come from the register.
        create: The object to create first, if it does not exist.
    """

    name: str
    node: str
    status: dict[str, Any]
    create: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MarkDevice:
    """A write of one condition of a device on behalf of its silent agent.

    The agent overwrites it when it comes back.
    """

    name: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class ReadPod:
    """A read of a pod from the API server, because the cache may not show yet that it is bound.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID; a pod with the same name and another UID does not count.
        allocation_id: The allocation of the reservation that depends on the response.
    """

    namespace: str
    name: str
    uid: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """A request to kube-scheduler to try a pod again, with an optional nominated node.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        node: The node to nominate; empty for none; None to clear our nomination.
        wake: Change an annotation, so that kube-scheduler tries the pod again. A change of the
            status alone has no such effect.
    """

    namespace: str
    name: str
    uid: str
    node: str | None
    wake: bool


@dataclass(frozen=True, slots=True)
class MarkPod:
    """A change of a running pod's annotation, so that the agent reads the pod's claim again.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        mark: The annotation's value.
    """

    namespace: str
    name: str
    uid: str
    mark: str


@dataclass(frozen=True, slots=True)
class LiftGate:
    """A request that binds a pod to a node by affinity and removes our scheduling gate.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        version: The resourceVersion on which this was decided.
        allocation_id: The id of the pod's allocation in the claim's status.
        operations: The JSON patch.
    """

    namespace: str
    name: str
    uid: str
    version: str
    allocation_id: str
    operations: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class WriteResourceClaim:
    """A write of a ResourceClaim's allocation, and of our finalizer if necessary.

    Attributes:
        namespace: The claim's namespace.
        name: The claim's name.
        purpose: `allocate`; `deallocate`: nobody uses it, or it shows something else than the
            VGPUClaim; `reject`: its node has no room for the pod; `let go`: only the finalizer.
        version: The resourceVersion on which this was decided; empty if there is no claim yet.
        claim: The VGPUClaim that it shows.
        pod_uid: The UID of the pod that waits for it; empty if none does.
        allocation_id: The id of the VGPUClaim's allocation, if this allocates.
        create: The claim to create first, if it does not exist.
        finalizers: The claim's finalizers at that version, to which ours is added with the marks
            that say for whom it is, or from which it is removed; None if neither is to be done.
        allocation: The allocation to write, if this allocates.
        is_status_empty: The status has no field yet to which the allocation could be added.
        nominate: The nomination of the node, to be made first; None for a pod that has its node.
    """

    namespace: str
    name: str
    purpose: Literal["allocate", "deallocate", "reject", "let go"]
    version: str
    claim: ClaimKey
    pod_uid: str = ""
    allocation_id: str = ""
    create: dict[str, Any] | None = None
    finalizers: tuple[str, ...] | None = None
    allocation: dict[str, Any] | None = None
    is_status_empty: bool = False
    nominate: Requeue | None = None


@dataclass(frozen=True, slots=True)
class DeletePod:
    """A deletion of a pod that makes its controller replace it, unless the pod has changed.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        version: The resourceVersion on which this was decided; it changes if the pod is bound.
    """

    namespace: str
    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """An eviction of a pod, which a PodDisruptionBudget may refuse.

    Attributes:
        regarding: The pod.
        why: The reason, as the clause after "evicted because".
        reason: The reason of the event, one CamelCase word.
        preemptor: The claim for which it is evicted; None if for no other.
        force: Delete the pod instead, which no budget refuses.
    """

    regarding: Regarding
    why: str
    reason: Literal["Evicted", "Preempted"]
    preemptor: ClaimKey | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """An event about an object.

    Attributes:
        regarding: The object.
        type: The type of the event.
        reason: The reason, one CamelCase word.
        action: The attempted action, one CamelCase word.
        note: The text of the event.
    """

    regarding: Regarding
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


Effect: TypeAlias = (
    WriteClaim
    | DeleteClaim
    | WriteDevice
    | PublishDevice
    | MarkDevice
    | ReadPod
    | Requeue
    | MarkPod
    | LiftGate
    | WriteResourceClaim
    | DeletePod
    | EvictPod
    | RecordEvent
)
