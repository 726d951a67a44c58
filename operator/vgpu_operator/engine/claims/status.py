"""The claims that the operator makes, and the statuses that it writes. Pure.

A status is written as a whole, computed from the version that the write tests: what others wrote
there (the agent's conditions and fields) is carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_api import conditions as condition_types
from vgpu_api import quantity
from vgpu_api.conditions import with_condition
from vgpu_api.core import Pod
from vgpu_api.names import API_VERSION, FINALIZER_IN_USE, pod_claim_name
from vgpu_api.reasons import Reason
from vgpu_api.resize import FIRST_GENERATION
from vgpu_api.v1alpha1 import (
    Allocation,
    Condition,
    KeptDevices,
    ReservedFor,
    VGPUClaim,
    VGPUClaimSpec,
    VGPUClaimStatus,
)
from vgpu_client.clock import rfc3339

RELEASED = "Released"
RESERVATION_EXPIRED = "ReservationExpired"
BEING_DELETED = "BeingDeleted"
_MESSAGE_KEPT = 4096
_DEVICES_SHOWN = 1024


def summary(spec: VGPUClaimSpec) -> str:
    """The request in short: `1 × 8Gi, 50 %`; several requests joined by ` + `."""
    parts = []
    for request in spec.requests:
        if request.mig_profile is not None:
            memory = f"MIG {request.mig_profile}"
        elif request.part_size is not None:
            memory = f"part of size {request.part_size}"
        elif request.part_memory is not None:
            memory = f"part with {request.part_memory} GiB or MiB"
        elif request.memory is not None:
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
        "spec": spec.to_short_wire(),
    }


@dataclass(frozen=True, slots=True)
class DesiredStatus:
    """The status that the operator wants for a claim: an allocation, a refusal, or a release.

    Attributes:
        pod: The pod that waits with the claim, where it is reserved for none.
        kept_for_others: In a refusal: the devices that earmarks keep from the claim.
        ready: As kstatus reads it: the operator has nothing left to do for the claim as it is.
    """

    allocation: Allocation | None
    reserved_for: ReservedFor | None
    state: str
    reason: str
    message: str
    pod: str = ""
    ready: bool = False
    kept_for_others: list[KeptDevices] | None = None

    @property
    def shown_pod(self) -> str:
        """The pod for the printed column; empty: none."""
        return self.pod if self.reserved_for is None else self.reserved_for.pod_name

    @classmethod
    def allocated(cls, allocation: Allocation, reserved_for: ReservedFor | None) -> DesiredStatus:
        """These devices of this node."""
        message = holding(allocation)
        return cls(allocation, reserved_for, "Allocated", "Allocated", message, ready=True)

    @classmethod
    def refused(
        cls, *, reason: str, message: str, pod: str = "", kept: Mapping[str, int] | None = None
    ) -> DesiredStatus:
        """Return the status of a claim that gets nothing.

        Args:
            reason: Of the condition.
            message: Of the condition.
            pod: The pod that waits with the claim.
            kept: The number of devices that earmarks keep from the claim, by node; None: that was
                not looked for.
        """
        devices = (
            None
            if kept is None
            else [KeptDevices(node_name=node, devices=count) for node, count in kept.items()]
        )
        return cls(None, None, "Pending", reason, message, pod, kept_for_others=devices)

    @classmethod
    def waiting(cls) -> DesiredStatus:
        """No pod uses it yet."""
        message = "decided when a pod that uses it is scheduled"
        return cls(None, None, "Pending", Reason.WAITING_FOR_POD, message, ready=True)

    @classmethod
    def template(cls) -> DesiredStatus:
        """Copied for each pod that names it as its template, and never decided itself."""
        message = "each pod that names it as its template gets a copy"
        return cls(None, None, "Pending", Reason.TEMPLATE, message, ready=True)

    @classmethod
    def expired(cls, pod: str) -> DesiredStatus:
        """Its pod was not bound in time, and waits again."""
        message = "its pod was not bound in time; decided anew then"
        return cls.refused(reason=RESERVATION_EXPIRED, message=message, pod=pod)

    @classmethod
    def released(cls, message: str) -> DesiredStatus:
        """Its pod has ended; it holds nothing."""
        return cls(None, None, RELEASED, RELEASED, message, ready=True)

    @classmethod
    def terminating(cls, status: VGPUClaimStatus, until: str) -> DesiredStatus:
        """It is being deleted, holds what it holds, and waits for something."""
        kept = "" if status.allocation is None else f"keeps {holding(status.allocation)} "
        message = f"{kept}{until}"
        return cls(status.allocation, status.reserved_for, "Terminating", BEING_DELETED, message)


def holding(allocation: Allocation) -> str:
    """What an allocation holds, in short: `2 GPUs on node-1`."""
    count = len(allocation.devices)
    return f"{count} {'GPU' if count == 1 else 'GPUs'} on {allocation.node_name}"


def status_with(
    claim: VGPUClaim | None, spec: VGPUClaimSpec, desired: DesiredStatus, *, unix: float
) -> VGPUClaimStatus:
    """The claim's status with what is desired, and everybody else's words untouched.

    Args:
        claim: The version that will be written over; None: it is made with this write.
        spec: Its spec.
        desired: The status to write.
        unix: Unix time.
    """
    before = VGPUClaimStatus(conditions=[]) if claim is None else claim.status
    generation = FIRST_GENERATION if claim is None else claim.metadata.generation or None
    when = rfc3339(unix)
    kept = before.conditions
    old = before.allocation
    if desired.allocation is None or old is None or old.id != desired.allocation.id:
        # These are about the former allocation.
        former = (condition_types.PREPARED, condition_types.RESIZED, condition_types.VIOLATED)
        kept = [c for c in kept if c.type not in former]
    for type_, holds, message in (
        (condition_types.ALLOCATED, desired.allocation is not None, desired.message),
        (condition_types.READY, desired.ready, ""),
    ):
        kept = with_condition(
            kept,
            Condition(
                type=type_,
                status="True" if holds else "False",
                reason=desired.reason,
                message=message[:_MESSAGE_KEPT],
                last_transition_time=when,
                observed_generation=generation,
            ),
        )
    return before.model_copy(
        update={
            "allocation": desired.allocation,
            "reserved_for": desired.reserved_for,
            "state": desired.state,
            "summary": summary(spec),
            "cards": _shown(desired.allocation),
            "pod": desired.shown_pod,
            "kept_for_others": desired.kept_for_others,
            "observed_generation": generation,
            "conditions": kept,
        }
    )


def with_devices(claim: VGPUClaim, allocation: Allocation) -> VGPUClaimStatus:
    """The status with other devices in the same allocation, and everything else as it is."""
    return observed(claim).model_copy(
        update={"allocation": allocation, "cards": _shown(allocation)}
    )


def observed(claim: VGPUClaim) -> VGPUClaimStatus:
    """The status with the claim's generation as the one that was read, and all else as it is."""
    generation = claim.metadata.generation or None
    ours = (condition_types.ALLOCATED, condition_types.READY)
    return claim.status.model_copy(
        update={
            "summary": summary(claim.spec),
            "observed_generation": generation,
            "conditions": [
                c.model_copy(update={"observed_generation": generation}) if c.type in ours else c
                for c in claim.status.conditions
            ],
        }
    )


