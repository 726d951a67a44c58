"""Explains why a claim is pending, or why it is where it is, from a live or a loaded state.

The last report of the operator comes from the claim's status. The verdict on each node is computed
anew, by the functions that make real decisions. Reservations and earmarks exist only in the
operator's memory: reservations of pods that are being bound are not taken into account, and devices
that earmarks keep are read from the status.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.core import PodScopes
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.describe import refusal_of_kind
from vgpu_operator.engine.claims.status import refused_reason, summary
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.preemption.victims import preempts_with
from vgpu_operator.engine.scheduling.earmarks import HELD
from vgpu_operator.engine.scheduling.gate import refusal_before_nodes, refusal_behind_gate
from vgpu_operator.engine.scheduling.gate_groups import group_to_start_with
from vgpu_operator.engine.scheduling.groups import least_of
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import refusal_of, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.insight.ages import lasting
from vgpu_operator.insight.groups import GroupPlaces, places_of_group
from vgpu_operator.insight.live_cluster import EVERYTHING_READ, Unread, known_part, not_judged
from vgpu_operator.insight.node_verdicts import (
    EqualVerdicts,
    NodeVerdict,
    Reads,
    every_namespace,
    verdicts,
)
from vgpu_operator.insight.preemption import (
    MakesWay,
    WouldPreempt,
    who_makes_way,
    would_preempt,
)
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import NodeRules

_KEPT_UNKNOWN = (
    "devices kept for other requests are not known: the claim has no status.keptForOthers"
)
_OF_SCHEDULER = (
    "kube-scheduler allocates its GPUs, on nodes with the label vgpu.dev/allocator: Scheduler; why "
    "it does not yet is in its events FailedScheduling"
)


@dataclass(slots=True)
class Explanation:
    """The explanation of a pod or a claim.

    Attributes:
        subject: `pod NAMESPACE/NAME` or `claim NAMESPACE/NAME`.
        claim: NAMESPACE/NAME of the claim, which may not exist yet.
        asks: A summary of the request.
        state: The state of the claim.
        reason: The reason of its condition.
        message: The message of its condition, which is the operator's last report.
        since: The time since the condition changed, as text.
        now: Why no node can serve the claim now; empty if one can.
        node: The node of the allocation; empty: none.
        devices: The allocated devices.
        nodes: The verdicts on the most helpful nodes.
        nodes_hidden: The number of nodes that are not shown.
        alike: The nodes that are not shown, by verdict.
        way_out: How it would fit; empty if it does, or if nothing is known that would help.
        not_shown: Why no nodes are shown; empty if some are.
        not_judged: The checks that were skipped, with the reason.
        preemption: The pods to evict for it, or why none; None: it does not wait for room.
        group: The places of the pods that wait to start together with it; None: it waits alone.
    """

    subject: str
    claim: str
    asks: str = ""
    state: str = "Pending"
    reason: str = ""
    message: str = ""
    since: str = ""
    now: str = ""
    node: str = ""
    devices: list[str] = field(default_factory=list)
    nodes: list[NodeVerdict] = field(default_factory=list)
    nodes_hidden: int = 0
    alike: list[EqualVerdicts] = field(default_factory=list)
    way_out: str = ""
    not_shown: str = ""
    not_judged: str = ""
    preemption: WouldPreempt | None = None
    group: GroupPlaces | None = None

    def refuse(self, refusal: Refusal | None) -> None:
        """Record why no node can serve the claim now; None: one can."""
        if refusal is not None:
            self.now = refusal.message
            self.reason = self.reason or str(refusal.reason)


def explained(
    state: State,
    claim: VGPUClaim,
    *,
    now: datetime,
    reads: Reads = every_namespace,
    unread: Unread = EVERYTHING_READ,
) -> Explanation:
    """Explain a claim of a live state.

    Args:
        state: The engine's state; it is not modified.
        claim: One of its claims.
        now: The current time, for durations.
        reads: Returns True if a namespace's claims may be named.
        unread: The parts of the cluster that the state lacks.
    """
    pods = state.cache.pods_of(key_of(claim))
    pod = pods[0] if pods else None
    said = from_status(claim, None, now)
    ask_nodes(state, pod, claim, said, reads, unread)
    return said


def from_status(claim: VGPUClaim | None, subject: str | None, now: datetime) -> Explanation:
    """Return an explanation with the last report in the claim's status, if the claim exists.

    Args:
        claim: The claim; None: it does not exist yet.
        subject: The pod or claim to explain; None: the claim.
        now: The current time, for durations.
    """
    name = "" if claim is None else "{0.namespace}/{0.name}".format(key_of(claim))
    said = Explanation(subject or f"claim {name}", name)
    if claim is not None:
        _repeat(claim, said, now)
    return said


def _repeat(claim: VGPUClaim, said: Explanation, now: datetime) -> None:
    """Copy the report from the claim's status."""
    status = claim.status
    said.asks = status.summary or summary(claim.spec)
    said.state = claim.shown_state
    condition = find(status.conditions, conditions.ALLOCATED)
    if condition is not None:
        said.reason, said.message = condition.reason, condition.message
        since = condition.last_transition_time
        if since:
            said.since = lasting((now - datetime.fromisoformat(since)).total_seconds())
    if status.allocation is not None:
        said.node = status.allocation.node_name
        said.devices = [
            f"{device.uuid}: {device.memory}"
            + (f", {device.cores} %" if device.cores else "")
            + (f" for {device.request}" if device.request else "")
            for device in status.allocation.devices
        ]


