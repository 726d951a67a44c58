"""Carries out preemptions: a step of the round, after the earmarks.

A waiting pod that was refused for lack of room is looked at `PREEMPT_AFTER_S` later, so that a
kube-scheduler which asks the verb goes first. Its victims are then evicted one after another, and
an earmark keeps their devices for it. At the first refusal of the eviction API the rest stay, and
the victims are chosen again without the pod that the API server protects.

    refused ──0.25 s───► chosen, earmarked ──EvictPod, one by one──► all ending ──► served
                            ▲                     │ 429                  │ not in time
                            └─────────────────────┴──────────────────────┘

The pods of a group that must start together preempt as one: there is room for enough of them in the
end, or nobody is evicted. If a more important pod gets so much of the devices that the preemptor no
longer fits, the rest of the victims stay, and others are chosen.

Nothing counts as free before its claim was released. A new leader does not know the preemptions
of its predecessor: it sees pods that end, and waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from vgpu_client.backoff import Backoff
from vgpu_operator.engine.claims.lifecycle import is_idle
from vgpu_operator.engine.effects import Effect, EvictPod, RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.preemption.open_preemptions import (
    Kind,
    OpenPreemption,
    Result,
    Vacancy,
    Victim,
)
from vgpu_operator.engine.preemption.together import (
    Placed,
    choose_again,
    holds,
    kind_of,
    search_alone,
    search_together,
    still_fit,
    victims_of,
)
from vgpu_operator.engine.preemption.victims import OVERDUE_S, importance, preempts_with
from vgpu_operator.engine.scheduling.gate_groups import why_waiting
from vgpu_operator.engine.scheduling.groups import can_start, has_started, without_devices
from vgpu_operator.engine.scheduling.kept import Earmark
from vgpu_operator.engine.scheduling.places import remove_earmark
from vgpu_operator.engine.scheduling.queue import Waiter
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
_STEPS = 300
"""Steps of a search in one round, each up to a millisecond: enough for a pod alone, while a large
group does not keep the other steps of the round waiting for seconds."""
_ACTION = "Preempting"


def preempt_due(state: State) -> Iterator[list[Effect]]:
    """Go on with open preemptions and start new ones; the state may change between two lists."""
    work = state.preemptions
    for opened in list(work.open.values()):
        yield list(_go_on(opened, state))
    if work.search is None:
        work.search = _next_search(state)
    if work.search is not None:
        steps = 0
        for effects in islice(work.search, _STEPS):
            yield effects
            steps += 1
        if steps < _STEPS:
            work.search = None


# New preemptions.


def _next_search(state: State) -> Iterator[list[Effect]] | None:
    """Return the search for the first waiter that may preempt somebody now, if there is one."""
    due = sorted(_due(state), key=lambda waiter: waiter.rank)
    for waiter in due[1:]:  # a search takes some ten milliseconds, so each round has one
        state.preempting.set(waiter.key, state.now)
    return _start(due[0], state) if due else None


def _due(state: State) -> Iterator[Waiter]:
    """Take the waiters whose time has come and that may preempt somebody now."""
    seen: set[GroupKey] = set()
    for key in state.preempting.pop(state.now):
        waiter = state.queue.get(key)
        pod = None if waiter is None else state.cache.pod(waiter.pod_uid)
        if waiter is None or pod is None:
            continue
        group = preempts_with(state, pod)
        if group is not None and group in seen:
            state.preempting.set(key, state.now + AGAIN_S)  # one search is for all of them
            continue
        if not _may_preempt(state, pod, group):
            continue
        if group is not None:
            seen.add(group)
        at = _earliest(waiter, pod, group, state)
        if at > state.now:
            state.preempting.set(key, at)
        else:
            yield waiter


def _earliest(waiter: Waiter, pod: GPUPod, group: GroupKey | None, state: State) -> float:
    """Return the time from which it is worth searching for victims."""
    work, rules = state.preemptions, state.config.scheduling.preemption
    # No pod's priority is lower by the configured gap, so a search on every node would find
    # nothing.
    if pod.priority - rules.min_gap <= state.cache.lowest_priority():
        return state.now + NOBODY_S
    handed, fruitless = work.handed.get(waiter.key), work.fruitless_until(_kind(waiter, group))
    at = fruitless if handed is None else max(fruitless, handed.until)
    if at > state.now or not work.budgets.are_listed:
        return max(at, state.now + AGAIN_S)
    return state.now if work.may_evict(state.now, rules.per_minute) else state.now + AGAIN_S


def _kind(waiter: Waiter, group: GroupKey | None) -> Kind:
    return waiter.kind if group is None else group


def _may_preempt(state: State, pod: GPUPod, group: GroupKey | None) -> bool:
    """Return True if a pod, or the group that it starts with, may begin a preemption."""
    if state.preemptions.of(pod.claim, group) is not None:
        return False
    if group is None:
        return _is_allowed(state, pod)
    if not can_start(state, group) or (pod.is_gated and why_waiting(state, group) is not None):
        return False
    return all(_is_allowed(state, each) for each in without_devices(state, group))


def _is_allowed(state: State, pod: GPUPod) -> bool:
    return (
        pod.pod.spec.preemption_policy != "Never"
        and (pod.wants_node or pod.is_gated)
        and pod.uid not in state.preemptions.in_vain
    )


def _start(waiter: Waiter, state: State) -> Iterator[list[Effect]]:
    """Choose victims for a waiter, or for its group, and begin to evict them."""
    work, pod = state.preemptions, state.cache.pod(waiter.pod_uid)
    assert pod is not None
    group = preempts_with(state, pod)
    if group is None:
        found = yield from search_alone(state, pod)
        # The search yields to the event loop between its steps.
        if state.queue.get(waiter.key) is not waiter:  # it has changed in the meantime
            return
    else:
        found = yield from search_together(state, group)
    state.preempting.set(waiter.key, state.now + AGAIN_S)
    if not found:
        kind = _kind(waiter, group)
        work.found_nobody(kind, state.now, Backoff(AGAIN_S, AGAIN_AT_MOST_S))
        return
    work.fruitless.pop(_kind(waiter, group), None)
    # Nodes were searched one after another while the cluster changed, so the victims are chosen
    # again on the nodes that were found; `holds` then checks the whole plan in one step.
    found = yield from choose_again(state, found)
    if victims_of(found) and _still_wait(found, group, state) and holds(state, found):
        yield list(_open(found, group, state))


def _still_wait(found: Sequence[Placed], group: GroupKey | None, state: State) -> bool:
    """Return True if the pods of a plan still wait for devices, and may preempt as planned."""
    pod = state.cache.pod(found[0].preemptor.pod.uid)
    if pod is None or preempts_with(state, pod) != group or not _may_preempt(state, pod, group):
        return False
    if group is None:
        return state.queue.get(pod.claim) is not None
    waiting = {each.uid for each in without_devices(state, group)}
    return all(each.preemptor.pod.uid in waiting for each in found)


def _open(placed: Sequence[Placed], group: GroupKey | None, state: State) -> Iterator[Effect]:
    """Earmark the devices, tell the pods, and evict the first victim."""
    opened = begin(placed, group, state)
    whose = "" if group is None else f" for group {group.name}"
    on = f"evicting less important pods{whose} on {', '.join(opened.nodes)}"
    note = f"{on}: {in_words(sorted(victims_of(placed), key=importance))}"
    for each in placed:
        yield RecordEvent(each.preemptor.pod.regarding, "Normal", "Preempting", _ACTION, note)
    yield from _go_on(opened, state)


def begin(placed: Sequence[Placed], group: GroupKey | None, state: State) -> OpenPreemption:
    """Open a preemption and earmark the devices of its places; no pod is evicted yet."""
    opened = _opened(placed, group, state)
    state.preemptions.open[opened.key] = opened
    # Before the first eviction: otherwise the next pod to be scheduled would get the freed devices.
    _earmark(placed, group, state)
    return opened


def _opened(placed: Sequence[Placed], group: GroupKey | None, state: State) -> OpenPreemption:
    # The most important and protected ones go last: perhaps they need not go after all.
    victims = sorted(victims_of(placed), key=importance, reverse=True)
    first = placed[0].preemptor.pod
    name = f"{first.pod.metadata.namespace}/{first.pod.metadata.name}"
    return OpenPreemption(
        name=f"pod {name}" if group is None else f"group {group.namespace}/{group.name}",
        priority=first.priority,
        rooms=tuple(
            Vacancy(each.preemptor.pod.claim, each.preemptor.pod.uid, each.choice.node)
            for each in placed
        ),
        group=group,
        pods={each.uid: each for victim in victims for each in victim.pods},
        protected=frozenset(
            each.uid for victim in victims if victim.is_protected for each in victim.pods
        ),
        claims=tuple(key for victim in victims if _is_kept(victim, state) for key in victim.keys),
        until=state.now + SERVED_S,
    )


def _earmark(placed: Sequence[Placed], group: GroupKey | None, state: State) -> None:
    """Keep the devices of all places; a device that pods of a group share is kept once."""
    columns, kept = state.ledger.columns, set[int]()
    for earmark in state.earmarks.of_group(group):
        state.earmarks.remove(earmark.key)
    for each in placed:
        pod, choice = each.preemptor.pod, each.choice
        devices = {share.device for share in choice.shares} - kept
        kept |= devices
        if devices:
            names = tuple(sorted(columns.name[device] for device in devices))
            _take_from_less_important(choice.number, names, pod.claim, group, state)
            kind = kind_of(state, pod)
            state.earmarks.put(
                Earmark(
                    *(pod.claim, choice.node, choice.number, names, pod.priority, pod.uid),
                    kind=kind,
                    group=group,
                )
            )


def _take_from_less_important(
    node: int, devices: Collection[str], key: ClaimKey, group: GroupKey | None, state: State
) -> None:
    """End the earmarks of others on devices; a preemption for which one was given ends, too."""
    for earmark in state.earmarks.of_others_on(node, devices, key, group):
        opened = state.preemptions.of(earmark.key, earmark.group)
        if opened is not None:
            opened.is_contested = True
        remove_earmark(state, earmark)


def _is_kept(victim: Victim, state: State) -> bool:
    """Return True if the victim's claim keeps its devices when its pod ends."""
    claim = state.cache.claim(victim.keys[0])
    return claim is not None and claim.spec.binding_mode == "Immediate"


