"""Reports why a pod or claim gets nothing: a condition on the claim, an event on the pod.

Both have the same text. The counts in a refusal change whenever the cluster changes, so a text is
written again only if its reason changes, or after intervals that double each time. A pod that waits
for just a moment gets no report at all.
"""

from __future__ import annotations

from dataclasses import replace

from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.announce import is_news
from vgpu_operator.engine.claims.lifecycle import has_live_pod
from vgpu_operator.engine.claims.status import (
    DesiredStatus,
    claim_for_pod,
    shows,
    status_with,
)
from vgpu_operator.engine.effects import Effect, RecordEvent, WriteClaim
from vgpu_operator.engine.gpu_pod import GPUPod, is_owned_by
from vgpu_operator.engine.hami import pod_events
from vgpu_operator.engine.scheduling.earmarks import kept_devices, kept_text
from vgpu_operator.engine.scheduling.gate_groups import why_not_whole, why_waiting
from vgpu_operator.engine.scheduling.groups import never_fits, shortfall, shortfall_text
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, Waiter
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.state import ReportedRefusal, State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import amounts, impossible, place
from vgpu_operator.placement.constraints import only

REPORT_AFTER_S = 1.0
"""A refusal that ends sooner is not reported."""
REPORT_AGAIN_S = 5.0
"""The first interval after which a text is written again; it doubles each time."""
REPORT_AGAIN_AT_MOST_S = 300.0
REPORT_DELETION_AFTER_S = 5.0
"""A deletion that ends sooner is not reported."""
_LOOK_AGAIN_S = 0.5
_ACTION = "Scheduling"


def describe(claim: VGPUClaim, state: State) -> Effect | None:
    """Report why the claim has no devices, or that it is being deleted. A step of `reconcile`."""
    key = key_of(claim)
    if claim.metadata.deletion_timestamp is not None:
        return _describe_deletion(claim, state)
    pods = state.cache.pods_of(key)
    if _is_refused(key, pods, state):
        desired = _report(key, pods, claim, state)
        allocated = claim.status.allocation is not None
        if desired is None or allocated or shows(claim, desired) or _is_anothers(claim, pods):
            return None
        return _write(claim, state, desired)
    _stop_reporting(key, state)
    if pods or claim.status.allocation is not None or claim.status.state not in (None, "Pending"):
        return None
    if claim.spec.binding_mode == "Immediate":
        return None
    template = DesiredStatus.template()
    if state.cache.is_template(key):
        return None if shows(claim, template) else _write(claim, state, template)
    waiting = DesiredStatus.waiting()
    if shows(claim, waiting) or shows(claim, template):
        return None
    return _write(claim, state, waiting)


def _describe_deletion(claim: VGPUClaim, state: State) -> Effect | None:
    """Report that the claim is being deleted, and what the deletion is waiting for.

    A running pod is reported at once, because it may run for days. Everything else usually delays a
    deletion by seconds only, so it is reported after REPORT_DELETION_AFTER_S: otherwise each pod
    that ends would cost one more write.
    """
    key = key_of(claim)
    if not claim.metadata.finalizers:
        return None  # it is gone, and the watch will soon report that
    if has_live_pod(claim, state.cache):
        state.claims.going.pop(key, None)
    else:
        due = state.claims.going.setdefault(key, state.now) + REPORT_DELETION_AFTER_S
        if state.now < due:
            state.claims.timers.set(key, due)
            return None
    desired = DesiredStatus.terminating(claim.status, _awaited(claim, state))
    return None if shows(claim, desired) else _write(claim, state, desired)


def _awaited(claim: VGPUClaim, state: State) -> str:
    """Return what the deletion of a claim is waiting for, as the end of a sentence."""
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    if allocation is None or reserved is None:
        return f"waits for its finalizers: {', '.join(claim.metadata.finalizers)}"
    if has_live_pod(claim, state.cache):
        return f"until pod {reserved.pod_name} has ended"
    pod = state.cache.pod(reserved.pod_uid)
    if pod is not None and pod.wants_node:
        return f"until it is known that pod {reserved.pod_name} gets no node"
    return f"until the agent there reports that nothing of pod {reserved.pod_name} runs"