def ask_nodes(
    state: State,
    pod: GPUPod | None,
    claim: VGPUClaim | None,
    said: Explanation,
    reads: Reads,
    unread: Unread,
) -> None:
    """Add the current verdict on each node to an explanation.

    Args:
        state: The engine's state; it is not modified.
        pod: The pod that waits for the claim or uses it; None: there is no such pod.
        claim: The pod's claim, or one without a pod; None: the pod has none yet.
        said: The explanation so far.
        reads: Returns True if a namespace's claims may be named.
        unread: The parts of the cluster that the state lacks.
    """
    if pod is not None and pod.is_of_scheduler and not said.node:
        said.now = "" if pod.is_running else _OF_SCHEDULER  # else its claim has the reason
        return
    gated = pod if pod is not None and pod.is_gated else None
    scopes = None if pod is None else pod.scopes
    said.not_judged = not_judged(state.config, gated, unread)
    pod = pod if gated is None else known_part(gated, unread)
    asked = _asked(state, pod, claim)
    if isinstance(asked, Refusal):
        said.now = asked.message
        return
    key, spec = asked
    said.claim = said.claim or f"{key.namespace}/{key.name}"
    said.asks = said.asks or summary(spec)
    refused = None if pod is None else _refused_first(state, pod, claim, said)
    if refused is not None:
        said.refuse(refused)
        if refused.reason is not Reason.RESERVED_ELSEWHERE:
            return
        pod = None  # an existing claim decides, not the resources of its pod
    kind = _kind(state, key, spec, pod, scopes)
    if not said.node and refused is None:
        refusal = refusal_of_kind(key, kind, state)
        said.refuse(refusal)
        waiting = _preemptor(state, pod, claim)
        said.group = _group_of(state, waiting, unread)
        victims = _who_makes_way(state, waiting, refusal)
        if victims is not None:
            readable = frozenset(filter(reads, victims.namespaces))
            said.preemption = would_preempt(state, victims, readable)
    found = verdicts(state, key, kind, chosen=said.node, reads=reads)
    said.nodes, said.alike, said.nodes_hidden = found.nodes, found.alike, found.hidden
    said.way_out = "" if said.node else found.way_out
    if claim is not None and not said.node:
        _leave_out_kept(claim, said)