# Preemptions in progress.


def _go_on(opened: OpenPreemption, state: State) -> Iterator[Effect]:
    """Evict the next victim, take back what has no pod, or end the preemption."""
    result = _result(opened, state)
    if result is not None:
        _end(opened, result, state)
        if result == "overtaken":
            yield from _told_of_more_important(opened, state)
        return
    # One eviction at a time: the answer may show that a budget protects the pod, and then other
    # victims are better for all of them.
    if opened.evicting:
        return
    _take_back(opened, state)
    victim = opened.next
    if victim is not None:
        yield from _evict(opened, victim, state)


def _result(opened: OpenPreemption, state: State) -> Result | None:
    """Return how the preemption has ended, or None if it continues."""
    if _is_served(opened, state):
        return "served"
    return _result_of_victims(opened, state) if _still_waits(opened, state) else "withdrawn"


def _result_of_victims(opened: OpenPreemption, state: State) -> Result | None:
    """Return why the preemption can no longer succeed, or None if it continues."""
    victim = opened.next
    if victim is not None and _is_spared(opened, victim, state):
        return "protected"  # choose other victims
    if _is_overtaken(opened, state):
        return "overtaken"
    if _is_kept_for(opened, state):
        if victim is not None or state.now < opened.until:
            return None
    elif victim is not None:
        return "node_lost"
    return "overdue" if any(_is_there(state, each) for each in opened.pods) else "in_vain"


