"""Decides one pod or one Immediate claim, for Filter, Bind and the engine's loop alike.

All functions are synchronous, so the state cannot change between a check and the assumption that
follows it, and no lock is needed. Read `offer` first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from vgpu_api import names
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.gpu_pod import (
    GPUPod,
    GroupKey,
    Standing,
    is_owned_by,
    mismatch,
    rank_of,
    serves_another,
)
from vgpu_operator.engine.scheduling.earmarks import explain
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.places import adopt, reserve, take_softly, unreserve
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, Waiter
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import NodeRules
from vgpu_operator.placement import Budget, NodeFilter, Plan, in_words, place, refusals_on
from vgpu_operator.placement.constraints import only

SAMPLED_FROM = 100
"""With fewer nodes than this, kube-scheduler offers every feasible node; else it offers a sample.
Source: minFeasibleNodesToFind in its schedule_one.go."""
PREEMPT_AFTER_S = 0.25
"""Seconds from a refusal to a preemption. A kube-scheduler that preempts by itself asks the verb
`preempt` in the same cycle, and so goes first."""
_ANY_NODE = NodeRules()
_ITS_NODE = NodeRules(tolerations=(("", "Exists", "", ""),))
"""The rules for a bound pod: its node has been chosen, so the node's taints do not matter."""
_NOT_ADMITTED = (
    f"metadata.labels[{names.LABEL_ADMITTED}]: Required value: admission has not read the pod, "
    f"which therefore gets no device; create it anew in a namespace that is neither labelled "
    f"{names.HAMI_WEBHOOK_LABEL}: ignore nor the system's"
)


def offer(
    state: State, pod: GPUPod, candidates: Collection[str], *, softly: bool = False
) -> Reservation | Refusal:
    """Reserve devices for a pod on the best of the candidate nodes.

    If the pod has a reservation on one of the candidates, that is kept. On another node it moves,
    unless a Binding to that node may still succeed. A tentative place is promoted if its node is a
    candidate, and ends otherwise. Tentative places of other pods yield if the pod does not fit
    beside them.

    Args:
        state: The engine's state.
        pod: The pod to place.
        candidates: The names of the nodes that kube-scheduler offers.
        softly: Take a tentative place only, and let Bind decide again, because the pod may take
            minutes to get there.
    """
    held = state.reservations.of_pod(pod.uid)
    reserved = None if held is None else _reserved(state, pod, held, candidates)
    if reserved is not None:
        return reserved
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        return spec
    claim = state.cache.claim(pod.claim)
    if claim is not None:
        # A claim that has devices already decides before any plan: a new plan could move the
        # devices of a pod that is about to run.
        standing = _standing(state, pod, claim, candidates)
        if standing is not None:
            return standing
        if claim.spec.binding_mode == "Immediate":
            # Decided as a claim and not for the pod, because it keeps its devices if the pod goes.
            return _immediate_for(state, claim, candidates)
    plan = _plan_for(state, pod, spec, candidates, held)
    if plan.refused:
        return Refusal(
            plan=plan,
            notes=_notes(
                state, pod.claim, pod.request(spec, state.config), pod.group, pod.priority
            ),
        )
    _note_hit(state, held, plan)
    if softly:
        return take_softly(state, pod, plan)
    reservation = reserve(state, pod.claim, spec, plan, pod)
    # Only now: a refused pod, or one with a tentative place, must not end the places of others.
    _evict_tentative(state, reservation)
    return reservation


def _reserved(
    state: State, pod: GPUPod, held: Reservation, candidates: Collection[str]
) -> Reservation | Refusal | None:
    """Return the pod's reservation if it stays, a refusal if it blocks the pod, or None."""
    if held.is_tentative:
        return None
    if held.node in candidates and (held.is_binding or _is_on_same_node(state, held)):
        return held
    # If the pod got devices on another node now and that Binding succeeded after all, it would run
    # where it has none.
    if held.is_binding and not pod.pod.is_bound:
        text = f"a Binding to {held.node} may still come to stand"
        return Refusal(Reason.RESERVED_ELSEWHERE, text)
    return None


def _plan_for(
    state: State,
    pod: GPUPod,
    spec: VGPUClaimSpec,
    candidates: Collection[str],
    held: Reservation | None,
) -> Plan:
    """Plan on the node of the pod's tentative place first, then on all candidates."""
    # The pod was requeued because this place was kept for it. On another node it would leave the
    # place unused and take capacity from the next in the queue.
    if held is not None and held.is_tentative and held.node in candidates:
        plan = _plan(state, pod, spec, {held.node})
        if not plan.refused:
            return plan
    return _plan(state, pod, spec, candidates)


