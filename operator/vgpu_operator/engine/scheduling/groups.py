"""Groups of pods that start together or not at all.

A pod names its group. The PodGroup of that name, or an annotation of its pods, says how many pods
must start together. See docs/design/gangs.md.

kube-scheduler places a group in tries. It asks Filter for one pod after another, then takes all
pods back in its own memory, and says nothing of that to an extender. Only if enough pods have found
a node do their Binds come, all at once. So a Filter decides nothing. It gives the pod a
provisional place, in memory only, which the group's other pods respect and everybody else treats as
a tentative place of the pod's priority. The first Bind turns all places into reservations, or none.
The Binds wait for each other until enough pods have asked and their claims are written; only then
are Bindings posted.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass

from vgpu_api.reasons import Reason
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.places import adopt, take_provisionally, unreserve
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import clear_nomination, requeue
from vgpu_operator.engine.scheduling.reservation import PROVISIONAL_S, Reservation
from vgpu_operator.engine.scheduling.schedule_one import (
    budget_for,
    nodes_of,
    of_mixed_group,
    offer,
    spec_for,
)
from vgpu_operator.engine.state import GroupTry, State
from vgpu_operator.placement import Plan, impossible_together, place

_NAMED = 3
"""Pods that a text names."""
GATHER_S = 1.0
"""Seconds in which enough pods of a group must ask for Bind. kube-scheduler starts their Binds at
the same time."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as far as it is known.

    Attributes:
        key: Its key.
        least: The number of pods that must run together; None while it is unknown.
        members: Its GPU pods that have not ended and are not being deleted, by name.
        others: The number of its pods without GPUs.
    """

    key: GroupKey
    least: int | None
    members: tuple[GPUPod, ...]
    others: int


def group(state: State, key: GroupKey) -> Group:
    """Return a group, which may have no members."""
    return Group(key, least_of(state, key), tuple(members(state, key)), others_of(state, key))


def least_of(state: State, key: GroupKey) -> int | None:
    """Return how many of the group's pods must run together; None while that is unknown."""
    said = state.cache.pod_groups.get(key)
    if said is not None:
        return said.least
    written = (each.least for each in state.cache.traits_of_group(key))
    return max((least for least in written if least is not None), default=None)


def others_of(state: State, key: GroupKey) -> int:
    """Return the number of the group's pods without GPUs, which the extender never sees."""
    return state.cache.others_of_group(key)


def members(state: State, key: GroupKey) -> list[GPUPod]:
    """Return the group's GPU pods that have not ended and are not being deleted, by name."""
    return sorted(_live(state, key), key=lambda pod: pod.pod.metadata.name)


def _live(state: State, key: GroupKey) -> Iterator[GPUPod]:
    for pod in state.cache.pods_of_group(key):
        if not pod.pod.is_terminal and pod.pod.metadata.deletion_timestamp is None:
            yield pod


# Filter.


def filter_member(state: State, pod: GPUPod, candidates: Collection[str]) -> Reservation | Refusal:
    """Give a group's pod a provisional place on the best of the candidate nodes.

    A second Filter of the same pod begins a new try, in which no place of the last one counts.
    """
    assert pod.group is not None
    work = _try_for(state, pod, pod.group)
    standing = _given_back_first(state, pod, candidates)
    outcome = standing or offer(state, pod, candidates, softly=True)
    work.last = state.now
    if isinstance(outcome, Reservation):
        work.offered[pod.uid] = outcome.node
        if work.is_doomed:
            outcome.give_up()
        elif outcome.group is not None:
            outcome.is_awaited = state.now < work.since + PROVISIONAL_S
        return outcome
    # kube-scheduler asks for a nominated node alone, and for all nodes if it is refused that one.
    if set(candidates) != {pod.pod.status.nominated_node_name}:
        work.offered[pod.uid], work.reason = "", outcome.reason
        state.shortfalls[pod.group] = work
        _note_refused(state, pod.group, work)
    return outcome


def _given_back_first(state: State, pod: GPUPod, candidates: Collection[str]) -> Refusal | None:
    """Return a refusal if the pod's claim still has devices on a node that is no candidate.

    They are from an earlier try. A place would hide them, and they would not be released for as
    long as the group is tried. The pod is read before, as its Binding there may have succeeded.
    """
    held = state.reservations.of_pod(pod.uid) or _inherited(state, pod)
    if held is None or held.is_tentative or held.is_binding or held.is_immediate:
        return None
    if held.node in candidates:
        return None
    take_back(state, held)
    if not state.reservations.is_current(held):
        return None
    return Refusal(Reason.RESERVED_ELSEWHERE, f"its GPUs on {held.node} are given back first")


