"""Requeue: makes kube-scheduler try a pod again.

kube-scheduler retries an unschedulable pod only on events that it can observe, so we change an
annotation of the pod. In a large cluster it checks only a sample of the nodes; there we also
nominate our node, which it then tries first.
"""

from __future__ import annotations

from vgpu_operator.engine.effects import Requeue
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.schedule_one import SAMPLED_FROM
from vgpu_operator.engine.state import State

REQUEUE_EVERY_S = 3.0
"""The least time between two requeues of one pod."""


def was_just_requeued(uid: str, state: State) -> bool:
    """Return True if it is too early to requeue a pod again."""
    at = state.pods.requeued.get(uid)
    return at is not None and state.now - at < REQUEUE_EVERY_S


def requeue(pod: GPUPod, node: str, state: State) -> Requeue:
    """Return the effect that wakes a pod because a node has free capacity."""
    state.pods.requeued[pod.uid] = state.now
    allowed = state.ledger.filters.rules.of(pod.rules).allowed
    nodes = len(state.cache.nodes) if allowed < 0 else allowed.bit_count()
    if nodes >= SAMPLED_FROM:
        state.pods.nominated.add(pod.uid)
    metadata = pod.pod.metadata
    return Requeue(
        namespace=metadata.namespace or "",
        name=metadata.name,
        uid=pod.uid,
        node=node if nodes >= SAMPLED_FROM else "",
        wake=True,
    )


def clear_nomination(pod: GPUPod, state: State) -> Requeue | None:
    """Return the effect that clears the nomination of a pod whose place is gone, if it has one.

    kube-scheduler would otherwise keep the pod's CPU on that node from other pods.
    """
    if pod.uid not in state.pods.nominated:
        return None
    state.pods.nominated.discard(pod.uid)
    metadata = pod.pod.metadata
    return Requeue(metadata.namespace or "", metadata.name, pod.uid, node=None, wake=False)
