"""Carries out preemptions: a step of the round, after the earmarks.

A waiting pod that was refused for want of room is looked at `PREEMPT_AFTER_S` later, so that a
kube-scheduler which asks the verb goes first. Its victims are then evicted one after another, and
an earmark keeps their devices for it. At the first refusal of the eviction API the rest stay, and
the victims are chosen anew without the pod that the API server protects.

    refused ──0.25 s───► chosen, earmarked ──EvictPod, one by one──► all ending ──► served
                            ▲                     │ 429                  │ not in time
                            └─────────────────────┴──────────────────────┘

Nothing counts as free before its claim was released. A new leader knows nothing of the preemptions
of its predecessor: it sees pods that end, and waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vgpu_client.backoff import Backoff
from vgpu_operator.engine.claims.lifecycle import is_idle
from vgpu_operator.engine.effects import Effect, EvictPod, RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.preemption.choose import Choice, Preemptor, on_node, search
from vgpu_operator.engine.preemption.open_preemptions import OpenPreemption, Result, Victim
from vgpu_operator.engine.preemption.victims import OVERDUE_S, is_in_gang
from vgpu_operator.engine.scheduling.kept import Earmark
from vgpu_operator.engine.scheduling.queue import Waiter
from vgpu_operator.engine.scheduling.schedule_one import nodes_for
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey

AGAIN_S = 1.0
"""Seconds after which a pod is looked at again that could preempt somebody, but not now."""
AGAIN_AT_MOST_S = 60.0
"""The longest such time for a class of pods for which no node had victims."""
NOBODY_S = 5.0
"""The same while no less important pod runs anywhere."""
SERVED_S = 30.0
"""Seconds that kube-scheduler may take to bind the pod once all victims have ended."""
_ACTION = "Preempting"


def preempt_due(state: State) -> Iterator[list[Effect]]:
    """Go on with open preemptions and start new ones; the state may change between two lists."""
    for opened in list(state.preemptions.open.values()):
        yield list(_go_on(opened, state))
    due = sorted(_due(state), key=lambda waiter: waiter.rank)
    for waiter in due[1:]:  # a search takes some ten milliseconds, so each round has one
        state.preempting.set(waiter.key, state.now)
    for waiter in due[:1]:
        yield from _start(waiter, state)


# New preemptions.


def _due(state: State) -> Iterator[Waiter]:
    """Take the waiters whose time has come and that may preempt somebody now."""
    work, rules = state.preemptions, state.config.scheduling.preemption
    for key in state.preempting.pop(state.now):
        waiter = state.queue.get(key)
        pod = None if waiter is None else state.cache.pod(waiter.pod_uid)
        if waiter is None or pod is None or not _may_preempt(state, pod, key):
            continue
        if pod.priority - rules.min_gap <= state.cache.lowest_priority():
            state.preempting.set(key, state.now + NOBODY_S)
            continue
        quiet_until = max(work.quiet.get(key, 0.0), work.fruitless_until(waiter.kind))
        is_ready = work.budgets.are_listed and work.may_evict(state.now, rules.per_minute)
        if quiet_until > state.now or not is_ready:
            state.preempting.set(key, max(quiet_until, state.now + AGAIN_S))
            continue
        yield waiter


def _may_preempt(state: State, pod: GPUPod, key: ClaimKey) -> bool:
    work = state.preemptions
    return (
        pod.pod.spec.preemption_policy != "Never"
        and not is_in_gang(state, pod)  # room for one pod of a gang would be made in vain
        and (pod.wants_node or pod.is_gated)
        and key not in work.open
        and pod.uid not in work.in_vain
    )


def _start(waiter: Waiter, state: State) -> Iterator[list[Effect]]:
    """Choose victims for a waiter and begin to evict them."""
    work, pod = state.preemptions, state.cache.pod(waiter.pod_uid)
    assert pod is not None
    best: Choice | None = None
    for found in search(state, preemptor_of(state, waiter, pod)):
        best = found
        yield []
    pod = state.cache.pod(waiter.pod_uid)  # it may have changed in the meantime
    if pod is None or state.queue.get(waiter.key) is not waiter:
        return
    state.preempting.set(waiter.key, state.now + AGAIN_S)
    if best is None:
        work.found_nobody(waiter.kind, state.now, Backoff(AGAIN_S, AGAIN_AT_MOST_S))
        return
    work.fruitless.pop(waiter.kind, None)
    # Choose once more, on this node alone and without a pause: devices may have become free.
    choice = on_node(state, preemptor_of(state, waiter, pod), best.node)
    if choice is not None and choice.victims and _may_preempt(state, pod, waiter.key):
        yield list(_open(waiter, pod, choice, state))


def preemptor_of(state: State, waiter: Waiter, pod: GPUPod) -> Preemptor:
    """Return a waiting pod as a preemptor."""
    return Preemptor(pod, waiter.kind.request, nodes_for(waiter.kind, state))


def _open(waiter: Waiter, pod: GPUPod, choice: Choice, state: State) -> Iterator[Effect]:
    """Earmark the devices, tell the pod, and evict the first victim."""
    number = state.ledger.columns.node_id(choice.node)
    assert number is not None
    # The most important and protected ones go last: perhaps they need not go after all.
    victims = tuple(reversed(choice.victims))
    opened = OpenPreemption(
        key=waiter.key,
        pod_uid=pod.uid,
        node=choice.node,
        pods={each.uid: each for victim in victims for each in victim.pods},
        protected=frozenset(
            each.uid for victim in victims if victim.is_protected for each in victim.pods
        ),
        claims=tuple(key for victim in victims if _is_kept(victim, state) for key in victim.keys),
        until=state.now + SERVED_S,
    )
    state.preemptions.open[waiter.key] = opened
    state.earmarks.put(
        Earmark(waiter.key, choice.node, number, choice.devices, pod.uid, waiter.kind)
    )
    note = f"evicting less important pods on {choice.node}: {in_words(choice.victims)}"
    yield RecordEvent(pod.regarding, "Normal", "Preempting", _ACTION, note)
    yield from _go_on(opened, state)


def _is_kept(victim: Victim, state: State) -> bool:
    """Return True if the victim's claim keeps its devices when its pod ends."""
    claim = state.cache.claim(victim.keys[0])
    return claim is not None and claim.spec.binding_mode == "Immediate"


