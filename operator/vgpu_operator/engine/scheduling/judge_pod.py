"""Decides what to do with a pod whose situation has changed: queue it, block it, or wake it."""

from __future__ import annotations

from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.mirror import mirror
from vgpu_operator.engine.scheduling.gate import admit
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import requeue
from vgpu_operator.engine.scheduling.schedule_one import put_in_queue, refusal_of, spec_for
from vgpu_operator.engine.state import State


def judge_pod(state: State, uid: str) -> None:
    """Queue a pod, record why it is blocked, or requeue it if its claim already has devices."""
    pod = state.cache.pod(uid)
    if pod is None:
        return
    if pod.is_gated:
        admit(state, pod)
        return
    claim = state.cache.claim(pod.claim)
    if pod.is_of_scheduler:
        if _may_be_served(state, pod, claim):
            mirror(state, pod)
        return
    if not _may_be_served(state, pod, claim):
        return
    spec = _spec_for(state, pod, claim)
    if isinstance(spec, Refusal):
        state.pods.blocked[uid] = spec
        state.claims.look_at(pod.claim)
        return
    state.pods.blocked.pop(uid, None)
    if pod.is_running or claim is None or claim.status.allocation is None:
        put_in_queue(state, pod, spec)
    else:
        state.outbox.append(requeue(pod, claim.status.allocation.node_name, state))


def _may_be_served(state: State, pod: GPUPod, claim: VGPUClaim | None) -> bool:
    """Return True for a bound pod without an allocation, and for one whose claim blocked it."""
    if pod.wants_node:
        return pod.uid in state.pods.blocked
    if not pod.is_admitted and not state.ledger.devices(pod.pod.spec.node_name):
        return False  # beside HAMi: the pod runs on a node of HAMi's and requests nothing of us
    return (
        pod.is_running and not _has_its_allocation(pod, claim) and pod.uid not in state.pods.ended
    )


def _spec_for(state: State, pod: GPUPod, claim: VGPUClaim | None) -> VGPUClaimSpec | Refusal:
    """Return the spec of the pod's claim, or why the claim cannot serve it with any devices."""
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal) or claim is None:
        return spec
    return refusal_of(state, claim, pod) or spec


def _has_its_allocation(pod: GPUPod, claim: VGPUClaim | None) -> bool:
    """Return True if the claim is allocated for this pod on the pod's node."""
    if claim is None or claim.status.allocation is None or claim.status.reserved_for is None:
        return False
    here = claim.status.allocation.node_name == pod.pod.spec.node_name
    return here and claim.status.reserved_for.pod_uid == pod.uid
