"""Groups of pods in Gate mode: the operator itself starts them, all at once or not at all.

    waiting ──all planned, then reserved──► starting ──their claims written──► passed ──► lifted
       ▲                                       │
       └──── not in time, or a pod is gone ────┘

A group waits in the queue and holds nothing until enough of its pods exist and fit together. Then
all of them are reserved in one step. No gate is lifted before the claims of as many pods are
written as must start together; from then on the gates of all of them are lifted, whatever happens
to one. If too few claims are written in time, all of them are taken back.

Like the gate of a single pod, this needs no memory: a successor finds which claims are allocated
and which gates are lifted, reserves for the pods that are missing, and lifts or takes back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_client.backoff import Backoff
from vgpu_operator.engine.effects import Effect, RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.hami.records import records_of
from vgpu_operator.engine.scheduling.groups import (
    enough,
    least_of,
    members,
    others_of,
    stands,
    take_back,
    without_devices,
)
from vgpu_operator.engine.scheduling.places import take_provisionally, unreserve
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Phase, Reservation
from vgpu_operator.engine.scheduling.schedule_one import (
    budget_for,
    nodes_for,
    of_mixed_group,
    offer,
    why_not_there,
    yielding_of,
)
from vgpu_operator.engine.state import GroupTry, State
from vgpu_operator.placement import Plan, place

START_S = 10.0
"""Seconds in which the claims of a group must be written, or all of them are taken back."""
_REST_AT_MOST_S = 300.0
"""The longest time for which a group rests after its claims were not written; the first is
START_S."""
_REST_S = 0.25
"""The least time between two plans of one group. Without it many groups would slow others down
whenever something becomes free."""
_PLANNED_PER_S = 100.0
"""The most pods that are planned for one group in a second, for the same reason."""
_NAMED = 3
_ACTION = "Scheduling"


def group_to_start_with(state: State, pod: GPUPod) -> GroupKey | None:
    """Return the group with which a gated pod must start; None if it starts by itself.

    Pods beyond the minimum start one by one once enough others are bound. Without a PodGroup
    nothing says how many must start together; the pod waits for one if the cluster has that API.
    """
    key = pod.group
    if key is None:
        return None
    least = least_of(state, key)
    if least is None:
        return None if state.cache.pod_group_apis.get(key.kind) is False else key
    is_started = state.cache.running_of_group(key) + others_of(state, key) >= least
    return None if least == 1 or is_started else key


def is_short(state: State, key: GroupKey | None) -> bool:
    """Return True if a group behind our gate certainly has too few pods; costs next to nothing."""
    if key is None or not state.config.scheduling.decides_first:
        return False
    least = least_of(state, key)
    count = state.cache.count_of_group(key) + others_of(state, key)
    return least is None or count < least


def why_not_whole(state: State, key: GroupKey) -> Refusal | None:
    """Return why a group has no minimum or too few pods, or pods that disagree; None if not."""
    least = least_of(state, key)
    if least is None:
        text = f"no PodGroup {key.name} of {key.kind} says how many pods must start together"
        return Refusal(Reason.GROUP_INCOMPLETE, text)
    mixed = of_mixed_group(state, key)
    if mixed is not None:
        return mixed
    count = others_of(state, key) + state.cache.count_of_group(key)
    if count >= least:
        count = others_of(state, key) + len(members(state, key))
    return _too_few(key, count, least) if count < least else None


def why_waiting(state: State, key: GroupKey) -> Refusal | None:
    """Return why a group cannot be planned now, regardless of free devices; None if it can."""
    refusal, least = why_not_whole(state, key), least_of(state, key)
    if refusal is not None or least is None:
        return refusal
    pods = members(state, key)
    held_back = [pod for pod in pods if not (stands(state, pod) or _is_ready_to_go(state, pod))]
    if len(pods) + others_of(state, key) - len(held_back) >= least:
        return None
    return _too_few_ready(state, key, held_back, least)


def _too_few(key: GroupKey, count: int, least: int) -> Refusal:
    text = f"{count} of the {least} pods of group {key.name} that must start together exist"
    return Refusal(Reason.GROUP_INCOMPLETE, text)


def _too_few_ready(state: State, key: GroupKey, held_back: list[GPUPod], least: int) -> Refusal:
    named = [
        f"{pod.pod.metadata.name} ({_why_held_back(state, pod)})" for pod in held_back[:_NAMED]
    ]
    more = " and others" if len(held_back) > _NAMED else ""
    text = f"group {key.name} waits for {', '.join(named)}{more}; {least} must start together"
    return Refusal(Reason.GROUP_INCOMPLETE, text)


def _why_held_back(state: State, pod: GPUPod) -> str:
    blocked = state.pods.blocked.get(pod.uid)
    if blocked is not None:
        return str(blocked.reason)
    if pod.is_gated:
        return "its claim is being written"
    return "it has other scheduling gates" if pod.pod.spec.scheduling_gates else "it has no gate"


def _is_ready_to_go(state: State, pod: GPUPod) -> bool:
    """Return True if the pod waits in the queue, or is reserved for and behind its gate."""
    held = state.reservations.of_pod(pod.uid)
    return _waits(state, pod) or (pod.is_gated and held is not None and not held.is_tentative)


def _waits(state: State, pod: GPUPod) -> bool:
    waiter = state.queue.get(pod.claim)
    return waiter is not None and waiter.pod_uid == pod.uid


def lacking(state: State, key: GroupKey) -> int:
    """Return how many more pods must get past their gates, so that enough run; 0 if none."""
    standing = sum(stands(state, pod) for pod in members(state, key))
    return max((least_of(state, key) or 1) - standing - others_of(state, key), 0)


# The queue.


def wake(state: State, key: GroupKey | None) -> None:
    """Try a group again that waits in the queue, because something about its pods has changed."""
    if key is not None and state.queue.has_group(key):
        state.gates.woken.add(key)


def is_resting(state: State, key: GroupKey) -> bool:
    """Return True if it is too early to plan the group again."""
    return state.gates.resting.get(key, 0.0) > state.now


def start_group(state: State, key: GroupKey) -> Generator[list[Effect], None, bool]:
    """Reserve for enough pods of a group, or for none; return True if they were reserved.

    The pods are planned one after another, each beside those before it. The state may change
    between two of them; so all are decided once more at the end, in one step.
    """
    if why_waiting(state, key) is not None:
        return False
    work = GroupTry(state.now, state.now)
    found: list[tuple[GPUPod, Reservation]] = []
    try:
        yield from _plan_together(state, key, work, found)
    finally:
        for pod, held in found:
            stop_expecting(state, pod)
            if state.reservations.is_current(held):
                unreserve(state, held)
    rest_s = max(_REST_S, len(work.offered) / _PLANNED_PER_S)
    state.gates.resting[key] = state.now + rest_s
    if why_waiting(state, key) is None and _reserve(state, key, found):
        state.shortfalls.pop(key, None)
        state.gates.starting.setdefault(key, state.now + START_S)
        return True
    if work.refused:
        state.shortfalls[key] = work
    return False


def _plan_together(
    state: State, key: GroupKey, work: GroupTry, found: list[tuple[GPUPod, Reservation]]
) -> Iterator[list[Effect]]:
    """Find places for the pods of a group that wait; stop once too few of them can get one."""
    waiting, needed = _waiting(state, key), enough(state, key)
    for number, pod in enumerate(waiting, start=1):
        plan = _plan(state, pod)
        if plan is None:
            continue  # it is gone, or no longer waits
        work.offered[pod.uid] = plan.node or ""
        if plan.node is None:
            work.reason = plan.reason
            if len(found) + len(waiting) - number < needed:
                return
            continue
        held = take_provisionally(state, pod, plan)
        held.give_up()
        expect(state, pod, plan.node)
        found.append((pod, held))
        yield []


def _waiting(state: State, key: GroupKey) -> list[GPUPod]:
    """Return the pods of a group that wait in the queue, by name."""
    return [pod for pod in without_devices(state, key) if _waits(state, pod)]


def _plan(state: State, pod: GPUPod) -> Plan | None:
    """Return a plan for a pod next to its group's places; None if it does not wait."""
    waiter = state.queue.get(pod.claim)
    if waiter is None or waiter.pod_uid != pod.uid:
        return None
    kind, priority = waiter.kind, pod.priority
    with state.deciding(
        pod.claim, yielding_of(state, pod), priority=priority, kind=kind, group=pod.group
    ) as kept:
        plan = place(
            state.ledger.columns,
            kind.request,
            nodes=nodes_for(kind, state),
            budget=budget_for(state, pod),
            kept=kept,
        )
        if plan.refused:
            _ = plan.reason  # computed when it is first read, so read it in here
    return plan


