"""The pass over those that wait: who fits gets a place, the most important and oldest first.

A bound pod, one behind our gate and an Immediate claim get their devices at once. A pod that
kube-scheduler has set aside gets a tentative place and is requeued: its Filter makes the
reservation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.gpu_pod import GPUPod, Rank
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
    """A look at one class, left while it is the turn of somebody else.

    Attributes:
        of_kind: The class.
        changed: The numbers of the nodes that may serve the class by now; None: any may.
        passed: Of those that cannot be served now, though others of the class may be.
    """

    of_kind: WaitClass
    changed: frozenset[int] | None
    passed: list[Waiter] = field(default_factory=list)


def schedule_due(state: State) -> Iterator[list[Effect]]:
    """Look at every class for which something may have changed; effects after each that is served.

    A class is left when it is the turn of one in another class, and taken up again later: its first
    in turn, however important, must not bring along all the others.

    Between two lists anything may happen to the state: the caller decides how long to go on.
    """
    freed, line, at = _Freed(state), state.queue.by_rank(), 0
    left: list[tuple[Rank, int, _Look]] = []
    while at < len(line) or left:
        if left and (at == len(line) or left[0][0] < line[at][0]):
            look = heappop(left)[2]
        else:
            of_kind = line[at][1]
            at += 1
            if not is_due(of_kind, state):
                yield []
                continue
            look = _Look(of_kind, freed.nodes_for(of_kind))
        others = [line[at][0]] if at < len(line) else []
        others += [rank for rank, _, _ in left[:1]]
        head = yield from _schedule_class(look, min(others, default=None), freed, state)
        if head is not None:
            heappush(left, (head.rank, id(look), look))


class _Freed:
    """Which nodes may serve a class by now; found once for all classes of the same cursor."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def nodes_for(self, of_kind: WaitClass) -> frozenset[int] | None:
        """Their numbers; None: any may."""
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


def is_due(of_kind: WaitClass, state: State) -> bool:
    """Whether anything has become free since the class was last tried."""
    budget = state.ledger.budget_version(of_kind.kind.namespace)
    return of_kind.cursor != state.ledger.cursors[1] or of_kind.budget != budget


def _schedule_class(
    look: _Look, until: Rank | None, freed: _Freed, state: State
) -> Generator[list[Effect], None, Waiter | None]:
    """Serve those of a class that come before a rank; returns who is behind, if anybody is left."""
    of_kind = look.of_kind
    if look.changed is not None:
        look.changed = freed.nodes_for(of_kind)
    while (waiter := of_kind.head()) is not None:
        if until is not None and waiter.rank > until:
            return waiter
        too_early = state.claims.not_before.get(waiter.key, 0.0) > state.now
        if too_early or was_just_requeued(waiter.pod_uid, state):
            look.passed.append(of_kind.pop())
            continue
        plan = _find(waiter, look.changed, state)
        if plan is None:
            break
        yield list(_serve(waiter, of_kind, plan, state))
        if look.changed is not None:
            look.changed = freed.nodes_for(of_kind)
    effects = list(_serve_earmarked(of_kind, look.changed, state))
    for waiter in look.passed:
        of_kind.push(waiter)
    if not look.passed or of_kind.head() is not look.passed[0]:  # else there may be room in time
        of_kind.cursor = state.ledger.cursors[1]
        of_kind.budget = state.ledger.budget_version(of_kind.kind.namespace)
    yield effects
    return None


def _serve_earmarked(
    of_kind: WaitClass, changed: frozenset[int] | None, state: State
) -> Iterator[Effect]:
    """What is kept for one of the class is kept from its head too, which may have come later."""
    for earmark in state.earmarks:
        waiter = of_kind.waiters.get(earmark.key)
        if waiter is None or waiter is of_kind.head():
            continue
        if changed is not None and earmark.number not in changed:
            continue
        plan = _find(waiter, frozenset({earmark.number}), state)
        if plan is not None:
            yield from _serve(waiter, of_kind, plan, state)


def _find(waiter: Waiter, changed: frozenset[int] | None, state: State) -> Plan | None:
    """A place for who waits, among the nodes that changed."""
    kind, columns = waiter.kind, state.ledger.columns
    nodes = nodes_for(kind, state)
    priority, yielding = _importance(waiter, state)
    with state.deciding(waiter.key, yielding, priority=priority, kind=kind) as kept:
        budget = state.ledger.budget(kind.namespace, kind.scopes)
        if kind.node:
            number = columns.node_id(kind.node)
            changed = frozenset() if number is None else frozenset({number})
        if changed is not None:
            return best_of(columns, kind.request, changed, nodes=nodes, budget=budget, kept=kept)
        plan = place(columns, kind.request, nodes=nodes, budget=budget, kept=kept)
    return None if plan.refused else plan


def _importance(waiter: Waiter, state: State) -> tuple[int, Yielding]:
    """Return a waiter's priority, and which tentative places it respects."""
    pod = state.cache.pod(waiter.pod_uid)
    if pod is None:
        claim = state.cache.claim(waiter.key)
        priority = 0 if claim is None else claim_priority(state, claim)
        return priority, Yielding.AS_IMPORTANT
    is_served = pod.is_running or pod.is_gated
    return pod.priority, yielding_of(state, pod) if is_served else Yielding.OF_ITS_KIND


def _serve(waiter: Waiter, of_kind: WaitClass, plan: Plan, state: State) -> Iterator[Effect]:
    """Give a place to who waits."""
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
    """Wake more pods of a class for a node, twice as many after each that was not offered it."""
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
    """A pod that has a node gets its devices there, whatever else it was to get."""
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
