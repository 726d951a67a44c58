"""Chooses the pods to evict for a single pod, or for the pods of a group that must start together.

The pods of a group are planned one after another. Each counts the places of earlier pods as taken
and their victims as gone, so the cost is the sum; if too few get a place, nobody is evicted. A plan
for a large group takes many steps, and the state may change between them. So the plan
is checked again before anybody is evicted.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass

from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.preemption.choose import (
    NO_PLACES,
    Choice,
    ChosenPlaces,
    Preemptor,
    anywhere,
    on_node,
    plus_all,
    search,
)
from vgpu_operator.engine.preemption.open_preemptions import OpenPreemption, Victim
from vgpu_operator.engine.preemption.victims import may_still_go, protected_among
from vgpu_operator.engine.scheduling.gate_groups import expect, stop_expecting
from vgpu_operator.engine.scheduling.groups import enough, without_devices
from vgpu_operator.engine.scheduling.kept import MOST_OF_A_GROUP
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import (
    class_of,
    nodes_for,
    spec_for,
    why_not_there,
)
from vgpu_operator.engine.state import State


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that preempts, and its place."""

    preemptor: Preemptor
    choice: Choice


def victims_of(placed: Sequence[Placed]) -> tuple[Victim, ...]:
    """Return all pods that are evicted for a group."""
    return tuple(victim for each in placed for victim in each.choice.victims)


def kind_of(state: State, pod: GPUPod) -> EquivalenceClass | None:
    """Return the class in which a pod waits or would wait; None if it cannot be placed at all."""
    waiter = state.queue.get(pod.claim)
    if waiter is not None:
        return waiter.kind
    spec = spec_for(state, pod)
    return None if isinstance(spec, Refusal) else class_of(state, pod, spec)


def preemptor_of(state: State, pod: GPUPod, given: ChosenPlaces = NO_PLACES) -> Preemptor | None:
    """Return a waiting pod as a preemptor; None if it cannot be placed at all."""
    kind = kind_of(state, pod)
    return None if kind is None else Preemptor(pod, kind.request, nodes_for(kind, state), given)


def search_alone(state: State, pod: GPUPod) -> Generator[list[Effect], None, tuple[Placed, ...]]:
    """Return the place of a pod that starts alone; nothing if no node can give it one.

    The state may change whenever it yields.
    """
    preemptor = preemptor_of(state, pod)
    choice = None if preemptor is None else (yield from _best(state, preemptor))
    return () if preemptor is None or choice is None else (Placed(preemptor, choice),)


def _best(state: State, preemptor: Preemptor) -> Generator[list[Effect], None, Choice | None]:
    best: Choice | None = None
    for found in search(state, preemptor):
        best = found
        yield []
    return best


def search_together(
    state: State, group: GroupKey
) -> Generator[list[Effect], None, tuple[Placed, ...]]:
    """Return places for as many pods of a group as must start; nothing if too few can get one.

    The state may change whenever it yields.
    """
    waiting, needed = without_devices(state, group), enough(state, group)
    placed: list[Placed] = []
    given = NO_PLACES
    for number, pod in enumerate(waiting, start=1):
        preemptor = preemptor_of(state, pod, given)
        choice = None if preemptor is None else anywhere(state, preemptor)
        yield []
        if preemptor is not None and choice is None:
            choice = yield from _best(state, preemptor)
        if preemptor is not None and choice is not None:
            placed.append(Placed(preemptor, choice))
            given = given.plus(choice)
        if len(placed) == needed:
            return tuple(placed)
        if len(placed) + len(waiting) - number < needed or _devices(given) > MOST_OF_A_GROUP:
            break
    return ()


def choose_again(
    state: State, placed: Collection[Placed]
) -> Generator[list[Effect], None, tuple[Placed, ...]]:
    """Choose victims again on the nodes of a plan; return nothing if one node no longer suffices.

    Devices may have become free since the search began.
    """
    again: list[Placed] = []
    given = NO_PLACES
    for each in placed:
        pod = state.cache.pod(each.preemptor.pod.uid)
        preemptor = None if pod is None else preemptor_of(state, pod, given)
        choice = None if preemptor is None else on_node(state, preemptor, each.choice.node)
        yield []
        if preemptor is None or choice is None:
            return ()
        again.append(Placed(preemptor, choice))
        given = given.plus(choice)
    return tuple(again) if _devices(given) <= MOST_OF_A_GROUP else ()


def holds(state: State, placed: Sequence[Placed]) -> bool:
    """Return True if all pods fit once all victims have ended, and all of these may be evicted."""
    return (
        _may_all_go(state, placed)
        and _fit_beside_each_other(state, placed)
        and _fit_without_victims(state, placed)
    )


def _may_all_go(state: State, placed: Sequence[Placed]) -> bool:
    victims = victims_of(placed)
    if not all(may_still_go(state, placed[0].preemptor.pod, victim) for victim in victims):
        return False
    # Victims that a budget protects are deleted, not evicted, so they use up no disruptions.
    protected = protected_among(state, sorted(victims, key=lambda each: each.is_protected))
    evicted = (pod.uid for each in victims if not each.is_protected for pod in each.pods)
    return protected.isdisjoint(evicted)


def _fit_without_victims(state: State, placed: Sequence[Placed]) -> bool:
    given = ChosenPlaces(victims=victims_of(placed))
    for node in sorted({each.choice.node for each in placed}):
        there = [each.preemptor for each in placed if each.choice.node == node]
        more = plus_all(state, there, node, given)
        if more is None:
            return False
        given = more
    return True


def still_fit(state: State, opened: OpenPreemption) -> bool:
    """Return True if all pods of a preemption in progress fit once its victims have ended."""
    given = ChosenPlaces(victims=(Victim(opened.claims, (), opened.priority),))
    for node in opened.nodes:
        pods = [state.cache.pod(room.pod_uid) for room in opened.rooms if room.node == node]
        there = [None if pod is None else preemptor_of(state, pod) for pod in pods]
        known = [each for each in there if each is not None]
        more = plus_all(state, known, node, given) if len(known) == len(pods) else None
        if more is None:
            return False
        given = more
    return True


def _fit_beside_each_other(state: State, placed: Sequence[Placed]) -> bool:
    """Return True if the nodes have CPU and other resources for all of these gated pods.

    The search has looked for each of them alone. What the victims use besides devices does not
    count as free. kube-scheduler sees to that itself where pods have no gate.
    """
    if not placed[0].preemptor.pod.is_gated:
        return True
    expected: list[GPUPod] = []
    try:
        for each in placed:
            pod, node = each.preemptor.pod, each.choice.node
            if why_not_there(state, pod, node) is not None:
                return False
            expect(state, pod, node)
            expected.append(pod)
        return True
    finally:
        for pod in expected:
            stop_expecting(state, pod)


def _devices(given: ChosenPlaces) -> int:
    return len({share.device for there in given.shares.values() for share in there})