def expect(state: State, pod: GPUPod, node: str) -> None:
    """Count a planned pod on its node for the rules among pods, without requeueing other pods."""
    filters = state.ledger.filters
    filters.hosts.expect(pod.uid, node=node, cpu_milli=pod.cpu_milli)
    filters.expect_pod(pod.pod, node)


def stop_expecting(state: State, pod: GPUPod) -> None:
    """Undo `expect`, unless the pod is bound."""
    known = state.cache.pod(pod.uid)
    if known is None or not known.pod.is_bound:
        state.ledger.filters.hosts.remove_pod(pod.uid)
        state.ledger.filters.forget_pod(pod.uid)


def _reserve(state: State, key: GroupKey, found: list[tuple[GPUPod, Reservation]]) -> bool:
    """Reserve for the planned pods on their nodes; return True if enough of them still fit.

    Otherwise nothing is reserved.
    """
    needed, made = enough(state, key), list[Reservation]()
    if len(found) < needed:
        return False
    for planned, place_ in found:
        pod = state.cache.pod(planned.uid)
        if pod is None or not _waits(state, pod):
            continue
        if why_not_there(state, pod, place_.node) is None:
            outcome = offer(state, pod, {place_.node})
            if isinstance(outcome, Reservation):
                made.append(outcome)
    if len(made) >= needed:
        return True
    for held in made:
        unreserve(state, held)
        state.pods.due[held.pod_uid] = None
    return False


