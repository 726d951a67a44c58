"""Hands a decided pod over to kube-scheduler: its ResourceClaim is made and allocated.

    waiting ──reserved, the VGPUClaim written──► decided ──ResourceClaim allocated──► handed over
       ▲                                            ▲                                     │
       └──────── the node is avoided for a time ────┴─── kube-scheduler took it away ─────┘

The VGPUClaim is the truth, and is written first. Whatever the ResourceClaim says, the agent
prepares what the VGPUClaim gives the pod. So a write that lands late, or one of somebody else,
gives nobody a device. From the allocation on kube-scheduler may bind the pod at any time, to this
node only. If it finds no room there, it takes the allocation away, or the operator does so after
some seconds; then another node is chosen. The pod lives on, because nothing in its spec names the
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api import dra
from vgpu_api.core import ResourceClaim
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_POD_UID, FINALIZER_IN_USE
from vgpu_api.reasons import Reason
from vgpu_api.resources import RESOURCE_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_client.clock import rfc3339
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.status import with_devices
from vgpu_operator.engine.claims.writes import write
from vgpu_operator.engine.effects import Effect, RecordEvent, Requeue, WriteResourceClaim
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.known import ResourceKey, is_for, resource_claim_of
from vgpu_operator.engine.resource_claims.named import refusal_of_named, requests_for
from vgpu_operator.engine.scheduling.avoidance import turn_away
from vgpu_operator.engine.scheduling.places import lapse
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import clear_nomination
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.state import State

_AVOID_S = 1.0
"""Seconds for which a pod avoids a node that kube-scheduler rejected at first; it doubles each
time. kube-scheduler would reject the same node thirty times a second."""
_AVOID_AT_MOST_S = 30.0
_ACTION = "Scheduling"


def refusal_of_claim(state: State, pod: GPUPod) -> Refusal | None:
    """Return why the pod's ResourceClaim cannot be allocated for it now; None if it can.

    The pods of a copied manifest would share one, or somebody else has made one of its name.
    """
    if not dra.is_made_name(pod.resource_claim):
        return refusal_of_named(state, pod)
    found = state.cache.resource_claims.get(resource_claim_of(pod))
    if found is None or is_for(found, pod.uid):
        return None
    text = (
        f"ResourceClaim {pod.resource_claim} exists and is not this pod's own; create the pod "
        f"without the entry {dra.POD_ENTRY} of spec.resourceClaims"
    )
    return Refusal(Reason.CLAIM_NOT_OWNED, text)


def hand_over(state: State, pod: GPUPod, claim: VGPUClaim, held: Reservation) -> Effect | None:
    """Return the write that allocates the ResourceClaim of a pod whose claim is written."""
    key = resource_claim_of(pod)
    if _is_busy(state, key):
        return None
    if refusal_of_claim(state, pod) is not None:  # it came while this pod was decided
        held.until = state.now  # the pod is decided again, and told
        return None
    held.begin_bind(pod.reserved_for)
    if not held.is_written:  # the status of an Immediate claim must name the pod first
        held.bind_failed(state.now)
        state.claims.look_at(held.key)
        return None
    state.gates.lifting.add(pod.uid)
    state.pods.nominated.add(pod.uid)
    metadata = pod.pod.metadata
    # kube-scheduler tries the nominated node first; otherwise it filters all of them, although the
    # ResourceClaim allows only one, and nominates the node itself.
    nominate = Requeue(metadata.namespace or "", metadata.name, pod.uid, node=held.node, wake=False)
    return _allocate(state, pod, claim, nominate=nominate)


def hand_over_bound(claim: VGPUClaim, state: State) -> Effect | None:
    """Allocate the ResourceClaim of a pod that has its node already, as if by `spec.nodeName`."""
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if allocation is None or pod is None or not pod.resource_claim or not pod.is_running:
        return None
    if pod.is_of_scheduler or pod.is_handed_over or pod.pod.spec.node_name != allocation.node_name:
        return None
    if _is_busy(state, resource_claim_of(pod)) or _is_too_early(state, pod):
        return None
    if refusal_of_claim(state, pod) is not None:
        return None
    return _allocate(state, pod, claim)


def name_resource_claim(claim: VGPUClaim, state: State) -> Effect | None:
    """Write the UID of the ResourceClaim into the allocation that it shows.

    The agent prepares no other for it, and knows by it which devices are given so. It is known only
    after the decision was written, so this is one more write; binding the pod takes longer.
    """
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if allocation is None or pod is None or not pod.resource_claim:
        return None
    uid = state.cache.resource_claim_uid(pod)
    if not uid or allocation.resource_claim_uid == uid:
        return None
    return write(
        claim, with_devices(claim, allocation.model_copy(update={"resource_claim_uid": uid}))
    )


def _is_busy(state: State, key: ResourceKey) -> bool:
    """Return True if a ResourceClaim is being written, or is going away."""
    found = state.cache.resource_claims.get(key)
    is_going = found is not None and found.metadata.deletion_timestamp is not None
    return is_going or key in state.resource_claims.writing


def _is_too_early(state: State, pod: GPUPod) -> bool:
    not_before = state.gates.not_before.get(pod.uid, 0.0)
    if not_before > state.now:
        state.claims.timers.set(pod.claim, not_before)
    return not_before > state.now


def _allocate(
    state: State, pod: GPUPod, claim: VGPUClaim, *, nominate: Requeue | None = None
) -> WriteResourceClaim:
    key, allocation = resource_claim_of(pod), claim.status.allocation
    assert allocation is not None
    found, requests = state.cache.resource_claims.get(key), requests_for(state, pod)
    effect = WriteResourceClaim(
        namespace=key.namespace,
        name=key.name,
        purpose="allocate",
        version="" if found is None else found.metadata.resource_version,
        pod_uid=pod.uid,
        claim=key_of(claim),
        allocation_id=allocation.id,
        create=_made(pod, claim, requests) if found is None else None,
        finalizers=None if found is None or _is_marked(found, pod, claim) else _others(found),
        allocation=_results(state, allocation, requests),
        is_status_empty=found is None or found.status.is_empty,
        nominate=nominate,
    )
    state.resource_claims.writing[key] = effect
    return effect


def _is_marked(found: ResourceClaim, pod: GPUPod, claim: VGPUClaim) -> bool:
    """Return True if a ResourceClaim has our finalizer and names the pod and its VGPUClaim."""
    is_named = found.metadata.annotations.get(ANNOTATION_CLAIM) == claim.metadata.name
    return FINALIZER_IN_USE in found.metadata.finalizers and is_named and is_for(found, pod.uid)


def _others(found: ResourceClaim) -> tuple[str, ...]:
    return tuple(each for each in found.metadata.finalizers if each != FINALIZER_IN_USE)


def _made(pod: GPUPod, claim: VGPUClaim, by_container: Mapping[str, str]) -> dict[str, Any]:
    """Return the ResourceClaim of a pod, owned by the pod, with one request per container."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.pod.metadata.name,
        "uid": pod.uid,
        "controller": True,
    }
    allocation = claim.status.allocation
    devices = [] if allocation is None else allocation.devices
    counts: dict[str, int] = {}
    for device in devices:
        container = _container_of(device, by_container)
        counts[container] = counts.get(container, 0) + 1
    requests = [
        {"name": request, "exactly": {"deviceClassName": dra.CLASS, "count": count}}
        for request, count in counts.items()
    ]
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "namespace": pod.pod.metadata.namespace or "",
            "name": pod.resource_claim,
            "ownerReferences": [owner],
            "finalizers": [FINALIZER_IN_USE],
            "annotations": {ANNOTATION_CLAIM: claim.metadata.name, ANNOTATION_POD_UID: pod.uid},
        },
        "spec": {"devices": {"requests": requests}},
    }