# Preemptions under way.


def _go_on(opened: OpenPreemption, state: State) -> Iterator[Effect]:
    """Evict the next victim, take back what has no pod, or end the preemption."""
    pod = state.cache.pod(opened.pod_uid)
    result = _result(opened, pod, state)
    if result is not None or pod is None:
        _end(opened, result or "withdrawn", state)
        return
    if opened.evicting:
        return
    _take_back(opened, pod, state)
    victim = opened.next
    if victim is not None:
        yield from _evict(opened, pod, victim, state)


def _result(opened: OpenPreemption, pod: GPUPod | None, state: State) -> Result | None:
    """Return how the preemption has ended, or None if it goes on."""
    if _is_served(opened, pod, state):
        return "served"
    if pod is None or not (pod.wants_node or pod.is_gated):
        return "withdrawn"
    return _result_of_victims(opened, state)


def _result_of_victims(opened: OpenPreemption, state: State) -> Result | None:
    """Return why the preemption cannot succeed any more, or None if it goes on."""
    earmark, victim = state.earmarks.get(opened.key), opened.next
    if victim is not None and _is_spared(opened, victim, state):
        return "protected"  # choose other victims
    if earmark is not None and earmark.node == opened.node:
        if victim is not None or state.now < opened.until:
            return None
    elif victim is not None:
        return "node_lost"
    return "overdue" if any(_is_there(state, each) for each in opened.pods) else "in_vain"


def _is_served(opened: OpenPreemption, pod: GPUPod | None, state: State) -> bool:
    held = state.reservations.of_claim(opened.key)
    is_bound = pod is not None and pod.pod.is_bound
    return is_bound or (held is not None and not held.is_tentative)


def _is_spared(opened: OpenPreemption, victim: GPUPod, state: State) -> bool:
    """Return True if the API server has refused to evict a victim."""
    is_refused = state.preemptions.is_protected(victim.uid, state.now)
    return is_refused and victim.uid not in opened.protected


def _take_back(opened: OpenPreemption, pod: GPUPod, state: State) -> None:
    """Have Immediate claims taken back that have no pod any more."""
    for key in opened.claims:
        claim = state.cache.claim(key)
        if claim is not None and is_idle(claim) and key not in state.preemptions.taken_back:
            name = f"{opened.key.namespace}/{pod.pod.metadata.name}"
            state.preemptions.taken_back[key] = f"made way for pod {name}"
            state.claims.look_at(key)


def _evict(
    opened: OpenPreemption, preemptor: GPUPod, victim: GPUPod, state: State
) -> Iterator[Effect]:
    work, known = state.preemptions, state.cache.pod(victim.uid)
    per_minute = state.config.scheduling.preemption.per_minute
    if known is None or not known.is_running:  # it has ended by itself
        opened.evicted.add(victim.uid)
        return
    if state.now < opened.not_before or not work.may_evict(state.now, per_minute):
        return
    work.times.append(state.now)
    opened.evicting = victim.uid
    grace_s = known.pod.spec.termination_grace_period_seconds
    opened.until = max(opened.until, state.now + grace_s + OVERDUE_S)
    name = f"{preemptor.pod.metadata.namespace}/{preemptor.pod.metadata.name}"
    yield EvictPod(
        known.regarding,
        f"it makes way for pod {name} of priority {preemptor.priority}",
        "Preempted",
        preemptor=opened.key,
        force=victim.uid in opened.protected,
    )


def _is_there(state: State, uid: str) -> bool:
    """Return True while a victim has not ended and still holds devices."""
    pod = state.cache.pod(uid)
    return pod is not None and not pod.pod.is_terminal


def _end(opened: OpenPreemption, result: Result, state: State) -> None:
    """Close a preemption; what has been evicted stays evicted, and nobody else is."""
    state.preemptions.results[result] += 1
    del state.preemptions.open[opened.key]
    if result == "in_vain":
        state.preemptions.in_vain.add(opened.pod_uid)
    if result == "served":
        return
    earmark = state.earmarks.remove(opened.key)
    if earmark is not None:
        state.ledger.touch(earmark.node)
    state.preempting.set(opened.key, state.now)


def in_words(victims: Iterable[Victim]) -> str:
    """Return the victims for people: pods, or Immediate claims, with their priority."""
    named = [
        f"{each.pod.metadata.namespace}/{each.pod.metadata.name} (priority {each.priority})"
        for victim in victims
        for each in victim.pods
    ]
    named += [
        f"claim {key.namespace}/{key.name} (priority {victim.priority})"
        for victim in victims
        if not victim.pods
        for key in victim.keys
    ]
    return ", ".join(named)
