"""The claims the operator makes, and the words it puts into their status. Pure.

A status is written as a whole, computed from the object whose resourceVersion the write tests:
what others put there (the agent's conditions) is carried over, never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vgpu_api import conditions as condition_types
from vgpu_api import quantity
from vgpu_api.conditions import with_condition
from vgpu_api.core import Pod
from vgpu_api.names import API_VERSION, FINALIZER_IN_USE, pod_claim_name
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import (
    Allocation,
    Condition,
    ReservedFor,
    VGPUClaim,
    VGPUClaimSpec,
    VGPUClaimStatus,
)

_MESSAGE_KEPT = 4096
_CARDS_KEPT = 1024


def rfc3339(now: float) -> str:
    """Unix time as RFC 3339 with microseconds: it names an allocation, so it must be exact."""
    return (
        datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def summary(spec: VGPUClaimSpec) -> str:
    """The request in short: `1 × 8Gi, 50 %`; several requests joined by ` + `."""
    parts = []
    for request in spec.requests:
        if request.memory is not None:
            memory = quantity.format_mib(quantity.mib(request.memory))
        else:
            memory = f"{request.memory_percent or 100} % of memory"
        cores = f", {request.cores} %" if request.cores else ""
        parts.append(f"{request.count} × {memory}{cores}")
    return " + ".join(parts)[:256]


def claim_for_pod(pod: Pod, spec: VGPUClaimSpec) -> dict[str, Any]:
    """The claim of a dialect or template pod: owned by it, finalizer included."""
    return {
        "apiVersion": API_VERSION,
        "kind": "VGPUClaim",
        "metadata": {
            "name": pod_claim_name(pod.metadata.name, pod.metadata.uid),
            "namespace": pod.metadata.namespace,
            "finalizers": [FINALIZER_IN_USE],
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.metadata.name,
                    "uid": pod.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": spec.to_wire(),
    }


@dataclass(frozen=True, slots=True)
class Wish:
    """What a claim's status should say: an allocation, a refusal, or that it is free again."""

    allocation: Allocation | None
    reserved_for: ReservedFor | None
    state: str
    reason: str
    message: str

    @classmethod
    def allocated(cls, allocation: Allocation, reserved_for: ReservedFor | None) -> Wish:
        """These cards of this node."""
        count = len(allocation.devices)
        message = f"{count} {'card' if count == 1 else 'cards'} on {allocation.node_name}"
        return cls(allocation, reserved_for, "Allocated", "Allocated", message)

    @classmethod
    def refused(cls, *, reason: str, message: str) -> Wish:
        """Nothing fits, and why."""
        return cls(None, None, "Pending", reason, message)

    @classmethod
    def waiting(cls) -> Wish:
        """Nobody uses it yet."""
        return cls.refused(
            reason=Reason.WAITING_FOR_POD, message="decided when a pod that uses it is scheduled"
        )

    @classmethod
    def template(cls) -> Wish:
        """Copied for each pod that names it as its template, and never decided itself."""
        return cls.refused(
            reason=Reason.TEMPLATE, message="each pod that names it as its template gets a copy"
        )

    @classmethod
    def released(cls, message: str) -> Wish:
        """Its pod has ended; it holds nothing."""
        return cls(None, None, "Released", "Released", message)


def status_with(claim: VGPUClaim, wish: Wish, *, now: float) -> VGPUClaimStatus:
    """The claim's status with the wish in it and everybody else's conditions untouched."""
    when = rfc3339(now)
    generation = claim.metadata.generation or None
    yes = "True" if wish.allocation is not None else "False"
    kept = claim.status.conditions
    old = claim.status.allocation
    if (
        wish.allocation is None
        or old is None
        or old.allocated_time != wish.allocation.allocated_time
    ):
        # Prepared and Released speak of the allocation that was.
        kept = [c for c in kept if c.type != condition_types.PREPARED]
    for type_, status in ((condition_types.ALLOCATED, yes), (condition_types.READY, "False")):
        kept = with_condition(
            kept,
            Condition(
                type=type_,
                status="True" if status == "True" else "False",
                reason=wish.reason if type_ == condition_types.ALLOCATED else _ready_reason(wish),
                message=wish.message[:_MESSAGE_KEPT],
                last_transition_time=when,
                observed_generation=generation,
            ),
        )
    return claim.status.model_copy(
        update={
            "allocation": wish.allocation,
            "reserved_for": wish.reserved_for,
            "state": wish.state,
            "summary": summary(claim.spec),
            "cards": _cards(wish.allocation),
            "observed_generation": generation,
            "conditions": kept,
        }
    )


def with_devices(claim: VGPUClaim, allocation: Allocation) -> VGPUClaimStatus:
    """The status with other devices in the same allocation, and everything else as it is."""
    return claim.status.model_copy(update={"allocation": allocation, "cards": _cards(allocation)})


def _cards(allocation: Allocation | None) -> str:
    """The UUIDs for the printed column."""
    devices = allocation.devices if allocation is not None else ()
    return ",".join(device.uuid for device in devices)[:_CARDS_KEPT]


def _ready_reason(wish: Wish) -> str:
    return "WaitingForContainer" if wish.allocation is not None else wish.reason


def in_use(claim: VGPUClaim, *, now: float) -> VGPUClaimStatus:
    """The status of an allocated claim once the agent has the limits in place."""
    ready = Condition(
        type=condition_types.READY,
        status="True",
        reason="InUse",
        message="the limits are in place",
        last_transition_time=rfc3339(now),
        observed_generation=claim.metadata.generation or None,
    )
    return claim.status.model_copy(
        update={"state": "InUse", "conditions": with_condition(claim.status.conditions, ready)}
    )


def says(claim: VGPUClaim, wish: Wish) -> bool:
    """Whether the status says already what the wish wants said."""
    allocated = condition_types.find(claim.status.conditions, condition_types.ALLOCATED)
    return (
        claim.status.allocation == wish.allocation
        and claim.status.reserved_for == wish.reserved_for
        and allocated is not None
        and allocated.reason == wish.reason
        and allocated.message == wish.message[:_MESSAGE_KEPT]
        and allocated.observed_generation == (claim.metadata.generation or None)
    )


def was_released(claim: VGPUClaim) -> bool:
    """Whether the agent says that nothing of *this* allocation is in use any more."""
    released = condition_types.find(claim.status.conditions, condition_types.RELEASED)
    allocation = claim.status.allocation
    return (
        released is not None
        and released.status == "True"
        and allocation is not None
        and bool(allocation.allocated_time)
        and allocation.allocated_time in released.message
    )