def _results(state: State, allocation: Allocation, requests: Mapping[str, str]) -> dict[str, Any]:
    """Return the allocation as a ResourceClaim shows it, for one node.

    Args:
        state: The engine's state.
        allocation: The allocation.
        requests: The request of the ResourceClaim by container.
    """
    node = {"key": "metadata.name", "operator": "In", "values": [allocation.node_name]}
    return {
        # Without the time kube-scheduler would add it, and the API server refuses that change.
        "allocationTimestamp": rfc3339(state.unix),
        "devices": {
            "results": [_result(allocation, each, requests) for each in allocation.devices]
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
    }


def _container_of(device: AllocatedDevice, by_container: Mapping[str, str]) -> str:
    """Return the container that gets a device; the sole request of a claim may leave it out."""
    return device.request or next(iter(by_container), "")


def _result(
    allocation: Allocation, device: AllocatedDevice, requests: Mapping[str, str]
) -> dict[str, Any]:
    container = _container_of(device, requests)
    return {
        "request": requests.get(container, container),
        "driver": dra.DRIVER,
        "pool": allocation.node_name,
        "device": dra.device_name(device.uuid),
        "shareID": dra.share_id(allocation.id, container),
        "consumedCapacity": {"memory": device.memory, "cores": str(device.cores)},
    }


def shows(found: ResourceClaim, allocation: Allocation) -> bool:
    """Return True if a ResourceClaim is allocated as the VGPUClaim's allocation says."""
    # The request of a claim of ours has its container's name, which the VGPUClaim may leave out.
    sole = next((each.request for each in found.results), "")
    expected = {
        (dra.device_name(each.uuid), dra.share_id(allocation.id, each.request or sole))
        for each in allocation.devices
    }
    shown = {(each.device, each.share_id) for each in found.results}
    # The API server drops share IDs if the feature gate is off.
    if not any(share for _, share in shown):
        expected = {(device, "") for device, _ in expected}
    return shown == expected and all(each.pool == allocation.node_name for each in found.results)


# Taken away again.


def take_away(state: State, pod: GPUPod, *, is_rejection: bool) -> Effect | None:
    """Return the write that removes the allocation of an unbound pod's ResourceClaim.

    The API server refuses it if kube-scheduler has since reserved the claim for the pod.
    """
    key = resource_claim_of(pod)
    found = state.cache.resource_claims.get(key)
    if found is None or found.status.allocation is None or found.status.reserved_for:
        return None
    if _is_busy(state, key) or _is_too_early(state, pod):
        return None
    effect = WriteResourceClaim(
        namespace=key.namespace,
        name=key.name,
        purpose="reject" if is_rejection else "deallocate",
        version=found.metadata.resource_version,
        pod_uid=pod.uid,
        claim=pod.claim,
    )
    state.resource_claims.writing[key] = effect
    return effect


def note_taken_away(
    state: State, pod: GPUPod, before: ResourceClaim, *, is_rejection: bool
) -> None:
    """Decide an unbound pod again whose ResourceClaim has lost its allocation, or is gone.

    Args:
        state: The engine's state.
        pod: The pod.
        before: The ResourceClaim as it was allocated.
        is_rejection: True if the node has no room for the pod. Then the pod avoids the node for a
            time, and its devices are free for others.
    """
    held = state.reservations.of_pod(pod.uid)
    if not is_rejection:
        if held is not None and not held.is_tentative:
            held.taken_away(state.now)
        state.claims.look_at(pod.claim)
        return
    node = next((each.pool for each in before.results), "")
    turn_away(state, pod.uid, node, first_s=_AVOID_S, at_most_s=_AVOID_AT_MOST_S)
    claim = state.cache.claim(pod.claim)
    allocation = None if claim is None else claim.status.allocation
    if held is not None and not held.is_tentative:
        lapse(state, held)
    elif allocation is not None:
        state.claims.expired[pod.claim] = allocation.id
    cleared = clear_nomination(pod, state)
    if cleared is not None:
        state.outbox.append(cleared)
    note = f"kube-scheduler finds no room for the pod on {node}, where its devices were"
    state.outbox.append(RecordEvent(pod.regarding, "Warning", "NodeRejected", _ACTION, note))
    state.claims.look_at(pod.claim)