def _is_on_same_node(state: State, held: Reservation) -> bool:
    """Return True unless the node was registered again since; then its devices may differ."""
    return held.allocation is None or state.cache.is_there(held.allocation)


def _note_hit(state: State, held: Reservation | None, plan: Plan) -> None:
    """Count a hit for the class if the pod gets the place that it was requeued for."""
    if held is None or not held.is_tentative or held.kind is None or plan.node != held.node:
        return
    of_kind = state.queue.class_of(held.kind)
    if of_kind is not None:
        of_kind.hit(held.number)


def offer_immediate(
    state: State, claim: VGPUClaim, candidates: Collection[str] | None = None
) -> Reservation | Refusal:
    """Reserve devices for an Immediate claim, on one of the candidates if any are given."""
    key = key_of(claim)
    held = state.reservations.of_claim(key)
    if held is not None and not held.is_tentative:
        return held
    request = Demand.of(claim.spec, state.config)
    priority = claim_priority(state, claim)
    with state.deciding(key, Yielding.AS_IMPORTANT, priority=priority) as kept:
        budget = state.ledger.budget(key.namespace)
        plan = place(state.ledger.columns, request, candidates, budget=budget, kept=kept)
    if plan.refused:
        return Refusal(plan=plan, notes=_notes(state, key, request, None, priority))
    return reserve(state, key, claim.spec, plan, None)


def without_effect(
    state: State, pod: GPUPod, candidates: Collection[str]
) -> Mapping[str, str] | Refusal:
    """Return why the pod cannot use some of the nodes, by node, without reserving anything."""
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        return spec
    with state.deciding(pod.claim, Yielding.MORE_IMPORTANT, priority=pod.priority) as kept:
        return in_words(
            refusals_on(
                state.ledger.columns,
                pod.request(spec, state.config),
                candidates,
                nodes=nodes_of(state, pod),
                budget=state.ledger.budget(pod.claim.namespace, pod.scopes),
                kept=kept,
            )
        )


def withdraw(state: State, pod: GPUPod) -> None:
    """End a pod's offered reservation now, unless a Binding to its node may still succeed."""
    held = state.reservations.of_pod(pod.uid)
    if held is None:
        return
    if held.is_tentative:
        unreserve(state, held)
    elif not held.is_immediate:
        held.withdraw(state.now)
        state.claims.look_at(held.key)


def wait(state: State, pod: GPUPod, refusal: Refusal, candidates: Collection[str]) -> None:
    """Queue or block a pod whose Filter was refused.

    Args:
        state: The engine's state.
        pod: The refused pod.
        refusal: The reason for the refusal.
        candidates: The nodes that kube-scheduler offered. If these were all feasible nodes, a
            requeue for any other node would have no effect, so the others are ruled out: a change
            that makes one of them feasible wakes the pod anyway.
    """
    held = state.reservations.of_pod(pod.uid)
    missed = 0 if held is None else _rule_out(state, held, candidates)
    spec = spec_for(state, pod)
    claim = state.cache.claim(pod.claim)
    if isinstance(spec, Refusal) or _is_decided(state, claim, pod):
        state.pods.blocked[pod.uid] = refusal
        state.queue.remove(pod.claim)
        state.claims.look_at(pod.claim)
        return
    # From here on only capacity can help, so the pod joins the queue.
    state.pods.blocked.pop(pod.uid, None)
    if len(candidates) < SAMPLED_FROM:
        numbers = state.ledger.columns.node_ids(candidates)
        missed = ~sum({only(number) for number in numbers if number is not None})
    put_in_queue(state, pod, spec, ruled_out=missed)


def _rule_out(state: State, held: Reservation, candidates: Collection[str]) -> int:
    """End the place of a refused pod; return the bit of a node it need not be requeued for.

    An offer that is already written lapses instead, so that its pod is read before it ends.
    """
    if held.is_tentative:
        unreserve(state, held)
        if held.node in candidates:
            return 0
        _count_miss(state, held)
        return only(held.number)
    if held.is_written and not (held.is_binding or held.is_immediate):
        held.lapse_now(state.now)
        state.claims.look_at(held.key)
    return 0


