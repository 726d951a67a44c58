"""Modes Gate and Claims: pods wait until their devices are reserved, and are then let go.

In Claims mode the ResourceClaim takes the place of the gate (`resource_claims/hand_over.py`); all
else here is the same. The rest of this text is about the gate.

For clusters whose kube-scheduler calls no extender (docs/design/scheduler-modes.md). Two writes
take the place of Filter and Bind, in this order:

    gated ──reserved, the claim written──► gated, allocated ──one PATCH──► lifted ──► bound
                       ▲                        │
                       └── not lifted in time ──┘

The PATCH ties the pod to its node and removes the gate, and it tests the resourceVersion that the
decision was based on. The pod alone records whether the PATCH has been applied. So if the operator
dies between the two writes, its successor has nothing to guess: it finds the claim allocated and
the gate in place, and lifts it; or it finds the gate gone, and waits.

After the PATCH kube-scheduler may bind the pod at any time without telling us, so the devices stay
reserved until the pod runs or is gone. A pod can neither be gated again nor moved: if
kube-scheduler finds no room on its node after all, the pod has to be replaced.
"""

from __future__ import annotations

from typing import Any

from vgpu_api import names
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.effects import DeletePod, Effect, LiftGate, RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.hami.plugin_turns import served_before
from vgpu_operator.engine.hami.records import records_of
from vgpu_operator.engine.resource_claims.hand_over import (
    hand_over,
    refusal_of_claim,
    take_away,
)
from vgpu_operator.engine.scheduling.avoidance import turn_away
from vgpu_operator.engine.scheduling.gate_groups import group_to_start_with, may_pass, wake
from vgpu_operator.engine.scheduling.groups import least_of
from vgpu_operator.engine.scheduling.queue import UNKNOWN
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Phase, Reservation
from vgpu_operator.engine.scheduling.schedule_one import (
    offer,
    put_in_queue,
    refusal_of,
    spec_for,
    why_not_there,
)
from vgpu_operator.engine.state import State

STUCK_S = 10.0
"""A pod is replaced after kube-scheduler has found no room on its node for this long."""
PREEMPTING_S = 60.0
"""The same if kube-scheduler preempts other pods for it: these may take a while to end."""
REPORT_EVERY_S = 300.0
_REVIEW_EVERY_S = 1.0
_AGAIN_S = 1.0
_ACTION = "Scheduling"
_GATES = "/spec/schedulingGates"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CURED_UNSEEN = frozenset(
    {Reason.VOLUME_CLAIM_NOT_READY, Reason.VOLUME_CLAIM_IN_USE, Reason.RESERVED_ELSEWHERE}
)
"""Reasons that may stop to apply to a gated pod without an event about the pod or its claim."""


def is_on(state: State) -> bool:
    """Return True if pods are decided before kube-scheduler looks at them."""
    return state.config.scheduling.decides_first


def _is_let_go_here(state: State, pod: GPUPod) -> bool:
    """Return True if the operator's mode is the one in which the pod was admitted."""
    return state.config.scheduling.mode == ("Claims" if pod.resource_claim else "Gate")


# Behind the gate.


def admit(state: State, pod: GPUPod) -> None:
    """Queue a gated pod, give it the devices its claim already has, or record why it is refused."""
    held = state.reservations.of_pod(pod.uid)
    if held is not None and not held.is_tentative:
        state.claims.look_at(held.key)
        return
    state.gates.waiting.pop(pod.uid, None)
    spec = spec_for(state, pod)
    claim = state.cache.claim(pod.claim)
    refusal = refusal_behind_gate(state, pod, claim)
    _note_cure(state, pod, refusal)
    if refusal is not None or isinstance(spec, Refusal):
        assert refusal is not None
        _leave_queue(state, pod)
        state.pods.blocked[pod.uid] = refusal
        state.claims.look_at(pod.claim)
        return
    state.pods.blocked.pop(pod.uid, None)
    allocation = None if claim is None else claim.status.allocation
    if allocation is not None:
        if state.claims.expired.get(pod.claim) != allocation.id:  # else it is being released
            offer(state, pod, {allocation.node_name})
        return
    _put_in_queue(state, pod, spec)


def _put_in_queue(state: State, pod: GPUPod, spec: VGPUClaimSpec) -> None:
    """Queue a gated pod by itself or with its group, and wake the group if the pod is new there."""
    group, known = group_to_start_with(state, pod), state.queue.get(pod.claim)
    if group is not None:
        state.gates.alone.discard(pod.uid)
    elif pod.group is not None and pod.uid not in state.gates.alone:
        state.gates.alone.add(pod.uid)
        _tell_of_missing_api(state, pod, pod.group)
    if put_in_queue(state, pod, spec) is not known:
        wake(state, group)