def describe_missing(key: ClaimKey, state: State) -> Effect | None:
    """Report why a pod whose claim does not exist yet is refused.

    Return the write that creates the pod's own claim with the refusal in its status, if it is due.
    """
    pods = state.cache.pods_of(key)
    if not pods or not _is_refused(key, pods, state):
        _stop_reporting(key, state)
        return None
    desired = _report(key, pods, None, state)
    pod = pods[0]
    spec = None if isinstance(pod.demand, BadInput) else pod.demand.spec
    if desired is None or spec is None or not (pod.owned and pod.is_admitted):
        return None
    return WriteClaim(
        key=key,
        version="",
        status=status_with(None, spec, desired, unix=state.unix),
        create=claim_for_pod(pod.pod, spec, entry=pod.scheduler_entry),
    )


def _stop_reporting(key: ClaimKey, state: State) -> None:
    state.claims.reported.pop(key, None)
    state.claims.turns.leave(key)


def node_event(node: Node, reason: str, note: str) -> RecordEvent:
    """Return a warning event about a node."""
    regarding = Regarding("v1", "Node", None, node.metadata.name, node.metadata.uid)
    return RecordEvent(regarding, "Warning", reason, "Observing", note)


def _is_refused(key: ClaimKey, pods: list[GPUPod], state: State) -> bool:
    return (
        state.queue.get(key) is not None
        or key in state.claims.init_refused
        or any(pod.uid in state.pods.blocked for pod in pods)
    )


def _report(
    key: ClaimKey, pods: list[GPUPod], claim: VGPUClaim | None, state: State
) -> DesiredStatus | None:
    """Return the status that reports the refusal and record events on the pods, if due."""
    reported = state.claims.reported.setdefault(key, ReportedRefusal(state.now))
    due = max(reported.since + REPORT_AFTER_S, reported.next)
    if state.now < due:
        state.claims.timers.set(key, due)
        return None
    if not state.claims.turns.take(key):
        return None
    waiter = state.queue.get(key)
    is_known = waiter is None or _explained(waiter, state) is not None
    if not (is_known or state.claims.turns.may_find_out(key)):
        return None
    found = _refusals(key, pods, claim, state)
    if not found:  # there is capacity now, so the next pass will probably serve the claim
        state.claims.timers.set(key, state.now + _LOOK_AGAIN_S)
        return None
    for refused, why in found:
        if refused is not None:
            _tell(refused, why, state)
    pod, refusal = found[0]
    changed = reported.reason != refusal.reason
    reported.interval_s = (
        REPORT_AGAIN_S if changed else min(2 * reported.interval_s, REPORT_AGAIN_AT_MOST_S)
    )
    reported.reason, reported.next = refusal.reason, state.now + reported.interval_s
    state.claims.timers.set(key, reported.next)
    name = "" if pod is None else pod.pod.metadata.name
    return DesiredStatus.refused(
        reason=refusal.reason,
        message=refusal.message + _preempting(key, state),
        pod=name,
        kept=refusal.kept,
    )


def _preempting(key: ClaimKey, state: State) -> str:
    """Return a note about the pods that are evicted for the claim; empty if none are."""
    groups = (pod.group for pod in state.cache.pods_of(key) if pod.group is not None)
    opened = state.preemptions.of(key, next(groups, None))
    if opened is None:
        return ""
    losers, nodes = len(opened.pods) or len(opened.claims), ", ".join(opened.nodes)
    return f"; less important pods or claims on {nodes} are making way: {losers}"


def _tell(pod: GPUPod, refusal: Refusal, state: State) -> None:
    """Record the events about a refused pod."""
    state.outbox.append(_pod_event(pod, refusal))
    if state.config.views.hami_events:
        nodes = sum(1 for _ in state.ledger.columns.nodes_with_devices())
        state.outbox.append(pod_events.filtering_failed(pod, nodes))


def _refusals(
    key: ClaimKey, pods: list[GPUPod], claim: VGPUClaim | None, state: State
) -> list[tuple[GPUPod | None, Refusal]]:
    """Return the refusals of the claim's pods, or, with None as the pod, of the claim itself."""
    found: list[tuple[GPUPod | None, Refusal]] = [
        (pod, state.pods.blocked[pod.uid]) for pod in pods if pod.uid in state.pods.blocked
    ]
    waiter = state.queue.get(key)
    refusal = None if waiter is None else explain_waiter(waiter, state)
    if waiter is not None and refusal is not None:
        found.append((state.cache.pod(waiter.pod_uid), refusal))
    plan = state.claims.init_refused.get(key)
    if plan is not None:
        text = f"its init containers cannot run again: {plan.text}"
        found += [(pod, Refusal(plan.reason, text)) for pod in pods if pod.is_running]
    return found


