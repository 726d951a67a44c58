"""Keeps a controller's pods away from a node that turned one of them away.

A node can refuse a pod although its devices are free: its kubelet does, for want of a NUMA node, an
allowed sysctl or a living device plugin; in mode Gate kube-scheduler finds no room there. The
controller makes another pod at once, for which that node would be the best one again, as often as
the API server can take it. So the controller's next pods go elsewhere for a time.

* It is a rule and no preference: where there is no other node the pods wait. A preference would
  let them fail in a loop wherever the others are full. A lone node is tried again when the time is
  over, 30 s at first, then twice as long each time, up to ten minutes.
* It holds for one controller: others may ask for what the node can give.
* Pods that were on their way do not count again, however many are turned away meanwhile.
* It is forgotten once a pod of the controller starts there, or ten minutes after its end.
* A pod without a controller comes back in no loop. It stands for itself, so that people hear of it.
* A new leader that was a standby knows it all; after a restart of all replicas each loop costs one
  more failure.
"""

from __future__ import annotations

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.schedule_one import controller_of, put_in_queue, spec_for
from vgpu_operator.engine.state import Avoided, State

AVOID_S = 30.0
"""For so long the pods of a controller go elsewhere; twice as long each time."""
AVOID_AT_MOST_S = 600.0
CONTROLLERS = 1000
"""So many are remembered. With more the oldest is forgotten, which costs it one more failure."""
_REVIEW_EVERY_S = 1.0
_SHOWN = 300
"""Characters of a kubelet's message."""


def turn_away(state: State, controller: str, node: str, rejection: str = "") -> None:
    """Let the pods of a controller avoid a node, unless they do already.

    Args:
        state: Where.
        controller: Its UID.
        node: The node's name.
        rejection: What its kubelet said; empty: kube-scheduler found no room there.
    """
    known = state.avoidance.of.setdefault(controller, {})
    before = known.get(node)
    if before is not None and before.until > state.now:
        return  # that pod was on its way
    times = 1 if before is None else before.times + 1
    until = state.now + min(AVOID_S * 2 ** (times - 1), AVOID_AT_MOST_S)
    known[node] = Avoided(until, times, rejection)
    while len(state.avoidance.of) > CONTROLLERS:
        del state.avoidance.of[next(iter(state.avoidance.of))]


def note_phase(state: State, before: Pod, pod: GPUPod) -> None:
    """Note that a node turned the pod away, or let it start.

    Only a change counts: a pod that ran before shows nothing about the node as it is now.
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
    """Forget what is long over, tell of what is new, and let pods go where they may go again."""
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
    """Record an event on each node that turned pods away since the last look."""
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
    """Judge a pod anew that may go to a node again, or is to wait for the next one."""
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
