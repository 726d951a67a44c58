"""Builds the claims that the operator creates and the statuses that it writes. Pure functions.

Each status is complete and computed from the version that the write tests, so the conditions and
fields that the agent wrote are carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_api import conditions as condition_types
from vgpu_api import quantity
from vgpu_api.conditions import with_condition
from vgpu_api.core import Pod
from vgpu_api.names import (
    ANNOTATION_SCHEDULER_CLAIM,
    API_VERSION,
    FINALIZER_IN_USE,
    pod_claim_name,
)
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
    """Summarize the requests, as in `1 × 8Gi, 50 %`, joined by ` + `."""
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


def claim_for_pod(pod: Pod, spec: VGPUClaimSpec, *, entry: str = "") -> dict[str, Any]:
    """Return the claim to create for a pod, owned by the pod and with our finalizer.

    Args:
        pod: The pod.
        spec: The claim's spec.
        entry: The entry of the pod's `resourceClaims` that kube-scheduler allocates, if any.
    """
    marks = {"annotations": {ANNOTATION_SCHEDULER_CLAIM: entry}} if entry else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "VGPUClaim",
        "metadata": {
            "name": pod_claim_name(pod.metadata.name, pod.metadata.uid),
            "namespace": pod.metadata.namespace,
            **marks,
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
        allocation: The claim's allocation; None if it has none.
        reserved_for: The pod that may use the allocation.
        state: The value of `status.state`.
        reason: The reason of the conditions.
        message: The message of the condition Allocated.
        pod: The pod that waits for the claim, if the claim is not reserved.
        ready: The condition Ready as kstatus reads it: the operator has nothing left to do.
        kept_for_others: In a refusal, the devices that earmarks keep from the claim.
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
        """Return the pod for the printed column; empty if there is none."""
        return self.pod if self.reserved_for is None else self.reserved_for.pod_name

    @classmethod
    def allocated(cls, allocation: Allocation, reserved_for: ReservedFor | None) -> DesiredStatus:
        """Return the status of a claim that has an allocation."""
        message = holding(allocation)
        return cls(allocation, reserved_for, "Allocated", "Allocated", message, ready=True)

    @classmethod
    def refused(
        cls, *, reason: str, message: str, pod: str = "", kept: Mapping[str, int] | None = None
    ) -> DesiredStatus:
        """Return the status of a claim that gets nothing.

        Args:
            reason: The reason of the conditions.
            message: The message of the condition Allocated.
            pod: The pod that waits for the claim.
            kept: By node, how many devices earmarks keep from the claim; None if not computed.
        """
        devices = (
            None
            if kept is None
            else [KeptDevices(node_name=node, devices=count) for node, count in kept.items()]
        )
        return cls(None, None, "Pending", reason, message, pod, kept_for_others=devices)

    @classmethod
    def waiting(cls) -> DesiredStatus:
        """Return the status of a claim that no pod uses yet."""
        message = "decided when a pod that uses it is scheduled"
        return cls(None, None, "Pending", Reason.WAITING_FOR_POD, message, ready=True)

    @classmethod
    def template(cls) -> DesiredStatus:
        """Return the status of a template, which is copied for pods and never decided itself."""
        message = "each pod that names it as its template gets a copy"
        return cls(None, None, "Pending", Reason.TEMPLATE, message, ready=True)

    @classmethod
    def expired(cls, pod: str) -> DesiredStatus:
        """Return the status of a claim whose pod was not bound in time and which waits again."""
        message = "its pod was not bound in time; decided anew then"
        return cls.refused(reason=RESERVATION_EXPIRED, message=message, pod=pod)

    @classmethod
    def released(cls, message: str) -> DesiredStatus:
        """Return the status of a claim whose pod has ended and which holds nothing."""
        return cls(None, None, RELEASED, RELEASED, message, ready=True)

    @classmethod
    def terminating(cls, status: VGPUClaimStatus, until: str) -> DesiredStatus:
        """Return the status of a claim that is being deleted but still holds its devices."""
        kept = "" if status.allocation is None else f"keeps {holding(status.allocation)} "
        message = f"{kept}{until}"
        return cls(status.allocation, status.reserved_for, "Terminating", BEING_DELETED, message)


def holding(allocation: Allocation) -> str:
    """Summarize an allocation, as in `2 GPUs on node-1`."""
    count = len(allocation.devices)
    return f"{count} {'GPU' if count == 1 else 'GPUs'} on {allocation.node_name}"


def status_with(
    claim: VGPUClaim | None, spec: VGPUClaimSpec, desired: DesiredStatus, *, unix: float
) -> VGPUClaimStatus:
    """Return the claim's status with the desired values, keeping the fields of other writers.

    Args:
        claim: The version that will be overwritten; None if this write creates the claim.
        spec: The claim's spec.
        desired: The values to write.
        unix: The current Unix time.
    """
    before = VGPUClaimStatus(conditions=[]) if claim is None else claim.status
    generation = FIRST_GENERATION if claim is None else claim.metadata.generation or None
    when = rfc3339(unix)
    kept = before.conditions
    old = before.allocation
    if desired.allocation is None or old is None or old.id != desired.allocation.id:
        # These conditions describe the former allocation.
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
    """Return the status with the changed allocation and all other fields unchanged."""
    return observed(claim).model_copy(
        update={"allocation": allocation, "cards": _shown(allocation)}
    )


def observed(claim: VGPUClaim) -> VGPUClaimStatus:
    """Return the status with updated summary and observed generation, and the rest unchanged."""
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
    """Return True if the status already has the desired values."""
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
    """Return the reason in the claim's status if it is refused now, or None."""
    if claim.metadata.deletion_timestamp is not None:
        return None
    allocated = condition_types.find(claim.status.conditions, condition_types.ALLOCATED)
    if claim.status.allocation is not None or allocated is None or allocated.status == "True":
        return None
    others = (Reason.WAITING_FOR_POD, Reason.TEMPLATE, RELEASED, RESERVATION_EXPIRED)
    return None if allocated.reason in others else allocated.reason


def _shown(allocation: Allocation | None) -> str:
    """Return the device UUIDs for the printed column."""
    devices = allocation.devices if allocation is not None else ()
    return ",".join(device.uuid for device in devices)[:_DEVICES_SHOWN]
