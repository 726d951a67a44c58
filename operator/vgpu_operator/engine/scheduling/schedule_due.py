"""The pass over the queue: waiters that fit get a place, the most important and oldest first.

Bound pods, gated pods and Immediate claims get their devices at once. A pod that waits in
kube-scheduler gets a tentative place and is requeued; its Filter then makes the reservation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey, Rank
from vgpu_operator.engine.scheduling.gate_groups import is_resting, is_short, start_group
from vgpu_operator.engine.scheduling.groups import is_being_tried, requeue_group
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.places import reserve, take_tentatively
from vgpu_operator.engine.scheduling.queue import UNKNOWN, WaitClass, Waiter
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import requeue, was_just_requeued
from vgpu_operator.engine.scheduling.schedule_one import (
    claim_priority,
    nodes_for,
    offer,
    spec_for,
    yielding_of,
)
from vgpu_operator.engine.state import State
from vgpu_operator.placement import Plan, best_of, place


@dataclass(slots=True)
class _Look:
    """The progress of a pass through one class, kept while other classes have their turn.

    Attributes:
        of_kind: The class.
        changed: The numbers of the nodes that may now serve the class; None if any may.
        passed: Waiters that were skipped because it is too early to try them again.
    """

    of_kind: WaitClass
    changed: frozenset[int] | None
    passed: list[Waiter] = field(default_factory=list)


def schedule_due(state: State) -> Iterator[list[Effect]]:
    """Try every class for which something may have changed; yield the effects of each waiter.

    The pass leaves a class when the next waiter by rank is in another class, and comes back later.
    Otherwise one important pod would pull all others of its class ahead of everybody else.

    The state may change between two lists, and the caller decides how long to continue.
    """
    freed, line, at = _Freed(state), state.queue.by_rank(), 0
    left: list[tuple[Rank, int, _Look]] = []
    while at < len(line) or left:
        if left and (at == len(line) or left[0][0] < line[at][0]):
            look = heappop(left)[2]
        else:
            of_kind = line[at][1]
            at += 1
            if not _is_worth_a_look(of_kind, freed, state):
                yield []
                continue
            look = _Look(of_kind, freed.nodes_to_look_at(of_kind))
        others = [line[at][0]] if at < len(line) else []
        others += [rank for rank, _, _ in left[:1]]
        head = yield from _schedule_class(look, min(others, default=None), freed, state)
        if head is not None:
            heappush(left, (head.rank, id(look), look))


class _Freed:
    """The nodes that may now serve a class, found once for all classes with the same cursor.

    Attributes:
        woken: Groups for which any node may do now.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[int, int], frozenset[int]] = {}
        self.woken = frozenset(state.gates.woken)
        state.gates.woken.clear()

    def nodes_to_look_at(self, of_kind: WaitClass) -> frozenset[int] | None:
        """Return the numbers of the nodes that a pass checks for a class, or None for all."""
        everywhere = of_kind.looks_everywhere or of_kind.kind.group in self.woken
        return None if everywhere else self.nodes_for(of_kind)

    def nodes_for(self, of_kind: WaitClass) -> frozenset[int] | None:
        """Return the numbers of these nodes, or None if all nodes must be checked."""
        ledger = self._state.ledger
        if of_kind.cursor == UNKNOWN or of_kind.budget != ledger.budget_version(
            of_kind.kind.namespace
        ):
            return None
        span = of_kind.cursor, ledger.cursors[1]
        found = self._known.get(span)
        if found is None:
            _, names = ledger.freed_since(of_kind.cursor)
            numbers = ledger.columns.node_ids(names)
            found = self._known[span] = frozenset(n for n in numbers if n is not None)
        return found


def _is_worth_a_look(of_kind: WaitClass, freed: _Freed, state: State) -> bool:
    """Return True if a class is due, or its group was woken, and the group may be planned."""
    group = of_kind.kind.group
    if is_short(state, group):
        return False
    if group is not None and is_resting(state, group):
        state.gates.woken |= freed.woken & {group}
        return False
    return group in freed.woken or is_due(of_kind, state)


def is_due(of_kind: WaitClass, state: State) -> bool:
    """Return True if devices or quota have become free since the class was last tried."""
    budget = state.ledger.budget_version(of_kind.kind.namespace)
    return of_kind.cursor != state.ledger.cursors[1] or of_kind.budget != budget


def _schedule_class(
    look: _Look, until: Rank | None, freed: _Freed, state: State
) -> Generator[list[Effect], None, Waiter | None]:
    """Serve the waiters of a class up to a rank; return the next one behind it, if any is left."""
    of_kind = look.of_kind
    if look.changed is not None:
        look.changed = freed.nodes_for(of_kind)
    while (waiter := of_kind.head()) is not None:
        if until is not None and waiter.rank > until:
            return waiter
        if _is_too_early(waiter, state):
            look.passed.append(of_kind.pop())
            continue
        plan = _find_first(waiter, of_kind, look.changed, state)
        if plan is None:
            break
        if (group := of_kind.kind.group) is not None:
            of_kind.looks_everywhere = not (yield from _serve_group(waiter, group, state))
            break
        yield list(_serve(waiter, of_kind, plan, state))
        if look.changed is not None:
            look.changed = freed.nodes_for(of_kind)
    effects = list(_serve_earmarked(of_kind, look.changed, state))
    for waiter in look.passed:
        of_kind.push(waiter)
    # If the head was only skipped as too early, it may fit when its time has come, so
    # the class must be tried again without waiting for another release.
    if not look.passed or of_kind.head() is not look.passed[0]:
        of_kind.cursor = state.ledger.cursors[1]
        of_kind.budget = state.ledger.budget_version(of_kind.kind.namespace)
    yield effects
    return None