def _is_decided(state: State, claim: VGPUClaim | None, pod: GPUPod) -> bool:
    """Return True if capacity does not matter: a Binding is open, or the claim refuses the pod."""
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.is_binding:
        return True
    if claim is None:
        return False
    return claim.spec.binding_mode == "Immediate" or refusal_of(state, claim, pod) is not None


def _count_miss(state: State, held: Reservation) -> None:
    of_kind = None if held.kind is None else state.queue.class_of(held.kind)
    if of_kind is not None:
        of_kind.missed(held.number)


def put_in_queue(
    state: State,
    pod: GPUPod,
    spec: VGPUClaimSpec,
    *,
    ruled_out: int = 0,
    standing: Standing = Standing.WAITS,
) -> Waiter:
    """Add a pod to the queue for devices on any node, or on its own node if it is bound.

    Args:
        state: The engine's state.
        pod: The pod that waits.
        spec: The spec of its claim.
        ruled_out: Bits of nodes that it need not be requeued for.
        standing: The certainty that devices are all the pod lacks; it comes first in the rank.
    """
    request, namespace = pod.request(spec, state.config), pod.claim.namespace
    if pod.is_running:
        kind = EquivalenceClass(
            request,
            _ITS_NODE,
            namespace,
            node=pod.pod.spec.node_name,
            scopes=pod.scopes,
            priority=pod.priority,
        )
        # A pod that we bound goes first: it cannot move, and its containers cannot start without
        # devices.
        standing = Standing.WAITS if was_bound_past_us(state, pod) else Standing.BOUND
    else:
        kind = class_of(state, pod, spec, ruled_out=ruled_out)
    waiter = Waiter(pod.claim, pod.uid, kind, pod.rank(standing), state.now)
    return _put_in_queue(state, waiter)


def class_of(
    state: State, pod: GPUPod, spec: VGPUClaimSpec, *, ruled_out: int = 0
) -> EquivalenceClass:
    """Return the class in which a pod that has no node waits."""
    return EquivalenceClass(
        pod.request(spec, state.config),
        pod.rules,
        pod.claim.namespace,
        ruled_out=ruled_out,
        avoided=avoided_by(state, pod),
        host_demand=pod.host_demand if pod.is_gated else None,
        scopes=pod.scopes,
        group=None if pod.uid in state.gates.alone else pod.group,
        priority=pod.priority,
    )


def put_immediate_in_queue(state: State, claim: VGPUClaim) -> Waiter:
    """Add an Immediate claim to the queue; if its pod is bound already, for that node only."""
    key = key_of(claim)
    bound = [pod for pod in state.cache.pods_of(key) if pod.is_running]
    node = min((pod.pod.spec.node_name for pod in bound), default="")
    request = Demand.of(claim.spec, state.config)
    rules = _ITS_NODE if bound else _ANY_NODE
    priority = claim_priority(state, claim)
    kind = EquivalenceClass(request, rules, key.namespace, node=node, priority=priority)
    is_ours = any(not was_bound_past_us(state, pod) for pod in bound)
    standing = Standing.BOUND if is_ours else Standing.WAITS
    created = claim.metadata.creation_timestamp
    rank = rank_of(standing, priority, created, key)
    return _put_in_queue(state, Waiter(key, "", kind, rank, state.now))


def _put_in_queue(state: State, waiter: Waiter) -> Waiter:
    queued = state.queue.put(waiter)
    after_s = state.config.scheduling.starvation_after_seconds
    # A waiter that was queued before keeps its place and its timer; otherwise each refusal would
    # start its wait again.
    if queued is waiter and after_s:
        state.starving.set(waiter.key, waiter.since + after_s)
    if state.config.scheduling.preemption.enabled and waiter.pod_uid:
        state.preempting.set(waiter.key, state.now + PREEMPT_AFTER_S)
    state.claims.look_at(waiter.key)
    return queued


def was_bound_past_us(state: State, pod: GPUPod) -> bool:
    """Return True if somebody else bound the pod, so that it waits in turn like any other.

    Its author named another scheduler, or our gate was removed by hand. If such a pod went first,
    anybody could jump the queue. The check relies on the scheduler's name, because that cannot be
    changed and our schedulers bind only through our Bind; everything else in a pod can be forged.
    """
    if not pod.pod.spec.node_name or pod.uid in state.pods.owed:
        return False
    scheduling = state.config.scheduling
    ours = {scheduling.scheduler_name, *names.SCHEDULER_ALIASES}
    return scheduling.decides_first or pod.pod.spec.scheduler_name not in ours


