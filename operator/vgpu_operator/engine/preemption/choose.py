"""Chooses the pods to evict: as few as possible on each node, then the best node.

On each node, all less important pods are first taken as removed. If the waiting pod then fits,
they are put back one after another, the most important first, for as long as it still fits. The
pods that cannot be put back are the victims. kube-scheduler finds its victims in the same way
(SelectVictimsOnNode), and nodes are compared as in its pickOneNodeForPreemption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vgpu_operator.demand import Demand
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.preemption.victims import claims_on, ending_on
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.places import shares_of
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import NodeFilter, Plan, Share, place
from vgpu_operator.placement.constraints import Budget, Kept, only

NODES_WEIGHED = 32
"""Nodes with victims that are compared; more would cost more than a better choice is worth."""
NODES_LOOKED_AT = 256
"""Nodes that are searched for one pod before it counts as beyond help."""
_OFFSET = 1 << 31
"""Makes every priority positive, so that of equally unimportant victims fewer are better."""


@dataclass(frozen=True, slots=True)
class ChosenPlaces:
    """The places that have been chosen for other pods of the preemptor's group.

    Attributes:
        shares: What these pods take, by node number.
        victims: The pods that are evicted for them.
    """

    shares: Mapping[int, tuple[Share, ...]] = field(default_factory=dict)
    victims: tuple[Victim, ...] = ()

    def plus(self, choice: Choice) -> ChosenPlaces:
        """Return this with one more choice."""
        there = (*self.shares.get(choice.number, ()), *choice.shares)
        return ChosenPlaces({**self.shares, choice.number: there}, (*self.victims, *choice.victims))


NO_PLACES = ChosenPlaces()


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod that waits for devices.

    Attributes:
        pod: The pod.
        demand: Its request for devices.
        nodes: The nodes that it may use apart from devices.
        given: The places of other pods of its group, which count as taken.
    """

    pod: GPUPod
    demand: Demand
    nodes: NodeFilter
    given: ChosenPlaces = NO_PLACES


Cost: TypeAlias = tuple[int, int, int]
"""Broken budgets, the highest priority, and the sum of all priorities; the lowest is best."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The victims on one node, and the devices that the pod gets there.

    Attributes:
        node: The node's name.
        number: The number that the columns give the node.
        victims: The pods to evict, the most important first; empty if pods that end anyway suffice.
        shares: The shares of devices that the pod would get.
    """

    node: str
    number: int
    victims: tuple[Victim, ...]
    shares: tuple[Share, ...]

    def is_better_than(self, other: Choice) -> bool:
        """Return True if less is lost here, or the most important victim has run for less long."""
        cost, others = cost_of(self.victims), cost_of(other.victims)
        if cost != others:
            return cost < others
        since, others_since = _since(self.victims, cost[1]), _since(other.victims, cost[1])
        return since > others_since or (since == others_since and self.node < other.node)


def cost_of(victims: Collection[Victim]) -> Cost:
    """Return the cost of losing these victims."""
    return (
        sum(each.is_protected for each in victims),
        max((each.priority for each in victims), default=-_OFFSET),
        sum((each.priority + _OFFSET) * max(len(each.pods), 1) for each in victims),
    )


def _since(victims: Collection[Victim], priority: int) -> str:
    """Return the start time of the longest-running of the most important victims."""
    return min((each.since for each in victims if each.priority == priority), default="")


def search(state: State, preemptor: Preemptor) -> Iterator[Choice | None]:
    """Yield the best choice so far after each node that was looked at.

    A choice without victims ends the search: the pod gets its devices without an eviction. The
    state may change between two nodes, so `on_node` must be called again before any pod is evicted.
    """
    columns = state.ledger.columns
    deleted = _within(state, preemptor, state.cache.nodes_with_deleted_pods())
    for number, _ in columns.closest(preemptor.demand, NODES_WEIGHED, deleted):
        found = on_node(state, preemptor, columns.node_name[number], may_evict=False)
        yield found
        if found is not None:
            return
    below = preemptor.pod.priority - state.config.scheduling.preemption.min_gap
    weaker = _within(state, preemptor, state.cache.nodes_with_pods_below(below))
    best: Choice | None = None
    weighed = 0
    for number, _ in columns.closest(preemptor.demand, NODES_LOOKED_AT, weaker):
        found = on_node(state, preemptor, columns.node_name[number], better_than=best)
        if found is not None and not found.victims:
            yield found
            return
        if found is not None and (best is None or found.is_better_than(best)):
            best = found
        yield best
        weighed += best is not None
        if weighed == NODES_WEIGHED:
            return


