"""Applies decisions to the state: makes reservations, adopts allocations, ends reservations.

Apart from the writes of resizes and init containers, which assume for as long as they are in
flight, only this module assumes allocations in the ledger and forgets them again.
"""

from __future__ import annotations

from collections.abc import Collection

from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec
from vgpu_client.clock import rfc3339
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.scheduling.kept import Earmark
from vgpu_operator.engine.scheduling.queue import Waiter
from vgpu_operator.engine.scheduling.reservation import (
    LAPSED_S,
    OFFERED_S,
    PROVISIONAL_S,
    TENTATIVE_S,
    Phase,
    Reservation,
)
from vgpu_operator.engine.state import InFlight, State, Unsettled
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, Plan, Share


def reserve(
    state: State, key: ClaimKey, spec: VGPUClaimSpec, plan: Plan, pod: GPUPod | None
) -> Reservation:
    """Turn a plan into a reservation: assume it in the ledger, and have the claim written.

    Args:
        state: The engine's state.
        key: The claim, which need not exist yet.
        spec: The spec that the plan was made for.
        plan: The plan, which must not be a refusal.
        pod: The pod it is for; None for an Immediate claim, which serves whichever pod comes.
    """
    allocation = _named(state, plan.allocation(), pod)
    former = state.reservations.of_claim(key)
    claim = state.cache.claim(key)
    standing = None if claim is None else claim.status.allocation
    replaces = {allocation.id for allocation in (standing,) if allocation is not None}
    if former is not None and former.allocation is not None:
        replaces |= {former.allocation_id, *former.replaces}
    reservation = Reservation(
        key=key,
        pod_uid="" if pod is None else pod.uid,
        node=allocation.node_name,
        number=_number(state.ledger.columns, allocation.node_name),
        phase=Phase.OFFERED,
        until=None if pod is None else state.now + OFFERED_S,
        priority=0 if pod is None else pod.priority,
        spec=spec,
        allocation=allocation,
        reserved_for=None if pod is None else pod.reserved_for,
        replaces=frozenset(replaces),
        is_immediate=pod is None,
        assumption=state.ledger.assume(
            key, spec, allocation, scopes=None if pod is None else pod.scopes
        ),
    )
    _put(state, reservation, pod, taken=[device.name for device in allocation.devices])
    return reservation


def _end_earmarks(
    state: State, key: ClaimKey, group: GroupKey | None, node: int, taken: Collection[str]
) -> None:
    """End a claim's earmark, and those of others on devices that the claim takes.

    Placement gives a device that is kept for others only to a more important claim.
    """
    for earmark in state.earmarks.ended_by(key, group, node, taken):
        opened = None if earmark.key == key else state.preemptions.of(earmark.key, earmark.group)
        if opened is not None:
            opened.is_contested = True  # pods have gone for it, and it may still fit in the rest
        elif earmark.key == key:
            state.earmarks.remove(key)  # the rest of its group still waits
            state.ledger.touch(earmark.node)
        else:
            remove_earmark(state, earmark)


def remove_earmark(state: State, earmark: Earmark) -> None:
    """Remove an earmark and all others of its group, so that waiters look at their nodes again."""
    for each in state.earmarks.of_group(earmark.group) or [earmark]:
        if state.earmarks.remove(each.key) is not None:
            state.ledger.touch(each.node)


def adopt(state: State, pod: GPUPod, claim: VGPUClaim) -> Reservation:
    """Make a reservation of the allocation that the claim already has."""
    allocation = claim.status.allocation
    assert allocation is not None
    state.claims.expired.pop(key_of(claim), None)  # keep it allocated: the pod came after all
    state.ledger.count_as(key_of(claim), pod.scopes)
    reservation = Reservation(
        key=key_of(claim),
        pod_uid=pod.uid,
        node=allocation.node_name,
        number=_number(state.ledger.columns, allocation.node_name),
        phase=Phase.OFFERED,
        until=state.now + OFFERED_S,
        priority=pod.priority,
        allocation=allocation,
        reserved_for=claim.status.reserved_for,
        is_immediate=claim.spec.binding_mode == "Immediate",
        is_written=True,
    )
    _put(state, reservation, pod)
    return reservation


def keep_bound(state: State, pod: GPUPod, claim: VGPUClaim) -> None:
    """Reserve the devices of a bound pod whose claim is gone, until a new claim shows them."""
    assert claim.status.allocation is not None
    take_as_given(state, pod, claim.spec, claim.status.allocation)