def yielding_of(state: State, pod: GPUPod) -> Yielding:
    """Return the rule by which a pod respects tentative places if it gets its devices at once."""
    is_past_us = was_bound_past_us(state, pod)
    return Yielding.AS_IMPORTANT if is_past_us else Yielding.MORE_IMPORTANT


def nodes_for(kind: EquivalenceClass, state: State) -> NodeFilter:
    """Return the nodes that pods of a kind could run on, as far as the engine knows."""
    nodes = state.ledger.filters.of(kind.rules, kind.host_demand)
    if not (kind.node or kind.ruled_out or kind.avoided):
        return nodes
    selector = nodes.selector & ~kind.ruled_out
    if kind.node:  # the pod is bound and can never move to another node
        number = state.ledger.columns.node_id(kind.node)
        selector &= 0 if number is None else only(number)
    return replace(nodes, selector=selector, welcoming=~kind.avoided)


def claim_priority(state: State, claim: VGPUClaim) -> int:
    """Return the claim's priority, capped at `scheduling.maxClaimPriority`."""
    return min(claim.spec.scheduling_priority, state.config.scheduling.max_claim_priority)


def spec_for(state: State, pod: GPUPod) -> VGPUClaimSpec | Refusal:
    """Return the spec of the pod's claim, or of the claim that will be made for the pod."""
    if isinstance(pod.demand, BadInput):
        return Refusal(Reason.POD_UNREADABLE, str(pod.demand))
    cache = state.cache
    claim = cache.claim(pod.claim)
    refusal = _refusal_of_pod(state, pod, claim)
    if refusal is not None:
        return refusal
    for key in (pod.claim, None if claim is not None else pod.template):
        if key is not None and cache.is_unreadable(key):
            text = f"claim {key.name} cannot be read; what it holds it keeps"
            return Refusal(Reason.CLAIM_UNREADABLE, text)
    if claim is not None:
        return _of_later_version(claim) or claim.spec
    if pod.demand.spec is not None:
        return pod.demand.spec
    if pod.template is not None:
        return _copy_for(state, pod, pod.template)
    text = f"claim {pod.claim.name} does not exist yet; the pod waits for it"
    return Refusal(Reason.CLAIM_MISSING, text)


def _refusal_of_pod(state: State, pod: GPUPod, claim: VGPUClaim | None) -> Refusal | None:
    """Return why the pod itself gets no device, regardless of its claim, or None."""
    # Before anything else: without admission, the pod's use of devices has not been validated.
    if not pod.is_admitted and not _was_decided_for(claim, pod):
        return Refusal(Reason.NOT_ADMITTED, _NOT_ADMITTED)
    if pod.group is None or not pod.wants_node:
        return None
    return of_mixed_group(state, pod.group)


def of_mixed_group(state: State, group: GroupKey) -> Refusal | None:
    """Return the refusal of a group that no scheduler places as a whole, or None."""
    traits = sorted(state.cache.traits_of_group(group).items(), key=str)
    if len(traits) < 2:
        return None
    needs, has_least = "one scheduler and one priority", any(each.least for each, _ in traits)
    if has_least:
        needs = f"one scheduler, one priority and one {names.ANNOTATION_GROUP_MIN}"
    each = (
        f"{count} have {trait.scheduler} and {trait.priority}"
        + (f" and {trait.least}" if has_least else "")
        for trait, count in traits
    )
    text = f"pods of group {group.name} need {needs}: {', '.join(each)}"
    return Refusal(Reason.GROUP_MISMATCH, text)


def _was_decided_for(claim: VGPUClaim | None, pod: GPUPod) -> bool:
    """Return True if the claim already holds devices for this pod, which then keeps them."""
    if claim is None or claim.status.allocation is None:
        return False
    reserved = claim.status.reserved_for
    return reserved is not None and reserved.pod_uid == pod.uid