def on_node(
    state: State,
    preemptor: Preemptor,
    node: str,
    also: Collection[str] = (),
    better_than: Choice | None = None,
    *,
    may_evict: bool = True,
) -> Choice | None:
    """Return the pods to evict on one node; None if even the end of all would not help.

    Args:
        state: The engine's state.
        preemptor: The pod that waits.
        node: The node's name.
        also: UIDs of pods that end in any case.
        better_than: Return None as soon as it is known that this choice costs less.
        may_evict: Count only what ends in any case as free.
    """
    chosen = preemptor.given.victims
    candidates: tuple[Victim, ...] = ()
    at_most = None if better_than is None else cost_of(better_than.victims)
    if may_evict:
        there = claims_on(state, preemptor.pod, node, also, chosen)
        ending, candidates = there.ending, _weighed(there.victims, at_most, state)
    else:
        ending = ending_on(state, preemptor.pod, node, also, chosen)
    with _planning(state, preemptor, node, ending) as planner:
        plan = planner.without(())
        victims = _fewest(planner, candidates, at_most) if plan.refused else ()
        if victims:
            plan = planner.without(victims)
        if victims and plan.refused:  # a MIG slice or a core by number is in the way
            victims = _fewest(planner, candidates, at_most, exactly=True)
            plan = planner.without(victims or ())
    if plan.refused or victims is None:
        return None
    return _choice(state, plan, victims)


def anywhere(state: State, preemptor: Preemptor) -> Choice | None:
    """Return a place on any node that needs no eviction, or None."""
    ended = tuple(_keys(preemptor.given.victims))
    with _planning(state, preemptor, None, ended) as planner:
        plan = planner.without(())
    return None if plan.refused else _choice(state, plan, ())


def plus_all(
    state: State, preemptors: Sequence[Preemptor], node: str, given: ChosenPlaces
) -> ChosenPlaces | None:
    """Add a place on one node for each of these pods; None if one of them does not fit.

    No pod is evicted for them except the given victims.
    """
    ending = ending_on(state, preemptors[0].pod, node, (), given.victims)
    with state.ledger.without(*ending):
        for each in preemptors:
            with _planning(state, replace(each, given=given), node, ()) as planner:
                plan = planner.without(())
            if plan.refused:
                return None
            given = given.plus(_choice(state, plan, ()))
    return given


def _choice(state: State, plan: Plan, victims: tuple[Victim, ...]) -> Choice:
    number = state.ledger.columns.node_id(plan.node or "")
    assert plan.node is not None
    assert number is not None
    return Choice(plan.node, number, victims, shares_of(state.ledger.columns, plan))


def _weighed(victims: tuple[Victim, ...], at_most: Cost | None, state: State) -> tuple[Victim, ...]:
    """Return the victims that may be evicted and whose loss could be worth it."""
    if state.config.scheduling.preemption.budgets == "Respect":
        victims = tuple(each for each in victims if not each.is_protected)
    if at_most is not None and not at_most[0]:  # a choice without anybody more important is known
        victims = tuple(each for each in victims if each.priority <= at_most[1])
    return victims