def _inherited(state: State, pod: GPUPod) -> Reservation | None:
    """Return a reservation of the devices that a former leader gave the pod, if there are any."""
    claim = state.cache.claim(pod.claim)
    if claim is None or claim.status.allocation is None or pod.claim in state.claims.expired:
        return None
    reserved = claim.status.reserved_for
    is_its = reserved is not None and reserved.pod_uid == pod.uid
    return adopt(state, pod, claim) if is_its else None


def _try_for(state: State, pod: GPUPod, key: GroupKey) -> GroupTry:
    """Return the try that a Filter belongs to, which may begin with it."""
    work = state.groups.get(key)
    has_paused = work is None or state.now >= work.last + PROVISIONAL_S
    if (
        work is not None
        and not has_paused
        and not work.is_over
        and pod.uid not in work.offered
        and pod.uid not in work.asked
    ):
        return work
    since = state.now if work is None or has_paused or work.has_passed else work.since
    end_try(state, key)
    work = state.groups[key] = GroupTry(since, state.now)
    return work


def end_try(state: State, key: GroupKey) -> None:
    """End the current try of a group, with its provisional places and the Binds that still wait."""
    work = state.groups.pop(key, None)
    if work is not None and work.asked and not work.is_over:
        _fail(state, key, work, "kube-scheduler tries the group anew")
    for held in list(_places(state, key)):
        unreserve(state, held)


def _places(state: State, key: GroupKey) -> Iterator[Reservation]:
    """Yield the provisional places of a group's pods."""
    for pod in state.cache.pods_of_group(key):
        held = state.reservations.of_pod(pod.uid)
        if held is not None and held.group == key:
            yield held


def _note_refused(state: State, key: GroupKey, work: GroupTry) -> None:
    """Give all places up if too few pods are left that may find one.

    The places stay in memory until the try is over: kube-scheduler may still place the group, if
    more pods without GPUs belong to it than are known here.
    """
    if work.is_doomed:
        return
    least, refused = least_of(state, key), work.refused
    left = sum(pod.uid not in refused for pod in _live(state, key)) + others_of(state, key)
    if least is not None and left >= least:
        return
    work.is_doomed = True
    for held in _places(state, key):
        if held.is_awaited:
            state.ledger.touch(held.node)  # others may have been refused because of it
        held.give_up()


def never_fits(state: State, key: GroupKey | None) -> str | None:
    """Return why a group could not start even if all devices were empty, or None."""
    if key is None:
        return None
    specs = [(pod, spec_for(state, pod)) for pod in waiting_members(state, key)]
    demands = [
        pod.request(spec, state.config) for pod, spec in specs if not isinstance(spec, Refusal)
    ]
    count = min(enough(state, key), len(demands))
    return impossible_together(state.ledger.columns, demands, count)


def shortfall(state: State, key: GroupKey | None) -> Refusal | None:
    """Return why a group waits although one of its pods alone may fit, or None if it does not."""
    text, never = shortfall_text(state, key), never_fits(state, key)
    if never is not None:
        return Refusal(Reason.IMPOSSIBLE, "; ".join(filter(None, [text, never])))
    return Refusal(Reason.GROUP_INCOMPLETE, text) if text else None


def shortfall_text(state: State, key: GroupKey | None) -> str:
    """Return how many of a group's pods found a place in its last try; empty if all did."""
    work = None if key is None else state.shortfalls.get(key)
    if key is None or work is None:
        return ""
    least = least_of(state, key)
    pods = members(state, key)
    placed = sum(stands(state, pod) or bool(work.offered.get(pod.uid)) for pod in pods)
    refused = [pod.pod.metadata.name for pod in pods if pod.uid in work.refused]
    if not refused:
        return ""
    named = ", ".join(refused[:_NAMED]) + (" and others" if len(refused) > _NAMED else "")
    text = f"{placed} of {len(pods)} pods of group {key.name} found a place, and {named} did not"
    text = f"{text} ({work.reason})"
    return text if least is None else f"{text}; {least} must start together"


# Bind.


def ask(state: State, pod: GPUPod, node: str) -> GroupTry:
    """Record that a Bind asks for a node; reserve for the whole group if that is possible now."""
    assert pod.group is not None
    key = pod.group
    work = state.groups.get(key)
    if work is None:
        work = state.groups[key] = GroupTry(state.now, state.now)
    if work.is_over:
        return work
    work.asked[pod.uid], work.last = node, state.now
    work.until = min(work.until, state.now + GATHER_S)
    if not work.made:
        _reserve(state, key, work)
    return work


def verdict(state: State, pod: GPUPod, node: str, work: GroupTry) -> Reservation | Refusal | None:
    """Return the reservation that a Bind may use, or why it fails; None while it must wait."""
    if work.failure is not None:
        return work.failure
    if not work.has_passed:
        return None
    outcome = offer(state, pod, {node})
    if isinstance(outcome, Reservation):
        outcome.begin_bind(pod.reserved_for)
    return outcome