def refusal_of(state: State, claim: VGPUClaim, pod: GPUPod) -> Refusal | None:
    """Return why an existing claim cannot serve the pod with any devices, or None if it can."""
    name = claim.metadata.name
    # Otherwise a user who may create claims could give somebody's waiting pod other amounts.
    if pod.owned and not is_owned_by(claim, pod.uid):
        return Refusal(Reason.CLAIM_NOT_OWNED, f"claim {name} exists and is not this pod's own")
    if claim.metadata.deletion_timestamp is not None:
        return Refusal(Reason.CLAIM_IN_USE, f"claim {name} is going away")
    if serves_another(claim, pod.uid):
        reserved = claim.status.reserved_for
        assert reserved is not None
        return Refusal(Reason.CLAIM_IN_USE, f"claim {name} serves {reserved.pod_name}")
    later = _of_later_version(claim)
    if later is not None:
        return later
    differs = mismatch(pod, claim.spec)
    if differs:
        return Refusal(Reason.REQUEST_MISMATCH, differs)
    if claim.status.allocation is None and state.cache.is_template(pod.claim):
        text = f"claim {name} is a template: name it in the pod as one"
        return Refusal(Reason.TEMPLATE, text)
    return None


def _of_later_version(claim: VGPUClaim) -> Refusal | None:
    """Return a refusal if the claim has values that this version of the operator does not know."""
    if not claim.unknown_values:
        return None
    text = (
        f"claim {claim.metadata.name} has values that this version of the operator does not know, "
        f"and keeps what it holds: {', '.join(claim.unknown_values)}"
    )
    return Refusal(Reason.CLAIM_UNREADABLE, text)


def _copy_for(state: State, pod: GPUPod, key: ClaimKey) -> VGPUClaimSpec | Refusal:
    """Return the spec of the claim to be made from a template for the pod."""
    template = state.cache.claim(key)
    if template is None:
        text = f"claim template {key.name} does not exist yet; the pod waits for it"
        return Refusal(Reason.CLAIM_MISSING, text)
    later = _of_later_version(template)
    if later is not None:
        return later
    if template.spec.binding_mode != "WaitForFirstConsumer":
        text = f"claim {key.name} is {template.spec.binding_mode}; a template must not be"
        return Refusal(Reason.REQUEST_MISMATCH, text)
    differs = mismatch(pod, template.spec)
    return Refusal(Reason.REQUEST_MISMATCH, differs) if differs else template.spec


def _standing(
    state: State, pod: GPUPod, claim: VGPUClaim, candidates: Collection[str]
) -> Reservation | Refusal | None:
    """Return the reservation or refusal that an existing claim implies, or None if it has none."""
    refusal = refusal_of(state, claim, pod)
    allocation = claim.status.allocation
    if refusal is not None or allocation is None:
        return refusal
    is_bound_there = pod.pod.spec.node_name == allocation.node_name
    # The node was registered again since, so its devices may be others. The allocation is void and
    # the pod is planned like a new one.
    if not is_bound_there and not state.cache.is_there(allocation):
        return None
    if allocation.node_name in candidates:
        return _unless_avoided(state, pod, claim) or adopt(state, pod, claim)
    if claim.spec.binding_mode != "Immediate" and not is_bound_there:
        # The allocation moves. It would stay if its pod were bound there, because a new leader
        # relies on that (docs/design/leader-and-fence.md).
        return None
    text = f"claim {claim.metadata.name} has its GPUs on {allocation.node_name}"
    return Refusal(Reason.RESERVED_ELSEWHERE, text)


def _unless_avoided(state: State, pod: GPUPod, claim: VGPUClaim) -> Refusal | None:
    """Return a refusal if the pod must avoid the node of its Immediate claim for now."""
    allocation = claim.status.allocation
    if claim.spec.binding_mode != "Immediate" or allocation is None or pod.pod.spec.node_name:
        return None
    number = state.ledger.columns.node_id(allocation.node_name)
    if number is None or not avoided_by(state, pod) >> number & 1:
        return None
    text = (
        f"claim {claim.metadata.name} has its GPUs on {allocation.node_name}, which turned away a "
        f"pod of the same controller; it is tried there again later"
    )
    return Refusal(Reason.NODE_AVOIDED, text)


def _immediate_for(
    state: State, claim: VGPUClaim, candidates: Collection[str]
) -> Reservation | Refusal:
    """Reserve devices for an Immediate claim whose pod arrived before the claim was decided."""
    outcome = offer_immediate(state, claim, candidates)
    if isinstance(outcome, Refusal) or outcome.node in candidates:
        return outcome
    text = f"claim {claim.metadata.name} gets its GPUs on {outcome.node}"
    return Refusal(Reason.RESERVED_ELSEWHERE, text)