# The gate.


def may_pass(state: State, pod: GPUPod) -> bool:
    """Return True if a pod's gate may be lifted: alone, or because its whole group is ready.

    That is decided once for all pods that are ready, and stands for each of them: their
    reservations do not lapse any more.
    """
    key = None if pod.uid in state.gates.passed else group_to_start_with(state, pod)
    return key is None or lacking(state, key) == 0 or _pass_together(state, key)


def _pass_together(state: State, key: GroupKey) -> bool:
    """Let all ready pods of a group pass their gates; return False if they are not enough."""
    state.gates.starting.setdefault(key, state.now + START_S)
    ready = [(member, held) for member in members(state, key) if (held := _ready(state, member))]
    is_whole = least_of(state, key) is not None and of_mixed_group(state, key) is None
    if not is_whole or len(ready) < lacking(state, key):
        return False
    lost = [held for member, held in ready if not _can_go(state, member, held)]
    for held in lost:
        held.until = state.now  # its pod is read, then decided again
        state.claims.look_at(held.key)
    if lost:
        return False
    for member, held in ready:
        held.until = None
        state.gates.passed.add(member.uid)
        state.claims.look_at(held.key)
    state.gates.forget_group(key)
    return True


def _ready(state: State, pod: GPUPod) -> Reservation | None:
    """Return the reservation of a gated pod if its claim shows it and no write may change it."""
    held, claim = state.reservations.of_pod(pod.uid), state.cache.claim(pod.claim)
    if held is None or claim is None or not pod.is_gated or held.phase is not Phase.OFFERED:
        return None
    allocation, is_settled = claim.status.allocation, state.claims.is_settled(held.key)
    if not held.is_written or not is_settled or held.has_lapsed(state.now):
        return None
    is_going = claim.metadata.deletion_timestamp is not None
    is_shown = allocation is not None and allocation.id == held.allocation_id
    return held if is_shown and not is_going else None


def _can_go(state: State, pod: GPUPod, held: Reservation) -> bool:
    """Return True if the pod can still go to the node where its devices are reserved."""
    claim = state.cache.claim(held.key)
    if why_not_there(state, pod, held.node) is not None or claim is None or not held.allocation:
        return False
    try:
        records_of(state, pod, claim.spec, held.allocation, unix_time=int(state.unix))
    except BadInput:
        return False
    return True


def review_groups(state: State) -> None:
    """End the reservations of groups that cannot start, or whose claims are not written."""
    for key, until in list(state.gates.starting.items()):
        offers = [(pod, held) for pod in members(state, key) if (held := _offered(state, pod))]
        if not offers or lacking(state, key) == 0:
            del state.gates.starting[key]
            continue
        refusal = why_waiting(state, key)
        if refusal is None and state.now < until:
            continue
        written = sum(_ready(state, pod) is not None for pod, _ in offers)
        if refusal is None:
            why = f"{written} of {lacking(state, key)} claims were written within {START_S:.0f} s"
            backoff = state.gates.setbacks.setdefault(key, Backoff(START_S, _REST_AT_MOST_S))
            state.gates.resting[key] = state.now + backoff.failed()
        else:
            why = refusal.message
        _take_back(state, key, offers, why)


def _offered(state: State, pod: GPUPod) -> Reservation | None:
    held = state.reservations.of_pod(pod.uid)
    is_open = held is not None and held.phase is Phase.OFFERED and pod.uid not in state.gates.passed
    return held if is_open and held is not None and not held.has_lapsed(state.now) else None


def _take_back(
    state: State, key: GroupKey, offers: list[tuple[GPUPod, Reservation]], why: str
) -> None:
    del state.gates.starting[key]
    note = f"group {key.name} gives its devices back: {why}"
    for pod, held in offers:
        take_back(state, held)
        state.pods.due[pod.uid] = None
        state.outbox.append(
            RecordEvent(pod.regarding, "Warning", Reason.GROUP_INCOMPLETE, _ACTION, note)
        )