def take_as_given(state: State, pod: GPUPod, spec: VGPUClaimSpec, allocation: Allocation) -> None:
    """Reserve devices that a bound pod has without a decision, until its own claim shows them."""
    reservation = Reservation(
        key=pod.claim,
        pod_uid=pod.uid,
        node=allocation.node_name,
        number=_number(state.ledger.columns, allocation.node_name),
        phase=Phase.BOUND,
        until=None,
        priority=pod.priority,
        spec=spec,
        allocation=allocation,
        reserved_for=pod.reserved_for,
        assumption=state.ledger.assume(pod.claim, spec, allocation, scopes=pod.scopes),
    )
    _put(state, reservation, pod)


def take_tentatively(state: State, waiter: Waiter, pod: GPUPod, plan: Plan) -> Reservation:
    """Keep a tentative place, in memory only, for a pod that is being requeued."""
    shares = shares_of(state.ledger.columns, plan)
    assert plan.node is not None
    place = _tentative(state, waiter.key, pod.uid, plan.node, shares, TENTATIVE_S)
    place.priority, place.kind, place.is_awaited = pod.priority, waiter.kind, True
    return place


def take_softly(state: State, pod: GPUPod, plan: Plan) -> Reservation:
    """Keep a tentative place for a pod that may take minutes to reach Bind, or never does."""
    state.queue.take(pod.claim)
    state.pods.blocked.pop(pod.uid, None)
    if pod.group is not None:
        return take_provisionally(state, pod, plan)
    return _take_softly(state, pod, plan, LAPSED_S)


def take_provisionally(state: State, pod: GPUPod, plan: Plan) -> Reservation:
    """Keep a provisional place for a group's pod, which its group respects."""
    place = _take_softly(state, pod, plan, PROVISIONAL_S)
    place.priority, place.group = pod.priority, pod.group
    return place


def _take_softly(state: State, pod: GPUPod, plan: Plan, for_s: float) -> Reservation:
    held = state.reservations.of_pod(pod.uid)
    if held is not None:
        unreserve(state, held)
    shares = shares_of(state.ledger.columns, plan)
    assert plan.node is not None
    return _tentative(state, pod.claim, pod.uid, plan.node, shares, for_s)


def lapse(state: State, reservation: Reservation) -> None:
    """End a reservation that was not bound in time, and keep its place tentatively.

    Binding a volume may take minutes, so the pod may still come. Until then any pod that needs the
    devices may take them. The step `expire` removes the allocation from the claim.
    """
    unreserve(state, reservation)
    allocation = reservation.allocation
    if allocation is None:
        return
    state.claims.expired[reservation.key] = allocation.id
    pod = state.cache.pod(reservation.pod_uid)
    is_nobodys = reservation.is_immediate or reservation.is_withdrawn
    if is_nobodys or pod is None or not pod.wants_node or pod.group is not None:
        return  # a pod of a group is tried again with its group
    if state.queue.get(reservation.key) is None:  # if it waits, a Filter has ruled its node out
        state.pods.slow.add(pod.uid)
    columns = state.ledger.columns
    names = {columns.name[number]: number for number in columns.node_devices[reservation.number]}
    shares = tuple(
        Share(names[device.name], 1, device.cores, device.memory_mib)
        for device in allocation.devices
        if device.name in names
    )
    _tentative(state, reservation.key, reservation.pod_uid, reservation.node, shares, LAPSED_S)


def unreserve(state: State, reservation: Reservation) -> None:
    """End a reservation and forget its assumption; the claim's status stays as it is."""
    if state.reservations.is_current(reservation):
        state.reservations.drop(reservation)
        _let_go(state, reservation)


def _let_go(state: State, reservation: Reservation) -> None:
    """Free the capacity of a reservation that has ended."""
    if reservation.is_tentative:
        # No pod was refused because of a provisional place that is not awaited, so none is
        # requeued.
        if reservation.group is None or reservation.is_awaited:
            state.ledger.touch(reservation.node)  # pods that wait may fit there now
    else:
        _no_longer_expected(state, reservation.pod_uid)
    _retire(state, reservation)
    state.claims.look_at(reservation.key)


def confirm(state: State, reservation: Reservation, claim: VGPUClaim) -> None:
    """Record that the claim's status shows the reservation's allocation."""
    reservation.allocation = claim.status.allocation  # a resize keeps the id
    reservation.is_written = claim.status.reserved_for == reservation.reserved_for
    if reservation.assumption is not None:
        state.ledger.confirm(reservation.assumption, claim)
        reservation.assumption = None