def _fewest(
    planner: _Planner, candidates: Sequence[Victim], at_most: Cost | None, *, exactly: bool = False
) -> tuple[Victim, ...] | None:
    """Return the candidates that have to go.

    Return None if it does not help that all of them go, or if more is lost than allowed. The longer
    the run of candidates that can stay, the more are tried at once: of ten pods on each of eight
    devices most can stay.
    """

    def fits_beside(staying: Sequence[Victim]) -> bool:
        if not exactly:
            return planner.fits_beside(staying)
        return not planner.without([each for each in candidates if each not in staying]).refused

    staying: list[Victim] = []
    victims: list[Victim] = []
    at, step = 0, 1
    with nullcontext() if exactly else planner.state.ledger.without(*_keys(candidates)):
        if not candidates or not fits_beside(()):
            return None
        while at < len(candidates):
            tried = candidates[at : at + step]
            if fits_beside([*staying, *tried]):
                staying += tried
                at, step = at + len(tried), 2 * step
            elif len(tried) > 1:
                step = len(tried) // 2
            else:
                victims += tried
                at += 1
                if at_most is not None and cost_of(victims) > at_most:
                    return None
    return tuple(victims)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans a pod on one node as if some victims held nothing.

    Victims do not give their quota back: a namespace that has used up its quota shall not evict its
    own pods for that.
    """

    state: State
    preemptor: Preemptor
    nodes: Collection[str] | None
    number: int
    budget: Budget
    kept: Kept

    def without(self, victims: Collection[Victim]) -> Plan:
        """Return the plan."""
        with self.state.ledger.without(*_keys(victims)):
            return self._plan(self.kept)

    def fits_beside(self, staying: Sequence[Victim]) -> bool:
        """Return True if the pod fits although these stay, while the ledger is without them.

        It counts the memory, compute and slots that they hold, but neither MIG slices nor cores by
        number. So it is a good guess, for a fraction of the time of `without`.
        """
        shares = [share for victim in staying for share in victim.shares]
        return not self._plan(_Beside(self.kept, (self.number,), {self.number: shares})).refused

    def _plan(self, kept: Kept) -> Plan:
        return place(
            self.state.ledger.columns,
            self.preemptor.demand,
            self.nodes,
            nodes=self.preemptor.nodes,
            budget=self.budget,
            kept=kept,
        )


@contextmanager
def _planning(
    state: State, preemptor: Preemptor, node: str | None, ending: Collection[ClaimKey]
) -> Iterator[_Planner]:
    """Yield a planner that counts the devices of ending pods as free, on one node or on all."""
    pod, taken = preemptor.pod, preemptor.given.shares
    number = None if node is None else state.ledger.columns.node_id(node)
    with state.deciding(
        pod.claim, Yielding.ANEW, priority=pod.priority, group=pod.group, ended=ending
    ) as kept:
        nodes = {*kept.nodes, *taken} if number is None else (number,)
        yield _Planner(
            state,
            preemptor,
            None if node is None else {node},
            -1 if number is None else number,
            _budget(state, preemptor),
            _Beside(kept, nodes, taken) if taken else kept,
        )


def _budget(state: State, preemptor: Preemptor) -> Budget:
    """Return the amounts that quotas leave for the pod after the places of its group."""
    pod = preemptor.pod
    budget = state.ledger.budget(pod.claim.namespace, pod.scopes)
    shares = [share for there in preemptor.given.shares.values() for share in there]
    return budget.less(
        memory_mib=sum(share.memory_mib for share in shares),
        cores=sum(share.cores for share in shares),
        devices=len(shares),
    )


@dataclass(frozen=True, slots=True)
class _Beside:
    """The capacity that is kept for others, and more that counts as taken, by node number.

    Implements `placement.Kept`.
    """

    kept: Kept
    nodes: Collection[int]
    taken: Mapping[int, Sequence[Share]]

    def on(self, node: int) -> Sequence[Share]:
        """See `placement.Kept`."""
        return [*self.kept.on(node), *self.taken.get(node, ())]


def _keys(victims: Iterable[Victim]) -> Iterator[ClaimKey]:
    for victim in victims:
        yield from victim.keys


def _within(state: State, preemptor: Preemptor, names: Collection[str]) -> NodeFilter:
    """Return those of the named nodes that the preemptor may use."""
    numbers = state.ledger.columns.node_ids(names)
    bits = sum(only(number) for number in set(numbers) if number is not None)
    return replace(preemptor.nodes, selector=preemptor.nodes.selector & bits)