def _plan(state: State, pod: GPUPod, spec: VGPUClaimSpec, candidates: Collection[str]) -> Plan:
    """Plan a pod on the candidates, as if its claim held nothing.

    The first try respects all tentative places; only if the pod does not fit beside them, a second
    try respects those of more important pods alone.
    """
    nodes, yielding = nodes_of(state, pod), yielding_of(state, pod)
    with state.deciding(pod.claim, yielding, priority=pod.priority, group=pod.group) as kept:
        views = [kept]
        if state.reservations.tentative:
            # Respecting every tentative place first costs a second plan only if the pod does not
            # fit beside them, and saves those pods another round in the queue.
            views.insert(0, replace(kept, yielding=Yielding.ALL))
        for each in views:
            plan = place(
                state.ledger.columns,
                pod.request(spec, state.config),
                candidates,
                nodes=nodes,
                budget=budget_for(state, pod),
                kept=each,
            )
            if not plan.refused:
                return plan
        # `groups` is computed when it is first read, and must be read in here, where the claim's
        # own devices count as free.
        _ = plan.groups
    return plan


def budget_for(state: State, pod: GPUPod) -> Budget:
    """Return the amounts that quotas leave for a pod after its group's provisional places."""
    budget = state.ledger.budget(pod.claim.namespace, pod.scopes)
    if pod.group is None or not budget.is_limited:
        return budget
    fellows = (state.reservations.of_pod(each.uid) for each in state.cache.pods_of_group(pod.group))
    shares = [
        share
        for held in fellows
        if held is not None and held.group is not None and held.pod_uid != pod.uid
        for share in held.shares
    ]
    return budget.less(
        memory_mib=sum(share.memory_mib for share in shares),
        cores=sum(share.cores for share in shares),
        devices=len(shares),
    )


def nodes_of(state: State, pod: GPUPod) -> NodeFilter:
    """Return the nodes that the pod may use by its own rules, leaving devices and CPU aside."""
    if pod.pod.spec.node_name:
        return state.ledger.filters.rules.of(_ITS_NODE)
    nodes = state.ledger.filters.rules.of(pod.rules)
    avoided = avoided_by(state, pod)
    return replace(nodes, welcoming=~avoided) if avoided else nodes


def avoided_by(state: State, pod: GPUPod) -> int:
    """Return a bit mask of the nodes that recently refused this pod or another of its controller.

    If there are any, record when the first of them may be used again, so that the pod is retried
    then.
    """
    if not state.avoidance.of:
        return 0
    bits, first = 0, float("inf")
    avoiding = dict.fromkeys((controller_of(pod), pod.uid))
    for name, avoided in (
        item for who in avoiding for item in state.avoidance.of.get(who, {}).items()
    ):
        number = state.ledger.columns.node_id(name)
        if avoided.until > state.now and number is not None:
            bits |= only(number)
            first = min(first, avoided.until)
    if bits:
        state.avoidance.waiting[pod.uid] = first
    return bits


def why_not_there(state: State, pod: GPUPod, node: str) -> Reason | None:
    """Return why a pod cannot go to a node now, leaving its devices aside, or None if it can."""
    number = state.ledger.columns.node_id(node)
    if number is None:
        return Reason.NODE_NOT_READY
    if avoided_by(state, pod) >> number & 1:
        return Reason.NODE_AVOIDED
    return state.ledger.filters.why_not_on(number, pod.rules, pod.host_demand, pod.uid)


def controller_of(pod: GPUPod) -> str:
    """Return the UID of the pod's controller, or the pod's own if it has none."""
    owners = pod.pod.metadata.owner_references
    return next((each.uid for each in owners if each.controller), pod.uid)


def _notes(
    state: State, key: ClaimKey, request: Demand, group: GroupKey | None, priority: int
) -> Mapping[str, str]:
    if not len(state.earmarks):
        return {}
    return explain(state.ledger.columns, state.earmarks, key, request, group, priority)


def _evict_tentative(state: State, reservation: Reservation) -> None:
    """End tentative places whose capacity a reservation has taken, and judge their pods again."""
    columns, number = state.ledger.columns, reservation.number
    for place_ in list(state.reservations.tentative.get(number, {}).values()):
        if place_.key == reservation.key:
            continue
        overlaps = any(
            columns.memory_used[share.device] + share.memory_mib > columns.memory[share.device]
            or columns.slots_used[share.device] + share.slots > columns.slots[share.device]
            or columns.cores_used[share.device] + share.cores > columns.cores[share.device]
            for share in place_.shares
        )
        if overlaps:
            unreserve(state, place_)
            state.pods.due[place_.pod_uid] = None
