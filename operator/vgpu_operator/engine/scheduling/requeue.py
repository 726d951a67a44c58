"""Makes kube-scheduler try a pod again.

kube-scheduler retries a pod that it has set aside only on events that it can observe; an annotation
of ours is one. Where it looks at a sample of the nodes, a nomination makes it try ours first.
"""

from __future__ import annotations

from vgpu_operator.engine.effects import Requeue
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.schedule_one import SAMPLED_FROM
from vgpu_operator.engine.state import State

REQUEUE_EVERY_S = 3.0
"""One pod is requeued at most once in so many seconds."""


def was_just_requeued(uid: str, state: State) -> bool:
    """Whether a pod is not to be requeued again yet."""
    at = state.pods.requeued.get(uid)
    return at is not None and state.now - at < REQUEUE_EVERY_S


def requeue(pod: GPUPod, node: str, state: State) -> Requeue:
    """Wake a pod, for room on a node."""
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
    """Clear the nomination of a pod whose place is gone: it would keep CPU from other pods."""
    if pod.uid not in state.pods.nominated:
        return None
    state.pods.nominated.discard(pod.uid)
    metadata = pod.pod.metadata
    return Requeue(metadata.namespace or "", metadata.name, pod.uid, node=None, wake=False)
