"""Starvation: gives earmarks to claims that have waited too long for capacity, and removes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from vgpu_api.reasons import Reason
from vgpu_operator.engine.claims.describe import explain_waiter
from vgpu_operator.engine.gpu_pod import GroupKey, Standing
from vgpu_operator.engine.scheduling.earmarks import begin_sharing, choose, is_sound, joins
from vgpu_operator.engine.scheduling.gate_groups import is_short
from vgpu_operator.engine.scheduling.groups import is_open, waiting_members
from vgpu_operator.engine.scheduling.kept import MOST_OF_A_GROUP, Earmark, numbers_of
from vgpu_operator.engine.scheduling.places import remove_earmark
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, Waiter
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import TENTATIVE_S
from vgpu_operator.engine.scheduling.schedule_one import class_of, nodes_for, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Share

_WEIGHED_AT_ONCE = 8
"""Starving requests that are taken at a time, the longest waiting first, and sorted by rank."""


def review_earmarks(state: State) -> None:
    """Remove earmarks whose claim no longer waits or cannot use them any more."""
    for earmark in state.earmarks:
        if state.earmarks.get(earmark.key) is not earmark:
            continue  # gone with the others of its group
        kind = _kind_of(earmark, state)
        if kind is None or not _can_use(kind, earmark, state):
            remove_earmark(state, earmark)


def earmark_due(state: State) -> Iterator[None]:
    """Give earmarks to starving claims, one at a time; the state may change between two."""
    after_s = state.config.scheduling.starvation_after_seconds
    starving: list[Waiter] = []
    while len(starving) < _WEIGHED_AT_ONCE and (keys := state.starving.pop(state.now, at_most=1)):
        waiting = map(state.queue.get, keys)
        starving += (waiter for waiter in waiting if waiter is not None)
    for waiter in sorted(starving, key=lambda waiter: waiter.rank):
        # If it gets no earmark now, check it again after the same interval.
        state.starving.set(waiter.key, state.now + after_s)
        yield  # an explanation takes milliseconds at 5,000 nodes
        if state.queue.get(waiter.key) is not waiter or not _may_have_one(waiter, state):
            continue
        if waiter.kind.group is not None:
            yield from _earmark_group(waiter, waiter.kind.group, state)
            continue
        earmark = choose(
            state.ledger.columns,
            waiter.kind.request,
            waiter.key,
            nodes_for(waiter.kind, state),
            state.earmarks,
            _promised(waiter, state),
            waiter.kind.priority,
        )
        if earmark is not None:
            _put([replace(earmark, pod_uid=waiter.pod_uid, kind=waiter.kind)], state)


def _put(earmarks: Collection[Earmark], state: State) -> None:
    """Add the earmarks of one request; less important ones lose the devices of these."""
    for earmark in earmarks:
        for other in state.earmarks.of_others_on(
            earmark.number, earmark.devices, earmark.key, earmark.group
        ):
            remove_earmark(state, other)
        state.earmarks.put(earmark)


def _earmark_group(waiter: Waiter, group: GroupKey, state: State) -> Iterator[None]:
    """Give earmarks to all pods of a group that wait, or to none of them.

    Pods with one request for a part of a device share the devices that are kept for their group.
    """
    columns, promised = state.ledger.columns, _promised(waiter, state)
    chosen: list[Earmark] = []
    shared: dict[int, Share] = {}
    for pod in waiting_members(state, group):
        yield
        spec = spec_for(state, pod)
        if isinstance(spec, Refusal):
            return
        kind = class_of(state, pod, spec)
        if joins(columns, chosen, shared, kind.request, nodes_for(kind, state)):
            continue
        earmark = choose(
            columns,
            kind.request,
            pod.claim,
            nodes_for(kind, state),
            state.earmarks,
            promised,
            kind.priority,
        )
        if earmark is None:
            return
        numbers = numbers_of(columns, earmark).values()
        promised |= set(numbers)
        chosen.append(replace(earmark, pod_uid=pod.uid, kind=kind, group=group))
        if sum(len(each.devices) for each in chosen) > MOST_OF_A_GROUP:
            return
        begin_sharing(columns, shared, kind.request, numbers)
    if state.earmarks.has_room_for(group.namespace) and not state.earmarks.of_group(group):
        _put(chosen, state)


def _promised(waiter: Waiter, state: State) -> set[int]:
    """Return the devices that others will get soon, so that an earmark on them would be useless.

    More important pods were requeued for them, or pods have been evicted for another request.
    """
    places = {
        share.device
        for on_node in state.reservations.tentative.values()
        for place in on_node.values()
        if place.is_awaited and place.priority > waiter.kind.priority
        for share in place.shares
    }
    preempted = {
        device
        for earmark in state.earmarks
        if state.preemptions.of(earmark.key, earmark.group) is not None
        for device in numbers_of(state.ledger.columns, earmark).values()
    }
    return places | preempted


def _may_have_one(waiter: Waiter, state: State) -> bool:
    key: ClaimKey = waiter.key
    has_one = state.earmarks.get(key) or state.earmarks.of_group(waiter.kind.group)
    if has_one or not state.earmarks.has_room_for(key.namespace):
        return False
    if waiter.rank[0] == Standing.DOUBTFUL:  # the pod may lack more than devices
        return False
    if is_short(state, waiter.kind.group):
        return False
    refusal = explain_waiter(waiter, state)
    if refusal is None:
        return False
    return refusal.is_of_room or refusal.reason == Reason.GROUP_INCOMPLETE


def _kind_of(earmark: Earmark, state: State) -> EquivalenceClass | None:
    """Return the class of a claim that waits or whose pod was just requeued, else None."""
    waiter = state.queue.get(earmark.key)
    if waiter is not None:
        return _kind_for(earmark, waiter, state)
    if earmark.group is not None and is_open(state, earmark.group):
        return earmark.kind  # another pod of the group waits, or the group is being tried
    held = state.reservations.of_claim(earmark.key)
    if held is not None:
        return held.kind if held.is_awaited else None
    # The pod was requeued for another place, and other pods took that place before kube-scheduler's
    # back-off was over. Keep the earmark until its Filter comes: without it the pod would starve
    # again and again.
    pod = state.cache.pod(earmark.pod_uid)
    if pod is None or not pod.wants_node or pod.uid in state.pods.blocked:
        return None
    requeued = state.pods.requeued.get(pod.uid)
    is_to_come = requeued is not None and state.now < requeued + TENTATIVE_S
    return earmark.kind if is_to_come else None


def _kind_for(earmark: Earmark, waiter: Waiter, state: State) -> EquivalenceClass:
    """Return the class of a waiter; of a group that preempts, with the nodes it was not offered.

    Which nodes a pod of it is offered depends on those that the others have found in this try, and
    pods have been evicted for the earmark.
    """
    if earmark.group is None or state.preemptions.of(earmark.key, earmark.group) is None:
        return waiter.kind
    return waiter.kind._replace(ruled_out=0)


def _can_use(kind: EquivalenceClass, earmark: Earmark, state: State) -> bool:
    return is_sound(state.ledger.columns, earmark, nodes_for(kind, state))