def _tell_of_missing_api(state: State, pod: GPUPod, group: GroupKey) -> None:
    """Record an event on a pod that starts alone because its group's API is not served."""
    if least_of(state, group) is None:
        note = (
            f"the cluster serves no PodGroups of {group.kind}, so the pods of group {group.name} "
            f"start one by one; name the group in {names.ANNOTATION_GROUP}"
        )
        state.outbox.append(RecordEvent(pod.regarding, "Warning", "GroupIgnored", _ACTION, note))


def _note_cure(state: State, pod: GPUPod, refusal: Refusal | None) -> None:
    """Remember to judge a gated pod again for changes that no event about the pod reports."""
    if refusal is None or refusal.reason in _CURED_UNSEEN:
        if pod.host_demand.volumes:
            state.gates.with_volumes[pod.uid] = None
        if refusal is not None and refusal.reason is Reason.RESERVED_ELSEWHERE:
            state.gates.waiting[pod.uid] = None


def refusal_behind_gate(state: State, pod: GPUPod, claim: VGPUClaim | None) -> Refusal | None:
    """Return why a gated pod cannot be decided now, regardless of free devices; None if it can.

    The state is not changed. `claim` is the pod's claim, if that exists.
    """
    if not _is_let_go_here(state, pod):
        mode = state.config.scheduling.mode
        done = "ResourceClaim is allocated" if pod.resource_claim else "gate is lifted"
        return Refusal(
            Reason.GATED, f"scheduling.mode is {mode}, so no {done}; create the pod anew"
        )
    if pod.resource_claim:
        not_ours = refusal_of_claim(state, pod)
        if not_ours is not None:
            return not_ours
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        return spec
    refusal = None if claim is None else refusal_of(state, claim, pod)
    return refusal or refusal_before_nodes(state, pod, claim)


def refusal_before_nodes(state: State, pod: GPUPod, claim: VGPUClaim | None) -> Refusal | None:
    """Return why the pod's volumes, or the node of its Immediate claim, rule out every node.

    The state is not changed. The pod need not exist, since explanations ask about pods on paper.
    """
    # If devices are allocated for this pod, volumes are not checked here: the reservation lapses
    # first, so that no device is kept for the pod meanwhile.
    found = None if _is_allocated(claim) else state.ledger.filters.volumes.refusal(pod.pod)
    if found is not None:
        return Refusal(*found)
    return None if claim is None else _of_immediate(state, claim, pod)


def _is_allocated(claim: VGPUClaim | None) -> bool:
    """Return True if the claim was allocated for its pod, which an Immediate claim never is."""
    if claim is None or claim.spec.binding_mode == "Immediate":
        return False
    return claim.status.allocation is not None


def _leave_queue(state: State, pod: GPUPod) -> None:
    """Take the pod out of the queue; an Immediate claim or another pod of its claim stays in."""
    waiter = state.queue.get(pod.claim)
    if waiter is not None and waiter.pod_uid == pod.uid:
        state.queue.remove(pod.claim)


def _of_immediate(state: State, claim: VGPUClaim, pod: GPUPod) -> Refusal | None:
    """Return why an Immediate claim cannot serve the pod now.

    Its pod can only run on the node where the claim's devices are.
    """
    if claim.spec.binding_mode != "Immediate":
        return None
    name, allocation = claim.metadata.name, claim.status.allocation
    if allocation is None:
        return Refusal(Reason.RESERVED_ELSEWHERE, f"claim {name} waits for its own devices")
    why = why_not_there(state, pod, allocation.node_name)
    if why is None:
        return None
    text = f"claim {name} has its GPUs on {allocation.node_name}: {why}"
    return Refusal(Reason.RESERVED_ELSEWHERE, text)


def review_gates(state: State) -> None:
    """Judge gated pods again if they wait for changes that no event about them reports."""
    work = state.gates
    if state.now < work.review_at:
        return
    work.review_at = state.now + _REVIEW_EVERY_S
    state.pods.due.update(work.waiting)
    if work.volumes_version != state.ledger.filters.volumes.version:
        work.volumes_version = state.ledger.filters.volumes.version
        state.pods.due.update(work.with_volumes)
    if is_on(state):
        for waiter in state.queue:  # pod affinity: another pod's start or end may help this one
            of_kind = state.queue.class_of(waiter.kind)
            if of_kind is not None and waiter.kind.host_demand is not None:
                of_kind.cursor = UNKNOWN