def review_tries(state: State) -> None:
    """End tries that are over, and the reservations of their pods without a Bind."""
    for key, work in list(state.groups.items()):
        settle(state, key, work)
        if work.has_passed and state.now >= work.until:
            for uid in [uid for uid in work.made if uid not in work.asked]:
                take_back(state, work.made.pop(uid))
        if state.now >= work.last + PROVISIONAL_S:
            for pod in _live(state, key):
                cleared = clear_nomination(pod, state)
                if cleared is not None:
                    state.outbox.append(cleared)
            end_try(state, key)


# The queue.


def is_being_tried(state: State, key: GroupKey | None) -> bool:
    """Return True while kube-scheduler tries the group and may still place it."""
    work = None if key is None else state.groups.get(key)
    return work is not None and not work.is_over and not work.is_doomed


def is_open(state: State, key: GroupKey) -> bool:
    """Return True while a pod of the group waits or kube-scheduler tries the group."""
    return state.queue.has_group(key) or key in state.groups


def requeue_group(state: State, key: GroupKey) -> Generator[list[Effect], None, bool]:
    """Requeue a group if enough of its pods fit together; return True if it was.

    The pods are planned one after another, each around those before it. Until all are, only the
    group respects their places. The state may change between two pods.
    """
    end_try(state, key)
    work = state.groups[key] = GroupTry(state.now, state.now)
    found = yield from _plan_together(state, key)
    if state.groups.get(key) is not work or work.offered or work.asked:
        return True  # kube-scheduler has since begun to try the group
    kept = [each for each in found if state.reservations.is_current(each[1])]
    if not kept or len(kept) < enough(state, key):
        end_try(state, key)
        return False
    work.last = state.now
    yield [_await(state, pod, held) for pod, held in kept]
    return True


def _plan_together(
    state: State, key: GroupKey
) -> Generator[list[Effect], None, list[tuple[GPUPod, Reservation]]]:
    """Give places to the pods of a group that wait; stop once too few of them can get one."""
    work, waiting = state.groups[key], without_devices(state, key)
    found: list[tuple[GPUPod, Reservation]] = []
    for number, pod in enumerate(waiting, start=1):
        plan = _plan(state, pod)
        if plan is not None:
            held = take_provisionally(state, pod, plan)
            held.give_up()
            found.append((pod, held))
        elif len(found) + len(waiting) - number < enough(state, key):
            break
        yield []
        if state.groups.get(key) is not work or work.offered or work.asked:
            break
    return found


def waiting_members(state: State, key: GroupKey) -> list[GPUPod]:
    """Return the group's GPU pods that have no node and no Binding in flight, by name."""
    return [pod for pod in members(state, key) if _waits(state, pod) and not stands(state, pod)]


def _waits(state: State, pod: GPUPod) -> bool:
    """Return True if the pod is still to be placed: in Gate mode while it is behind our gate."""
    if state.config.scheduling.decides_first:
        return pod.is_gated and pod.uid not in state.pods.blocked
    return pod.wants_node


def can_start(state: State, key: GroupKey) -> bool:
    """Return True if as many pods wait for devices as are still missing."""
    if of_mixed_group(state, key) is not None:
        return False
    return len(without_devices(state, key)) >= enough(state, key)


def has_started(state: State, key: GroupKey) -> bool:
    """Return True if as many pods as must start together have devices."""
    pods = list(_live(state, key))
    have = sum(stands(state, pod) or _has_devices(state, pod) for pod in pods)
    return have + others_of(state, key) >= (least_of(state, key) or 1)


def enough(state: State, key: GroupKey) -> int:
    """Return how many of the pods that have no devices yet must find a place."""
    without = len(without_devices(state, key))
    if least_of(state, key) is None:
        return without
    return max(_missing(state, key) - (len(waiting_members(state, key)) - without), 1)


def without_devices(state: State, key: GroupKey) -> list[GPUPod]:
    """Return the pods that wait, but not those that still have devices from an earlier try.

    A place would replace their reservation, and the devices would stay on their claims.
    """
    return [pod for pod in waiting_members(state, key) if not _has_devices(state, pod)]


def _has_devices(state: State, pod: GPUPod) -> bool:
    held, claim = state.reservations.of_pod(pod.uid), state.cache.claim(pod.claim)
    is_reserved = held is not None and not held.is_tentative
    return is_reserved or (claim is not None and claim.status.allocation is not None)


def _await(state: State, pod: GPUPod, held: Reservation) -> Effect:
    """Let others respect a planned place, and return the effect that wakes its pod."""
    held.is_awaited, held.is_given_up = True, False
    held.until = state.now + PROVISIONAL_S
    state.queue.take(pod.claim)
    return requeue(pod, held.node, state)


