"""Refuses, in Claims mode, pods that no ResourceClaim of ours can serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgpu_api import dra
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.names import ANNOTATION_SCHEDULER_CLAIM
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.vendors import kind_of
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects import PodDemand
from vgpu_operator.dialects.resource_claims import (
    claim_of_pod,
    entry_of,
    is_of_scheduler,
    requests_of,
)

_KUEUE_GATE = "kueue.x-k8s.io/admission"
_KUEUE_MANAGED = "kueue.x-k8s.io/managed"


def refuse_without_claim(
    pod: Pod, demand: PodDemand, claim: VGPUClaim | None, config: ClusterConfig
) -> None:
    """In Claims mode, refuse pods of Kueue, devices of other vendors, and too many devices.

    Args:
        pod: The pod.
        demand: The devices that it asks for.
        claim: The VGPUClaim that it names, if that exists.
        config: The configuration, with the mode.

    Raises:
        BadInput: Names the field, and what would be right.
    """
    if config.scheduling.mode != "Claims":
        _refuse_note(pod)
        return
    _refuse_of_kueue(pod)
    spec = demand.spec if claim is None else claim.spec
    requests = [] if spec is None else spec.requests
    for request in requests:
        if kind_of(request.vendor) is not None:
            raise BadInput.forbidden(
                "spec.containers",
                f"container {request.name} asks for devices of {request.vendor}, which their own "
                "device plugin allocates; scheduling.mode Claims serves NVIDIA's GPUs alone, the "
                "modes Extender and Gate serve all",
            )
    _refuse_beside_claim(pod, [request.name for request in requests])
    count = sum(request.count for request in requests)
    if count > dra.MAX_RESULTS:
        raise BadInput.too_many(
            "spec.containers", count, dra.MAX_RESULTS, "devices in one ResourceClaim"
        )
    entries = (entry for entry in pod.spec.resource_claims if entry.name == dra.POD_ENTRY)
    if any(not dra.is_made_name(entry.resource_claim_name) for entry in entries):
        raise BadInput(
            field="spec.resourceClaims",
            value=dra.POD_ENTRY,
            fault=Fault.DUPLICATE,
            detail="admission adds an entry of this name: give yours another",
        )


def _refuse_note(pod: Pod) -> None:
    """Refuse a note that only admission in Claims mode writes."""
    if is_of_scheduler(pod):
        raise BadInput.forbidden(
            f"metadata.annotations[{ANNOTATION_SCHEDULER_CLAIM}]",
            "admission writes it, and in scheduling.mode Claims alone; leave it out",
        )


def _refuse_beside_claim(pod: Pod, containers: Sequence[str]) -> None:
    """Refuse a container that asks by resources in a pod that names a ResourceClaim for GPUs."""
    name, uses = claim_of_pod(pod), requests_of(pod)
    if entry_of(pod) == dra.POD_ENTRY or not (name or is_of_scheduler(pod)):
        return
    for container in containers:
        if container not in uses:
            raise BadInput.forbidden(
                "spec.containers",
                f"container {container} asks by resources, and the GPUs of the pod come through "
                f"ResourceClaim {name or entry_of(pod)}: write a request for it there",
            )


def resource_claim_named_by(raw_pod: dict[str, Any]) -> str:
    """Return the ResourceClaim of ours that a pod names before admission has seen it, or nothing.

    Raises:
        Denied: The pod is invalid, or names one in an entry that admission never writes.
    """
    with denying():
        pod = read_pod(raw_pod)
        for index, entry in enumerate(pod.spec.resource_claims):
            name = entry.resource_claim_name
            if dra.is_made_name(name) and entry.name != dra.POD_ENTRY:
                raise BadInput(
                    field=f"spec.resourceClaims[{index}].resourceClaimName",
                    value=name,
                    detail="the operator makes the ResourceClaims with names of this form, each "
                    f"for one pod: leave out the entry {entry.name}, admission adds one",
                )
        return claim_of_pod(pod)


def copied_claim(name: str) -> str:
    """Return the refusal of a pod that names the ResourceClaim of another."""
    refusal = BadInput(
        field="spec.resourceClaims",
        value=name,
        detail=f"belongs to another pod: leave out the entry {dra.POD_ENTRY}, admission adds one",
    )
    return str(refusal)


def _refuse_of_kueue(pod: Pod) -> None:
    """Refuse a pod that Kueue itself admits, because Kueue refuses pods that name a ResourceClaim.

    The pods of a Job are created after Kueue has admitted the Job, so they pass.
    """
    if any(gate.get("name") == _KUEUE_GATE for gate in pod.spec.scheduling_gates):
        field = "spec.schedulingGates"
    elif pod.metadata.labels.get(_KUEUE_MANAGED) == "true":
        field = f"metadata.labels[{_KUEUE_MANAGED}]"
    else:
        return
    raise BadInput.forbidden(
        field,
        "Kueue admits no pod that names a ResourceClaim, and in scheduling.mode Claims every pod "
        "with GPUs does; queue it as a Job, or use the mode Extender or Gate",
    )
