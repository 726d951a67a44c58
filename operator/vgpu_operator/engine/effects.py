"""What the engine's decisions want done, as values; `effector` carries them out.

A write carries its precondition as data: the version that it was decided on. Whether it is still
wanted when that version has passed is decided anew, from the claim as it stands then.
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
        version: The resourceVersion that this was decided on; empty: there is no such claim.
        status: What its status shall be.
        before: Its status at that version; None: there is no such claim.
        create: The claim to make first, where there is none.
        finalizers: Those it has at that version.
        add_finalizer: Put our finalizer on before the status is written.
        let_go: Take it off after.
        allocation_id: The allocation that the status has; empty if it has none.
        is_news: Its condition Allocated gets another reason, or is about another allocation: the
            claim gets an event once that is written.
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
    """Delete a claim if it is as it was when that was decided."""

    key: ClaimKey
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class WriteDevice:
    """Write the operator's fields of a device's status.

    Attributes:
        name: The device.
        node: Where it is.
        status: All fields of our field manager.
    """

    name: str
    node: str
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublishDevice:
    """Make a device that a vendor's plugin registers on its Node, and write what it registers.

    Attributes:
        name: The device.
        node: Where it is.
        status: All that the register has.
        create: The object to make first, where there is none.
    """

    name: str
    node: str
    status: dict[str, Any]
    create: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MarkDevice:
    """Write one condition of a device in place of its agent, which writes over it when it is back.

    Attributes:
        name: The device.
        condition: The condition.
    """

    name: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Read a pod from the API server, which alone has its current node.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its identity; a pod of another UID is another.
        allocation_id: The reservation that the answer decides about.
    """

    namespace: str
    name: str
    uid: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Make kube-scheduler try a pod again, with the node to try first.

    Attributes:
        namespace: The pod's namespace.
        name: Its name.
        uid: Its identity.
        node: The node to nominate; empty: none; None: take a nomination of ours back.
        wake: kube-scheduler has set the pod aside: touch an annotation, which wakes it. (A change
            of its status alone wakes nothing.)
    """

    namespace: str
    name: str
    uid: str
    node: str | None
    wake: bool


@dataclass(frozen=True, slots=True)
class LiftGate:
    """Tie a pod to a node and take our scheduling gate off it, in one request.

    Attributes:
        namespace: The pod's namespace.
        name: Its name.
        uid: Its identity.
        version: The resourceVersion that this was decided on.
        allocation_id: The allocation that the claim's status has for it.
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
    """Delete a pod if it is as it was when that was decided, so that its controller makes another.

    Attributes:
        namespace: The pod's namespace.
        name: Its name.
        uid: Its identity.
        version: Its resourceVersion: one that was bound meanwhile has another.
    """

    namespace: str
    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod; a disruption budget may refuse that.

    Attributes:
        regarding: The pod.
        why: What its claim violates, a sentence.
    """

    regarding: Regarding
    why: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Write an event about an object.

    Attributes:
        regarding: The object.
        type: How bad it is.
        reason: One CamelCase word.
        action: What was attempted, one CamelCase word.
        note: A sentence.
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