def _serve_group(
    waiter: Waiter, group: GroupKey, state: State
) -> Generator[list[Effect], None, bool]:
    """Requeue or reserve for the whole group of a waiter; return False if too few of it fit."""
    pod = state.cache.pod(waiter.pod_uid)
    start = start_group if pod is not None and pod.is_gated else requeue_group
    return (yield from start(state, group))


def _find_first(
    waiter: Waiter, of_kind: WaitClass, changed: frozenset[int] | None, state: State
) -> Plan | None:
    """Return a plan for the head of a class, or for any pod of the group that it represents."""
    plan = _find(waiter, changed, state)
    if plan is None and of_kind.kind.group is not None:
        return next((each for _, each in _earmarked(of_kind, changed, state)), None)
    return plan


def _is_too_early(waiter: Waiter, state: State) -> bool:
    """Return True if it is too early to try a waiter again."""
    return (
        state.claims.not_before.get(waiter.key, 0.0) > state.now
        or was_just_requeued(waiter.pod_uid, state)
        or is_being_tried(state, waiter.kind.group)
    )


def _serve_earmarked(
    of_kind: WaitClass, changed: frozenset[int] | None, state: State
) -> Iterator[Effect]:
    """Serve waiters behind the head that have an earmark."""
    if of_kind.kind.group is not None:
        return  # a group is served as a whole or not at all
    for waiter, plan in _earmarked(of_kind, changed, state):
        yield from _serve(waiter, of_kind, plan, state)


def _earmarked(
    of_kind: WaitClass, changed: frozenset[int] | None, state: State
) -> Iterator[tuple[Waiter, Plan]]:
    """Yield the waiters behind the head that fit where an earmark keeps devices from the head."""
    for earmark in state.earmarks:
        waiter = of_kind.waiters.get(earmark.key)
        if waiter is None or waiter is of_kind.head():
            continue
        if changed is not None and earmark.number not in changed:
            continue
        plan = _find(waiter, frozenset({earmark.number}), state)
        if plan is not None:
            yield waiter, plan


def _find(waiter: Waiter, changed: frozenset[int] | None, state: State) -> Plan | None:
    """Return a plan for a waiter on the nodes that changed, or None."""
    kind, columns = waiter.kind, state.ledger.columns
    nodes = nodes_for(kind, state)
    priority, yielding = _importance(waiter, state)
    with state.deciding(
        waiter.key, yielding, priority=priority, kind=kind, group=kind.group
    ) as kept:
        budget = state.ledger.budget(kind.namespace, kind.scopes)
        if kind.node:
            number = columns.node_id(kind.node)
            changed = frozenset() if number is None else frozenset({number})
        if changed is not None:
            return best_of(columns, kind.request, changed, nodes=nodes, budget=budget, kept=kept)
        plan = place(columns, kind.request, nodes=nodes, budget=budget, kept=kept)
    return None if plan.refused else plan


def _importance(waiter: Waiter, state: State) -> tuple[int, Yielding]:
    """Return a waiter's priority, and the rule by which it respects tentative places."""
    pod = state.cache.pod(waiter.pod_uid)
    if pod is None:
        claim = state.cache.claim(waiter.key)
        priority = 0 if claim is None else claim_priority(state, claim)
        return priority, Yielding.AS_IMPORTANT
    if pod.is_running or pod.is_gated:
        return pod.priority, yielding_of(state, pod)
    # A group that is requeued for room kept for another group would be tried in vain.
    is_of_group = waiter.kind.group is not None
    return pod.priority, Yielding.AS_IMPORTANT if is_of_group else Yielding.OF_ITS_KIND


def _serve(waiter: Waiter, of_kind: WaitClass, plan: Plan, state: State) -> Iterator[Effect]:
    """Carry out a plan for a waiter: reserve its devices, or requeue its pod."""
    state.queue.take(waiter.key)
    claim, pod = state.cache.claim(waiter.key), state.cache.pod(waiter.pod_uid)
    if not waiter.pod_uid:
        if claim is not None:
            reserve(state, waiter.key, claim.spec, plan, None)
        return
    if pod is None:
        return
    if pod.is_running:
        _serve_bound(pod, state)
        return
    if pod.is_gated and plan.node is not None:
        if isinstance(offer(state, pod, {plan.node}), Refusal):
            state.pods.due[pod.uid] = None
        return
    if pod.wants_node and plan.node is not None:
        take_tentatively(state, waiter, pod, plan)
        yield requeue(pod, plan.node, state)
        yield from _requeue_more(of_kind, plan.node, state)


def _requeue_more(of_kind: WaitClass, node: str, state: State) -> Iterator[Effect]:
    """Requeue more pods of a class for a node, twice as many after each of its misses."""
    number = state.ledger.columns.node_id(node)
    assert number is not None
    for _ in range(of_kind.at_once(number) - 1):
        other = of_kind.head()
        if other is None:
            return
        state.queue.take(other.key)
        late = state.cache.pod(other.pod_uid)
        if late is not None and late.wants_node:
            yield requeue(late, node, state)


def _serve_bound(pod: GPUPod, state: State) -> None:
    """Reserve devices for a bound pod on its node, replacing any other reservation of the pod."""
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        state.pods.due[pod.uid] = None
        return
    outcome = offer(state, pod, {pod.pod.spec.node_name})
    if isinstance(outcome, Refusal):
        state.pods.due[pod.uid] = None
        return
    outcome.begin_bind(pod.reserved_for)
    outcome.bound()