def _is_served(opened: OpenPreemption, state: State) -> bool:
    if opened.group is not None:
        return has_started(state, opened.group)
    held = state.reservations.of_claim(opened.key)
    pod = state.cache.pod(opened.rooms[0].pod_uid)
    is_bound = pod is not None and pod.pod.is_bound
    return is_bound or (held is not None and not held.is_tentative)


def _still_waits(opened: OpenPreemption, state: State) -> bool:
    if opened.group is not None:
        return can_start(state, opened.group)
    pod = state.cache.pod(opened.rooms[0].pod_uid)
    return pod is not None and (pod.wants_node or pod.is_gated)


def _is_overtaken(opened: OpenPreemption, state: State) -> bool:
    """Return True if more important claims have left too little of the devices."""
    # Checking whether the pods still fit is expensive, so it is done only after a more important
    # claim has taken an earmark.
    if not opened.is_contested:
        return False
    opened.is_contested = False
    return not (_is_kept_for(opened, state) and still_fit(state, opened))


def _told_of_more_important(opened: OpenPreemption, state: State) -> Iterator[Effect]:
    note = f"more important pods get the devices on {', '.join(opened.nodes)} that it waits for"
    for room in opened.rooms:
        pod = state.cache.pod(room.pod_uid)
        if pod is not None:
            yield RecordEvent(pod.regarding, "Normal", "Overtaken", _ACTION, note)


