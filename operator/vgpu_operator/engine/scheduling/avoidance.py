"""Keeps a controller's pods away from a node that turned one of them away.

A node can turn a pod away although its devices are free. The kubelet rejects the pod because it
cannot align NUMA nodes, does not allow a sysctl, or has no running device plugin. In Gate mode,
kube-scheduler may find no room on the node. The controller then makes another pod at once, and the
same node would be the best one again, as fast as the API server can create pods. So the
controller's next pods go elsewhere for a time.

* This is a hard rule, not a preference: if there is no other node, the pods wait. With a
  preference they would fail in a loop whenever the other nodes are full. A lone node is tried
  again after 30 s at first, then after twice as long each time, up to ten minutes.
* It applies to one controller only; the pods of others may ask for something the node can give.
* Pods that were already on their way when the node was marked do not count again.
* It is forgotten once a pod of the controller starts there, or ten minutes after it has ended.
* A pod without a controller is not replaced, so there is no loop to stop. It is recorded under its
  own UID all the same, so that the event on the node is written.
* A new leader that was a standby has seen all of this. After a restart of all replicas each loop
  costs one more failure.
"""

from __future__ import annotations

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.schedule_one import controller_of, put_in_queue, spec_for
from vgpu_operator.engine.state import Avoided, State

AVOID_S = 30.0
"""Seconds for which a controller's pods avoid a node at first; it doubles each time."""
AVOID_AT_MOST_S = 600.0
CONTROLLERS = 1000
"""Controllers remembered. Beyond that the oldest is forgotten, which costs it one more failure."""
_REVIEW_EVERY_S = 1.0
_SHOWN = 300
"""Characters of a kubelet's message that the event repeats."""


def turn_away(
    state: State,
    controller: str,
    node: str,
    rejection: str = "",
    *,
    first_s: float = AVOID_S,
    at_most_s: float = AVOID_AT_MOST_S,
) -> None:
    """Make the pods of a controller avoid a node, unless they already do.

    Args:
        state: The engine's state.
        controller: The controller's UID, or that of a single pod.
        node: The node's name.
        rejection: The kubelet's message; empty if kube-scheduler found no room there.
        first_s: How long to avoid the node the first time, in seconds; doubled each further time.
        at_most_s: The longest time to avoid the node, in seconds.
    """
    known = state.avoidance.of.setdefault(controller, {})
    before = known.get(node)
    if before is not None and before.until > state.now:
        return  # the pod was already on its way when the node was marked
    times = 1 if before is None else before.times + 1
    until = state.now + min(first_s * 2 ** min(times - 1, 16), at_most_s)
    known[node] = Avoided(until, times, rejection)
    while len(state.avoidance.of) > CONTROLLERS:
        del state.avoidance.of[next(iter(state.avoidance.of))]


def note_phase(state: State, before: Pod, pod: GPUPod) -> None:
    """Record that a node rejected the pod, or let it start.

    Only a change of phase counts: a pod that was running before says nothing about the node now.
    """
    controller, node = controller_of(pod), pod.pod.spec.node_name
    if pod.pod.has_started:
        known = state.avoidance.of.get(controller, {})
        if node in known and not before.has_started:
            del known[node]
            for uid in state.avoidance.waiting:
                state.avoidance.waiting[uid] = state.now
    elif pod.pod.is_rejected and not before.is_terminal:
        metadata, status = pod.pod.metadata, pod.pod.status
        said = f"{status.reason}: {status.message}"[:_SHOWN]
        turn_away(state, controller, node, f"{metadata.namespace}/{metadata.name}: {said}")


def review_avoidance(state: State) -> None:
    """Forget old entries, record events about new ones, and retry pods whose time is over."""
    work = state.avoidance
    if state.now < work.review_at or not (work.of or work.waiting):
        return
    work.review_at = state.now + _REVIEW_EVERY_S
    long_ago = state.now - AVOID_AT_MOST_S
    for controller, nodes in list(work.of.items()):
        kept = {name: each for name, each in nodes.items() if each.until > long_ago}
        if kept:
            work.of[controller] = kept
        else:
            del work.of[controller]
    _tell(state)
    for uid, until in list(work.waiting.items()):
        if until <= state.now:
            del work.waiting[uid]
            _try_again(state, uid)


def _tell(state: State) -> None:
    """Record an event on each node that has rejected pods since the last review."""
    news: dict[str, list[Avoided]] = {}
    for nodes in state.avoidance.of.values():
        for name, avoided in nodes.items():
            if avoided.rejection and not avoided.is_told:
                avoided.is_told = True
                news.setdefault(name, []).append(avoided)
    for name, found in news.items():
        node = state.cache.nodes.get(name)
        if node is None:
            continue
        rest = f", and pods of {len(found) - 1} more controllers" if len(found) > 1 else ""
        wait_s = round(found[0].until - state.now)
        note = (
            f"the kubelet rejected pod {found[0].rejection}{rest}; "
            f"pods of the same controller go to other nodes for {wait_s} s"
        )
        state.outbox.append(node_event(node, "PodRejected", note))


def _try_again(state: State, uid: str) -> None:
    """Judge a pod again once it may use one of the nodes it avoided."""
    pod = state.cache.pod(uid)
    if pod is None:
        return
    waiter = state.queue.get(pod.claim)
    if pod.is_gated or uid in state.pods.blocked:
        state.pods.due[uid] = None
    elif waiter is not None and waiter.pod_uid == uid and pod.wants_node:
        spec = spec_for(state, pod)
        if isinstance(spec, VGPUClaimSpec):
            put_in_queue(state, pod, spec, ruled_out=waiter.kind.ruled_out)