def _preemptor(state: State, pod: GPUPod | None, claim: VGPUClaim | None) -> GPUPod | None:
    """Return the pod whose priority preempts: the given one, or else the claim's, or None."""
    if pod is not None or claim is None or claim.spec.binding_mode == "Immediate":
        return pod
    return next(iter(state.cache.pods_of(key_of(claim))), None)


def _group_of(state: State, pod: GPUPod | None, unread: Unread) -> GroupPlaces | None:
    """Return the places of a waiting pod's group, if pods of it must start together."""
    if pod is None or pod.group is None or least_of(state, pod.group) == 1:
        return None
    return places_of_group(state, pod.group, unread)


def _who_makes_way(state: State, pod: GPUPod | None, refusal: Refusal | None) -> MakesWay | None:
    """Return the pods that would be evicted, or why none would be; None if the pod need not wait.

    A pod that would fit by itself may still wait for the rest of its group.
    """
    if refusal is not None:
        return who_makes_way(state, pod, refusal.reason)
    if pod is None or preempts_with(state, pod) is None:
        return None
    found = who_makes_way(state, pod, None)
    return found if found.victims else None


def _asked(
    state: State, pod: GPUPod | None, claim: VGPUClaim | None
) -> tuple[ClaimKey, VGPUClaimSpec] | Refusal:
    """Return the claim's key and spec. If there is a pod, the claim need not exist."""
    if pod is None:
        assert claim is not None
        return key_of(claim), claim.spec
    spec = spec_for(state, pod)
    return spec if isinstance(spec, Refusal) else (pod.claim, spec)


def _kind(
    state: State,
    key: ClaimKey,
    spec: VGPUClaimSpec,
    pod: GPUPod | None,
    scopes: PodScopes | None,
) -> EquivalenceClass:
    """Return the class in which the claim waits; without a pod, only its devices matter."""
    if pod is None:
        request = Demand.of(spec, state.config)
        return EquivalenceClass(request, NodeRules(), key.namespace, scopes=scopes)
    request = pod.request(spec, state.config)
    if not pod.is_gated:
        return EquivalenceClass(
            request, pod.rules, key.namespace, scopes=scopes, priority=pod.priority
        )
    group = group_to_start_with(state, pod)
    return EquivalenceClass(
        request,
        pod.rules,
        key.namespace,
        host_demand=pod.host_demand,
        scopes=scopes,
        group=None if group is None or least_of(state, group) is None else group,
        priority=pod.priority,
    )


def _refused_first(
    state: State, pod: GPUPod, claim: VGPUClaim | None, said: Explanation
) -> Refusal | None:
    """Return the reason for refusing a pod regardless of devices, or None."""
    if said.node:
        return refusal_before_nodes(state, pod, claim) if pod.is_gated else None
    if pod.is_gated:
        return refusal_behind_gate(state, pod, claim)
    return None if claim is None else refusal_of(state, claim, pod)


def _leave_out_kept(claim: VGPUClaim, said: Explanation) -> None:
    """Correct the verdicts on nodes whose free capacity is kept for other requests.

    Earmarks exist only in the operator's memory. When it refuses a claim, it writes the earmarked
    devices into the claim's status; operators of older versions did not.
    """
    if claim.status.kept_for_others is None:
        if refused_reason(claim) is not None and any(node.serves for node in said.nodes):
            said.not_judged = "; ".join(filter(None, (said.not_judged, _KEPT_UNKNOWN)))
        return
    kept = {each.node_name: each.devices for each in claim.status.kept_for_others}
    said.nodes = [_without_kept(node, kept.get(node.name, 0)) for node in said.nodes]


def _without_kept(node: NodeVerdict, kept: int) -> NodeVerdict:
    """Return the verdict on a node whose free capacity is kept for other requests."""
    if not kept or not node.serves:
        return node
    devices = f"{kept} device{'s' if kept > 1 else ''}"
    return replace(node, verdict=f"{devices} {HELD}", serves=False)