def resolve(state: State, key: ClaimKey, version: int) -> None:
    """Forget unsettled writes that were decided on versions before the one now observed.

    They test the version they were decided on, so they can no longer succeed.
    """
    waiting = state.claims.unsettled.get(key)
    if not waiting:
        return
    open_ = [each for each in waiting if each.version >= version]
    for each in waiting:
        if each.version < version and each.assumption is not None:
            state.ledger.forget(each.assumption)
    if open_:
        state.claims.unsettled[key] = open_
    else:
        del state.claims.unsettled[key]


def leave_unsettled(state: State, key: ClaimKey, version: int, write: InFlight) -> None:
    """Keep a write whose outcome is unknown until the claim is seen at a later version.

    The write may have landed or may still land. What it gives is assumed, apart from the
    reservation's assumption, which may end earlier. A write that gives nothing may take the claim's
    devices back, so nobody may rely on them until it is settled.
    """
    assumption = None
    if write.allocation is not None and write.spec is not None:
        assumption = state.ledger.assume(key, write.spec, write.allocation)
    else:
        claim = state.cache.claim(key)
        if claim is None or claim.status.allocation is None:
            return
    waiting, late = state.claims.unsettled.setdefault(key, []), Unsettled(assumption, version)
    if assumption is not None or late not in waiting:  # the same write is tried again and again
        waiting.append(late)


def _tentative(
    state: State, key: ClaimKey, uid: str, node: str, shares: tuple[Share, ...], for_s: float
) -> Reservation:
    place = Reservation(
        key=key,
        pod_uid=uid,
        node=node,
        number=_number(state.ledger.columns, node),
        phase=Phase.TENTATIVE,
        until=state.now + for_s,
        shares=shares,
    )
    state.reservations.put(place)
    state.claims.timers.set(key, state.now + for_s)
    return place


def _put(
    state: State, reservation: Reservation, pod: GPUPod | None, *, taken: Collection[str] = ()
) -> None:
    key = reservation.key
    for former in state.reservations.put(reservation):
        _let_go(state, former)
    state.queue.remove(key)
    group = None if pod is None else pod.group
    _end_earmarks(state, key, group, reservation.number, taken)
    if pod is not None:
        state.pods.blocked.pop(pod.uid, None)
        state.ledger.filters.hosts.expect(pod.uid, node=reservation.node, cpu_milli=pod.cpu_milli)
        if state.ledger.filters.room is not None:
            state.ledger.expect_pod(pod.pod, reservation.node)
    state.claims.look_at(key)


def _retire(state: State, reservation: Reservation) -> None:
    """Forget the assumption, unless its write is in flight: then the write's outcome decides."""
    assumption, reservation.assumption = reservation.assumption, None
    in_flight = state.claims.writing.get(reservation.key)
    under_way = in_flight is not None and in_flight.assumption is assumption
    if assumption is not None and not under_way:
        state.ledger.forget(assumption)


def _no_longer_expected(state: State, uid: str) -> None:
    """Stop counting the CPU and other resources of a pod that will not come to its node."""
    pod = state.cache.pod(uid)
    if pod is None or not pod.pod.is_bound:
        state.ledger.filters.hosts.remove_pod(uid)
        if state.ledger.filters.room is not None:
            state.ledger.forget_pod(uid)


def _named(state: State, allocation: Allocation, pod: GPUPod | None) -> Allocation:
    """Return the allocation with a new id, the UIDs of node and ResourceClaim, and the time."""
    node = state.cache.nodes.get(allocation.node_name)
    resource_claim = ""
    if pod is not None and pod.resource_claim:
        resource_claim = state.cache.resource_claim_uid(pod)
    return allocation.model_copy(
        update={
            "id": state.new_id(),
            "node_uid": node.metadata.uid if node is not None else "",
            "resource_claim_uid": resource_claim,
            "allocated_time": rfc3339(state.unix),
        }
    )


def _number(columns: Columns, node: str) -> int:
    number = columns.node_id(node)
    return -1 if number is None else number


def shares_of(columns: Columns, plan: Plan) -> tuple[Share, ...]:
    """Return the shares of devices that a plan takes."""
    return tuple(
        Share(
            columns.number_of(grant.device),
            1,
            grant.cores,
            grant.memory_mib,
            grant.slices,
        )
        for grant in plan.grants
    )