def explain_waiter(waiter: Waiter, state: State) -> Refusal | None:
    """Return why no node can serve the waiter now, or None if one can."""
    known = _explained(waiter, state)
    if known is not None:
        return known
    refusal = refusal_of_kind(waiter.key, waiter.kind, state)
    of_kind = state.queue.class_of(waiter.kind)
    if refusal is not None and of_kind is not None:
        of_kind.explained = state.now, state.ledger.cursors, refusal
    return refusal


def _explained(waiter: Waiter, state: State) -> Refusal | None:
    """Return the cached refusal of a waiter's class, or None if there is none or it is too old."""
    of_kind = state.queue.class_of(waiter.kind)
    if of_kind is None or of_kind.explained is None:
        return None
    at, cursors, known = of_kind.explained
    # The counts change with every change in the cluster, but they need not be that fresh.
    return known if cursors == state.ledger.cursors or state.now - at < REPORT_AGAIN_S else None


def refusal_of_kind(key: ClaimKey, kind: EquivalenceClass, state: State) -> Refusal | None:
    """Return why no node can serve a claim of this kind, in full detail; None if one can."""
    waiting = None
    if kind.group is not None and kind.host_demand is not None:  # a group behind our gates
        is_known = state.queue.has_group(kind.group)  # not to those who only explain
        waiting = (why_waiting if is_known else why_not_whole)(state, kind.group)
    return waiting or _refusal_of_nodes(key, kind, state)


def _refusal_of_nodes(key: ClaimKey, kind: EquivalenceClass, state: State) -> Refusal | None:
    """Return why no node can serve a claim of this kind, or its group as a whole."""
    columns, request = state.ledger.columns, kind.request
    nodes = state.ledger.filters.of(kind.rules, kind.host_demand)
    if kind.avoided:
        nodes = replace(nodes, welcoming=~kind.avoided)
    with state.deciding(
        key, Yielding.MORE_IMPORTANT, priority=kind.priority, kind=kind, group=kind.group
    ) as kept:
        plan = place(
            columns,
            request,
            {kind.node} if kind.node else None,
            nodes=nodes,
            budget=state.ledger.budget(kind.namespace, kind.scopes),
            kept=kept,
        )
        if not plan.refused:
            return shortfall(state, kind.group)
        # Read these inside the context, where the claim's own devices count as free. Keep only the
        # text: the plan has the reasons of up to 5,000 nodes, too much for each waiting class.
        reason, text = plan.reason, plan.text
        texts = [text]
        if Reason.RESOURCE_QUOTA_NOT_FIT in text:
            texts += state.ledger.exceeded_quotas(kind.namespace, request, kind.scopes)
        never = impossible(columns, request) or never_fits(state, kind.group)
        if never is not None:
            return Refusal(Reason.IMPOSSIBLE, "; ".join((*texts, never)))
        node = columns.node_id(kind.node) if kind.node else None
        within = nodes if node is None else replace(nodes, selector=nodes.selector & only(node))
        texts += amounts(columns, request, text, within=within)
        if kind.host_demand is not None and Reason.NODE_VOLUME_MISMATCH in text:
            texts += state.ledger.filters.volumes.explain(kind.host_demand.volumes)
    texts += filter(None, [shortfall_text(state, kind.group)])
    earmarked = kept_devices(columns, state.earmarks, key, request, kind.group, kind.priority)
    texts += [kept_text(node, count) for node, count in earmarked.items()]
    return Refusal(reason, "; ".join(texts), kept=earmarked)


def _is_anothers(claim: VGPUClaim, pods: list[GPUPod]) -> bool:
    """Return True if the claim has the name of a pod's own claim but belongs to someone else."""
    return any(pod.owned and not is_owned_by(claim, pod.uid) for pod in pods)


def _write(claim: VGPUClaim, state: State, desired: DesiredStatus) -> WriteClaim:
    return WriteClaim(
        key=key_of(claim),
        version=claim.metadata.resource_version,
        before=claim.status,
        status=status_with(claim, claim.spec, desired, unix=state.unix),
        finalizers=tuple(claim.metadata.finalizers),
        is_news=is_news(claim, desired),
    )


def _pod_event(pod: GPUPod, refusal: Refusal) -> RecordEvent:
    return RecordEvent(pod.regarding, "Warning", refusal.reason, _ACTION, refusal.message)