def shows(claim: VGPUClaim, desired: DesiredStatus) -> bool:
    """Return True if the status already has what is desired."""
    status = claim.status
    allocated = condition_types.find(status.conditions, condition_types.ALLOCATED)
    written = status.allocation, status.reserved_for, status.pod, status.kept_for_others
    wanted = desired.allocation, desired.reserved_for, desired.shown_pod, desired.kept_for_others
    return (
        written == wanted
        and allocated is not None
        and allocated.reason == desired.reason
        and allocated.message == desired.message[:_MESSAGE_KEPT]
        and allocated.observed_generation == (claim.metadata.generation or None)
    )


def refused_reason(claim: VGPUClaim) -> str | None:
    """The reason of the claim's refusal in its status; None where it was not, or waits no more."""
    if claim.metadata.deletion_timestamp is not None:
        return None
    allocated = condition_types.find(claim.status.conditions, condition_types.ALLOCATED)
    if claim.status.allocation is not None or allocated is None or allocated.status == "True":
        return None
    others = (Reason.WAITING_FOR_POD, Reason.TEMPLATE, RELEASED, RESERVATION_EXPIRED)
    return None if allocated.reason in others else allocated.reason


def _shown(allocation: Allocation | None) -> str:
    """The UUIDs for the printed column."""
    devices = allocation.devices if allocation is not None else ()
    return ",".join(device.uuid for device in devices)[:_DEVICES_SHOWN]