# The two steps of `reconcile`.


def lift_gate(claim: VGPUClaim, state: State) -> Effect | None:
    """Tie the pod for which the claim is allocated to its node, and let kube-scheduler have it."""
    key, work, allocation = key_of(claim), state.gates, claim.status.allocation
    held = state.reservations.of_claim(key)
    pod = None if held is None else _behind_gate(state, held, claim)
    if held is None or pod is None or allocation is None:
        return None
    if work.not_before.get(pod.uid, 0.0) > state.now:
        state.claims.timers.set(key, work.not_before[pod.uid])
        return None
    if _is_lost(state, pod, held):
        held.until = state.now  # the pod is read, then decided again
        return None
    if served_before(state, pod, held.node):
        state.claims.timers.set(key, state.now + _AGAIN_S)
        return None
    if pod.resource_claim:
        return hand_over(state, pod, claim, held)
    try:
        records = records_of(state, pod, claim.spec, allocation, unix_time=int(state.unix))
    except BadInput as error:
        held.until = state.now  # the pod waits for a new decision
        note = f"its gate is not lifted: {error}"
        state.outbox.append(RecordEvent(pod.regarding, "Warning", "GateNotLifted", _ACTION, note))
        return None
    held.begin_bind(pod.reserved_for)
    if not held.is_written:  # the status of an Immediate claim must name the pod first
        held.bind_failed(state.now)
        state.claims.look_at(key)
        return None
    work.lifting.add(pod.uid)
    metadata = pod.pod.metadata
    return LiftGate(
        namespace=metadata.namespace or "",
        name=metadata.name,
        uid=pod.uid,
        version=metadata.resource_version,
        allocation_id=allocation.id,
        operations=(*tied_to(pod, held.node), *_annotated(pod, records)),
    )


def _behind_gate(state: State, held: Reservation, claim: VGPUClaim) -> GPUPod | None:
    """Return the gated pod if its claim is written, its group ready and no PATCH in flight."""
    pod, allocation = state.cache.pod(held.pod_uid), claim.status.allocation
    is_ready = held.is_written and held.phase in (Phase.OFFERED, Phase.PINNED)
    if not is_ready or held.has_lapsed(state.now) or pod is None or not pod.is_gated:
        return None
    if allocation is None or allocation.id != held.allocation_id:
        return None
    is_going = claim.metadata.deletion_timestamp is not None
    if is_going or not _is_let_go_here(state, pod) or pod.uid in state.gates.lifting:
        return None
    return pod if may_pass(state, pod) else None


def _is_lost(state: State, pod: GPUPod, held: Reservation) -> bool:
    """Return True if the pod cannot go to its node any more, and may still be placed elsewhere."""
    if held.phase is not Phase.OFFERED or pod.uid in state.gates.passed:
        return False
    return why_not_there(state, pod, held.node) is not None


def replace_stuck(claim: VGPUClaim, state: State) -> Effect | None:
    """Move a pod for which kube-scheduler finds no room on its node.

    A pod past its gate is deleted, so that its controller replaces it. If the pod has a
    ResourceClaim, its allocation is removed, and the pod waits for a new decision.
    """
    key, work = key_of(claim), state.gates
    for pod in state.cache.pods_of(key):
        if pod.uid not in work.stuck or not pod.wants_node:
            continue
        # In Claims mode the nomination is ours and does not say that kube-scheduler preempts.
        preempts = pod.pod.status.nominated_node_name and not pod.resource_claim
        wait_s = PREEMPTING_S if preempts else STUCK_S
        due = max(work.stuck[pod.uid] + wait_s, work.reported.get(pod.uid, 0.0))
        if state.now >= due and pod.resource_claim:
            work.stuck[pod.uid] = state.now  # try again if the pod is still there after STUCK_S
            state.claims.timers.set(key, state.now + STUCK_S)
            return take_away(state, pod, is_rejection=True)
        if state.now >= due:
            return _replaced(pod, state)
        state.claims.timers.set(key, due)
    return None