def _is_kept_for(opened: OpenPreemption, state: State) -> bool:
    """Return True while earmarks keep the devices on the nodes where victims end."""
    if opened.group is None:
        earmark = state.earmarks.get(opened.key)
        return earmark is not None and earmark.node == opened.rooms[0].node
    there = {earmark.node for earmark in state.earmarks.of_group(opened.group)}
    return bool(there) and there <= set(opened.nodes)


def _is_spared(opened: OpenPreemption, victim: GPUPod, state: State) -> bool:
    """Return True if the API server has refused to evict a victim."""
    is_refused = state.preemptions.is_protected(victim.uid, state.now)
    return is_refused and victim.uid not in opened.protected


def _take_back(opened: OpenPreemption, state: State) -> None:
    """Have Immediate claims taken back that have no pod any more."""
    for key in opened.claims:
        claim = state.cache.claim(key)
        if claim is not None and is_idle(claim) and key not in state.preemptions.taken_back:
            state.preemptions.taken_back[key] = f"made way for {opened.name}"
            state.claims.look_at(key)


def _evict(opened: OpenPreemption, victim: GPUPod, state: State) -> Iterator[Effect]:
    work, known = state.preemptions, state.cache.pod(victim.uid)
    per_minute = state.config.scheduling.preemption.per_minute
    if known is None or not known.is_running:  # it has ended without the eviction
        opened.evicted.add(victim.uid)
        return
    if state.now < opened.not_before or not work.may_evict(state.now, per_minute):
        return
    work.times.append(state.now)
    opened.evicting = victim.uid
    grace_s = known.pod.spec.termination_grace_period_seconds
    # A victim may take its whole grace period to write a checkpoint.
    opened.until = max(opened.until, state.now + grace_s + OVERDUE_S)
    yield EvictPod(
        known.regarding,
        f"it makes way for {opened.name} of priority {opened.priority}",
        "Preempted",
        preemptor=opened.key,
        force=victim.uid in opened.protected,
    )


def _is_there(state: State, uid: str) -> bool:
    """Return True while a victim has not ended and still holds devices."""
    pod = state.cache.pod(uid)
    return pod is not None and not pod.pod.is_terminal


def _end(opened: OpenPreemption, result: Result, state: State) -> None:
    """Close a preemption: evicted pods stay evicted, and no further pod is evicted."""
    state.preemptions.results[result] += 1
    del state.preemptions.open[opened.key]
    if result == "in_vain":
        # All victims have ended and the pod still does not start, so something other than devices
        # stops it: it must not evict again.
        state.preemptions.in_vain.update(room.pod_uid for room in opened.rooms)
    if result == "served" and opened.group is None:
        return
    keys = [room.key for room in opened.rooms]
    for key in (*keys, *(each.key for each in state.earmarks.of_group(opened.group))):
        earmark = state.earmarks.remove(key)
        if earmark is not None:
            state.ledger.touch(earmark.node)
    if result != "served":
        for key in keys:
            state.preempting.set(key, state.now)


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
