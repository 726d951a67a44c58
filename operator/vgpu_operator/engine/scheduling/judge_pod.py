"""Judges where a pod whose situation has changed belongs."""

from __future__ import annotations

from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.gate import admit
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import requeue
from vgpu_operator.engine.scheduling.schedule_one import put_in_queue, refusal_of, spec_for
from vgpu_operator.engine.state import State


def judge_pod(state: State, uid: str) -> None:
    """Put a pod whose situation has changed where it belongs: among those that wait, or nowhere."""
    pod = state.cache.pod(uid)
    if pod is None:
        return
    if pod.is_gated:
        admit(state, pod)
        return
    claim = state.cache.claim(pod.claim)
    lacks_allocation = pod.is_running and not _has_its_allocation(pod, claim)
    lacks_allocation = lacks_allocation and uid not in state.pods.ended
    if not lacks_allocation and not (pod.wants_node and uid in state.pods.blocked):
        return
    spec = spec_for(state, pod)
    refusal = spec if isinstance(spec, Refusal) else None
    if refusal is None and claim is not None:
        refusal = refusal_of(state, claim, pod)
    if refusal is not None or isinstance(spec, Refusal):
        if refusal is not None:
            state.pods.blocked[uid] = refusal
        state.claims.look_at(pod.claim)
        return
    state.pods.blocked.pop(uid, None)
    if pod.is_running or claim is None or claim.status.allocation is None:
        put_in_queue(state, pod, spec)
    else:
        state.outbox.append(requeue(pod, claim.status.allocation.node_name, state))


def _has_its_allocation(pod: GPUPod, claim: VGPUClaim | None) -> bool:
    """Whether the claim is allocated on the pod's node, for this pod."""
    if claim is None or claim.status.allocation is None or claim.status.reserved_for is None:
        return False
    here = claim.status.allocation.node_name == pod.pod.spec.node_name
    return here and claim.status.reserved_for.pod_uid == pod.uid