def _replaced(pod: GPUPod, state: State) -> Effect | None:
    work, metadata, node = state.gates, pod.pod.metadata, tied_node(pod)
    owner = next((each for each in metadata.owner_references if each.controller), None)
    why = f"it was tied to {node} for its devices, and kube-scheduler finds no room there"
    said = _refused_with(pod)
    if owner is None:
        work.reported[pod.uid] = state.now + REPORT_EVERY_S
        state.claims.timers.set(pod.claim, work.reported[pod.uid])
        note = f"{why}: {said}; a pod cannot be moved: delete it and create it anew"
        state.outbox.append(RecordEvent(pod.regarding, "Warning", "PodStuck", _ACTION, note))
        return None
    work.stuck[pod.uid] = state.now  # try again if the pod is still there after STUCK_S
    state.claims.timers.set(pod.claim, state.now + STUCK_S)
    turn_away(state, owner.uid, node)
    note = f"{why}: {said}; deleted, so that {owner.kind} {owner.name} makes another"
    state.outbox.append(RecordEvent(pod.regarding, "Warning", "PodReplaced", _ACTION, note))
    return DeletePod(metadata.namespace or "", metadata.name, pod.uid, metadata.resource_version)


# After the gate.


def note_lifted(state: State, pod: GPUPod) -> None:
    """Record that the pod's gate is gone.

    kube-scheduler may bind the pod at any moment from now on, so its reservation does not lapse.
    """
    if not is_on(state) or not pod.wants_node:
        return
    state.gates.lifting.discard(pod.uid)
    state.gates.with_volumes.pop(pod.uid, None)
    if (pod.resource_claim or tied_node(pod)) and _refused_with(pod):
        since = state.gates.stuck.setdefault(pod.uid, state.now)
        state.claims.timers.set(pod.claim, since + STUCK_S)
    else:
        state.gates.stuck.pop(pod.uid, None)
    held = state.reservations.of_pod(pod.uid)
    if held is None or held.is_tentative:
        _leave_queue(state, pod)  # somebody else removed the gate: serve the pod once it is bound
        state.pods.blocked.pop(pod.uid, None)
        return
    held.begin_bind(pod.reserved_for)
    held.bound()


def tied_node(pod: GPUPod) -> str:
    """Return the one node that all terms of its required affinity name; empty if there is none."""
    affinity = pod.pod.spec.affinity
    of_node = None if affinity is None else affinity.node_affinity
    required = None if of_node is None else of_node.required
    named = [
        {line.values[0] for line in term.match_fields if line.operator == "In" and line.values}
        for term in ([] if required is None else required.terms)
        if term.match_fields or term.match_expressions
    ]
    nodes = set[str]().union(*named)
    return nodes.pop() if len(nodes) == 1 and all(named) else ""


def _refused_with(pod: GPUPod) -> str:
    """Return kube-scheduler's message if it finds the pod unschedulable; empty if it does not."""
    for condition in pod.pod.status.conditions:
        is_refused = condition.status == "False" and condition.reason == "Unschedulable"
        if condition.type == "PodScheduled" and is_refused:
            return condition.message or "Unschedulable"
    return ""


# The patch.


def tied_to(pod: GPUPod, node: str) -> list[dict[str, Any]]:
    """Return the JSON patch that ties the pod to this node and removes our gate.

    For a gated pod the API server accepts a new required affinity, and accepts that each existing
    term is narrowed, but no new term and no change of an empty one (KEP-3838). An empty term
    matches no node, so leaving it alone is right.
    """
    line = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms: Any = {"nodeSelectorTerms": [{"matchFields": [line]}]}
    affinity = pod.pod.spec.affinity
    of_node = None if affinity is None else affinity.node_affinity
    required = None if of_node is None else of_node.required
    operations: list[dict[str, Any]] = []
    if affinity is None:
        value = {"nodeAffinity": {_REQUIRED: terms}}
        operations.append({"op": "add", "path": "/spec/affinity", "value": value})
    elif of_node is None:
        value = {_REQUIRED: terms}
        operations.append({"op": "add", "path": "/spec/affinity/nodeAffinity", "value": value})
    elif required is None:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
        operations.append({"op": "add", "path": path, "value": terms})
    else:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"
        for number, term in enumerate(required.terms):
            at = f"{path}/{number}/matchFields"
            if term.match_fields:
                operations.append({"op": "add", "path": f"{at}/-", "value": line})
            elif term.match_expressions:
                operations.append({"op": "add", "path": at, "value": [line]})
    return [*operations, {"op": "remove", "path": _GATES}]


def _annotated(pod: GPUPod, annotations: dict[str, str]) -> list[dict[str, Any]]:
    if not pod.pod.metadata.annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]
    return [
        {
            "op": "add",
            "path": f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}",
            "value": value,
        }
        for key, value in annotations.items()
    ]
