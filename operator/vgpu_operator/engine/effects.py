"""Effects: the writes and other actions that decisions ask for, as values.

`effector` carries them out. A write has its precondition as data: the version that it was decided
on. If the object has changed since, the write fails, and the engine decides again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vgpu_api.v1alpha1 import Condition, VGPUClaimStatus
from vgpu_client.recorder import Regarding
from vgpu_operator.ledger import ClaimKey


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Write a claim's status, and its finalizer with it.

    Attributes:
        key: The claim.
        version: The resourceVersion that this was decided on; empty if there is no claim yet.
        status: The status to write.
        before: The status at that version; None if there is no claim yet.
        create: The claim to create first, if there is none.
        finalizers: The claim's finalizers at that version.
        add_finalizer: Add our finalizer before the status is written.
        let_go: Remove our finalizer after the status is written.
        allocation_id: The id of the allocation in the status; empty if it has none.
        is_news: Record an event on the claim after the write, because the reason of its condition
            Allocated changes, or its allocation does.
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
    """Delete a claim, unless it has changed since the decision."""

    key: ClaimKey
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class WriteDevice:
    """Write the operator's fields of a device's status.

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
    """Publish a device that a vendor's plugin registers on its Node.

    Attributes:
        name: The device.
        node: The node it is on.
        status: All fields that come from the register.
        create: The object to create first, if there is none.
    """

    name: str
    node: str
    status: dict[str, Any]
    create: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MarkDevice:
    """Write one condition of a device on behalf of its silent agent.

    The agent overwrites it when it comes back.
    """

    name: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read a pod from the API server, because our cache may not show yet that it is bound.

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
    """Make kube-scheduler try a pod again, and nominate a node to try first.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        node: The node to nominate; empty for none; None to clear our nomination.
        wake: Change an annotation, which makes kube-scheduler try the pod again. A change of the
            status alone would not.
    """

    namespace: str
    name: str
    uid: str
    node: str | None
    wake: bool


@dataclass(frozen=True, slots=True)
class LiftGate:
    """Tie a pod to a node and remove our scheduling gate from it, in one request.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        version: The resourceVersion that this was decided on.
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
class DeletePod:
    """Delete a pod so that its controller makes another, unless it has changed since the decision.

    Attributes:
        namespace: The pod's namespace.
        name: The pod's name.
        uid: The pod's UID.
        version: The resourceVersion that this was decided on; it changes if the pod gets bound.
    """

    namespace: str
    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod, which a disruption budget may refuse.

    Attributes:
        regarding: The pod.
        why: The violation of its claim, as part of a sentence.
    """

    regarding: Regarding
    why: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an event about an object.

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
    | LiftGate
    | DeletePod
    | EvictPod
    | RecordEvent
)