def _plan(state: State, pod: GPUPod) -> Plan | None:
    """Return a plan for a group's pod next to its group's places, or None."""
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        return None
    with state.deciding(
        pod.claim, Yielding.AS_IMPORTANT, priority=pod.priority, group=pod.group
    ) as kept:
        plan = place(
            state.ledger.columns,
            pod.request(spec, state.config),
            nodes=nodes_of(state, pod),
            budget=budget_for(state, pod),
            kept=kept,
        )
    return None if plan.refused else plan


def _needed(state: State, key: GroupKey, work: GroupTry) -> int:
    """Return how many pods of this try must bind, so that enough run."""
    if least_of(state, key) is None:
        return len(_targets(work))
    return _missing(state, key)


def _missing(state: State, key: GroupKey) -> int:
    """Return how many pods with GPUs must still bind, so that enough run; at least 1."""
    standing = sum(stands(state, pod) for pod in _live(state, key))
    return max((least_of(state, key) or 1) - standing - others_of(state, key), 1)


def stands(state: State, pod: GPUPod) -> bool:
    """Return True if the pod is bound or its Binding is in flight."""
    held = state.reservations.of_pod(pod.uid)
    return pod.pod.is_bound or (held is not None and held.is_binding)


def _targets(work: GroupTry) -> dict[str, str]:
    """Return the node of each pod that may ask for Bind in this try, by UID."""
    return {uid: node for uid, node in (work.offered | work.asked).items() if node}


def _reserve(state: State, key: GroupKey, work: GroupTry) -> None:
    """Reserve for every pod of the try, or for none if too few of them fit any more."""
    needed, targets = _needed(state, key, work), _targets(work)
    lost = []
    for uid, node in targets.items():
        pod = state.cache.pod(uid)
        if pod is None or not pod.wants_node:
            lost.append("a pod of it is gone")
            continue
        outcome = offer(state, pod, {node})
        if isinstance(outcome, Reservation):
            work.made[uid] = outcome
        else:
            lost.append(f"{pod.pod.metadata.name} on {node}: {outcome.on(node)}")
    if len(work.made) >= needed:
        return
    if lost:
        _fail(state, key, work, "; ".join(lost))
        return
    # Binds without a Filter, as after a change of leader: more of them are on their way.
    for reservation in work.made.values():
        take_back(state, reservation)
    work.made.clear()


def settle(state: State, key: GroupKey, work: GroupTry) -> None:
    """Let the Binds of a try pass, or fail all of them, if that can be decided now."""
    if work.is_over or not work.asked:
        return
    work.made = {
        uid: each for uid, each in work.made.items() if state.reservations.is_current(each)
    }
    needed = _needed(state, key, work)
    asked = [each for uid, each in work.made.items() if uid in work.asked]
    why = _why_not(state, work, needed, len(asked))
    if why:
        _fail(state, key, work, why)
    elif len(asked) >= needed and all(_is_written(state, each) for each in asked):
        work.has_passed = True
        state.shortfalls.pop(key, None)
        _begin_binds(state, asked)


def _begin_binds(state: State, asked: Collection[Reservation]) -> None:
    for held in asked:
        pod = state.cache.pod(held.pod_uid)
        if pod is not None:
            held.begin_bind(pod.reserved_for)
            state.pods.slow.discard(pod.uid)


def _why_not(state: State, work: GroupTry, needed: int, asked: int) -> str:
    """Return why the Binds of a try cannot pass any more; empty if they still may."""
    if work.made and len(work.made) < needed:
        return "a pod of it is gone, or its claim could not be written"
    if asked < needed and state.now >= work.until:
        return f"{asked} of {needed} pods asked for their Binding within {GATHER_S:.0f} s"
    return ""


def _is_written(state: State, held: Reservation) -> bool:
    return held.is_written and state.claims.is_settled(held.key)


def _fail(state: State, key: GroupKey, work: GroupTry, why: str) -> None:
    """Fail all Binds of a try, and end their reservations."""
    work.failure = Refusal(Reason.GROUP_INCOMPLETE, f"group {key.name} cannot start: {why}")
    for reservation in work.made.values():
        take_back(state, reservation)
    work.made = {}
    for held in list(_places(state, key)):
        unreserve(state, held)


def take_back(state: State, held: Reservation) -> None:
    """End a reservation; if its claim may show it, read the pod first."""
    if held.is_binding or not state.reservations.is_current(held):
        return
    if held.is_written or held.key in state.claims.writing:
        held.withdraw(state.now)
        state.claims.look_at(held.key)
    else:
        unreserve(state, held)
