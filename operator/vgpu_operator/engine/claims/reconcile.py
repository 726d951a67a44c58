"""Reconciles one claim: names the one write that brings it up to date.

Each step looks at the claim as it was last observed and at the state, and names the write that it
wants, or none; the first that wants one wins. The claim is reconciled again when that write has
ended, whatever its outcome, and whenever anything about it changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vgpu_api.names import AGENT_LEASE_S, FINALIZER_IN_USE
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims import lifecycle
from vgpu_operator.engine.claims.announce import announce_violation
from vgpu_operator.engine.claims.describe import describe, describe_missing
from vgpu_operator.engine.claims.init_containers import refit_init_devices, return_init_devices
from vgpu_operator.engine.claims.resizing import fits, resized
from vgpu_operator.engine.claims.status import (
    RELEASED,
    DesiredStatus,
    claim_for_pod,
    observed,
    status_with,
    with_devices,
)
from vgpu_operator.engine.claims.violators import evict_violator
from vgpu_operator.engine.claims.writes import write, write_desired
from vgpu_operator.engine.effects import DeleteClaim, Effect, ReadPod, WriteClaim
from vgpu_operator.engine.gpu_pod import is_owned_by, serves_another
from vgpu_operator.engine.nodes.agents import Absent, absent_agent
from vgpu_operator.engine.scheduling.gate import lift_gate, note_lifted, replace_stuck
from vgpu_operator.engine.scheduling.places import adopt, unreserve
from vgpu_operator.engine.scheduling.requeue import clear_nomination
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.state import InFlight, State
from vgpu_operator.ledger import ClaimKey

Step: TypeAlias = Callable[[VGPUClaim, State], Effect | None]


def reconcile(key: ClaimKey, state: State) -> Effect | None:
    """The write that the claim wants now; None if it wants none, or must wait for one under way."""
    if key in state.claims.writing or state.cache.is_unreadable(key):
        return None
    not_before = state.claims.not_before.get(key, 0.0)
    if not_before > state.now:
        state.claims.timers.set(key, not_before)
        return None
    _note_lapsed(key, state)
    claim = state.cache.claim(key)
    effect = _reconcile_missing(key, state) if claim is None else _first_wanted(claim, state)
    if isinstance(effect, (WriteClaim, DeleteClaim)) and key not in state.claims.writing:
        state.claims.writing[key] = InFlight()
    return effect


def _reconcile_missing(key: ClaimKey, state: State) -> Effect | None:
    """Return the write that makes the claim of a pod, or tells of one that does not exist."""
    effect = _make(key, state) or describe_missing(key, state)
    if effect is None:  # the last answer may have come after the claim's deletion
        state.claims.backoffs.pop(key, None)
        state.claims.not_before.pop(key, None)
    return effect


def _first_wanted(claim: VGPUClaim, state: State) -> Effect | None:
    """Return the write of the first step that wants one."""
    if claim.unknown_values:
        return None  # a later version decides; until then it keeps what it holds
    announce_violation(claim, state)
    effects = (step(claim, state) for step in CLAIM_STEPS)
    return next((each for each in effects if each is not None), None)


# Steps.


def remove_stale_finalizer(claim: VGPUClaim, state: State) -> Effect | None:
    """A deleted claim that holds nothing goes."""
    if not lifecycle.is_stranded(claim):
        return None
    return write(claim, claim.status, let_go=True)


def follow_node(claim: VGPUClaim, state: State) -> Effect | None:
    """Move the allocation of a live pod to the UID that its node was registered anew with.

    The pod keeps its devices, since its containers may have run all the time. Only if the node does
    not have these devices any more, another machine has its name, and the pod is decided anew.
    """
    key, allocation, cache = key_of(claim), claim.status.allocation, state.cache
    node = None if allocation is None else cache.nodes.get(allocation.node_name)
    is_same = allocation is not None and cache.is_there(allocation)
    if allocation is None or node is None or is_same or not lifecycle.has_live_pod(claim, cache):
        state.claims.without_devices.pop(key, None)
        return None
    there = {device.status.uuid for device in state.ledger.devices(allocation.node_name)}
    if all(device.uuid in there for device in allocation.devices):
        moved = allocation.model_copy(update={"node_uid": node.metadata.uid})
        return write(claim, with_devices(claim, moved))
    since = state.claims.without_devices.setdefault(key, state.now)
    if state.now - since < lifecycle.DEVICES_BACK_S:
        state.claims.timers.set(key, state.now + lifecycle.REFIT_S)
        return None
    why = f"node {allocation.node_name} was registered anew without the GPUs of its pod"
    return write_desired(claim, state, DesiredStatus.released(why), let_go=True)


def reallocate_unusable(claim: VGPUClaim, state: State) -> Effect | None:
    """An Immediate claim whose devices serve no pod for five minutes is decided anew.

    Such an allocation would keep its claim from ever being used: its pod may go to that node only.
    """
    key, allocation = key_of(claim), claim.status.allocation
    if (
        allocation is None
        or not lifecycle.is_idle(claim)
        or claim.metadata.deletion_timestamp is not None
    ):
        state.claims.unusable.pop(key, None)
        return None
    why = lifecycle.node_lost(allocation, state.cache)
    if why is None:
        why = lifecycle.why_unusable(allocation, state.cache, state.ledger)
        if why is None:
            state.claims.unusable.pop(key, None)
            return None
        named, since = state.claims.unusable.get(key, ("", state.now))
        if named != allocation.id:
            since = state.now
        state.claims.unusable[key] = allocation.id, since
        if state.now - since < lifecycle.UNUSABLE_S:
            state.claims.timers.set(key, since + lifecycle.UNUSABLE_S)
            return None
    held = state.reservations.of_claim(key)
    if held is not None and held.is_binding:
        return None
    if held is not None:
        unreserve(state, held)
    desired = DesiredStatus.refused(
        reason=Reason.ALLOCATION_UNUSABLE, message=f"{why}; decided anew"
    )
    return write_desired(claim, state, desired, let_go=True)


def release(claim: VGPUClaim, state: State) -> Effect | None:
    """What nothing can use any more is taken off the claim."""
    reason = lifecycle.release_reason(claim, state.cache)
    if reason is None:
        return None
    held, reserved = state.reservations.of_claim(key_of(claim)), claim.status.reserved_for
    if held is not None and held.is_binding and _may_get_its_node(claim, held.pod_uid, state):
        return None
    _unreserve_written(state, key_of(claim))
    if reserved is not None and lifecycle.was_released(claim) and state.cache.pod(reserved.pod_uid):
        state.pods.ended.add(reserved.pod_uid)
    return write_desired(claim, state, DesiredStatus.released(reason), let_go=True)


def _may_get_its_node(claim: VGPUClaim, uid: str, state: State) -> bool:
    """Return True while a Binding to a node that is gone may still come to stand.

    The API server binds a pod to whichever name it is given, and a pod with a node keeps its
    devices: the node may come back with the pod's containers on it.
    """
    allocation, pod = claim.status.allocation, state.cache.pod(uid)
    if allocation is None or pod is None or not pod.wants_node:
        return False
    return lifecycle.node_lost(allocation, state.cache) is not None


def _unreserve_written(state: State, key: ClaimKey) -> None:
    """End the reservation of a claim that is released, unless a new one is to be written."""
    held = state.reservations.of_claim(key)
    if held is not None and held.is_written:
        unreserve(state, held)


def release_orphaned(claim: VGPUClaim, state: State) -> Effect | None:
    """Release the devices of an ended pod after some time, if the agent is silent that reports it.

    Or the namespace of a deleted claim would be `Terminating` for as long as the node stays.
    Nothing is given twice by it: nothing new is placed where the agent is silent, and one that
    comes back counts what still runs there before it lets a container start.
    """
    key, allocation, reserved = key_of(claim), claim.status.allocation, claim.status.reserved_for
    if allocation is None or reserved is None or not reserved.pod_uid:
        return None
    pod = state.cache.pod(reserved.pod_uid)
    if pod is not None and not pod.pod.is_terminal:
        state.claims.orphaned.pop(key, None)
        return None
    absent = absent_agent(allocation.node_name, state)
    if absent is None:
        state.claims.orphaned.pop(key, None)
        state.claims.timers.set(key, state.now + AGENT_LEASE_S)
        return None
    since = _orphaned_since(state, key, allocation, absent)
    if state.now - since < state.agent_gone_s:
        state.claims.timers.set(key, since + state.agent_gone_s)
        return None
    if pod is None and not state.cache.is_deleted(reserved.pod_uid):
        return ReadPod(key.namespace, reserved.pod_name, reserved.pod_uid, allocation.id)
    if pod is not None:
        state.pods.ended.add(reserved.pod_uid)
    _unreserve_written(state, key)
    desired = DesiredStatus.released(f"its pod has ended, and {absent.why}")
    return write_desired(claim, state, desired, let_go=True)


def _orphaned_since(state: State, key: ClaimKey, allocation: Allocation, absent: Absent) -> float:
    """Return since when the pod of an allocation has ended without an agent to report it."""
    named, since = state.claims.orphaned.get(key, ("", state.now))
    if named != allocation.id:
        since = state.now
    since = max(since, absent.seen)  # it may have been back meanwhile
    state.claims.orphaned[key] = allocation.id, since
    return since


def write_reservation(claim: VGPUClaim, state: State) -> Effect | None:
    """The claim's status gets its decision."""
    held = state.reservations.of_claim(key_of(claim))
    if held is None or held.allocation is None or held.is_written:
        return None
    if not _may_write(claim, held, state):
        unreserve(state, held)
        if held.pod_uid:
            state.pods.due[held.pod_uid] = None
        return None
    desired = DesiredStatus.allocated(held.allocation, held.reserved_for)
    write = write_desired(
        claim, state, desired, add_finalizer=FINALIZER_IN_USE not in claim.metadata.finalizers
    )
    state.claims.writing[key_of(claim)] = InFlight(held.allocation, claim.spec, held.assumption)
    return write


def expire(claim: VGPUClaim, state: State) -> Effect | None:
    """An allocation whose pod was not bound in time is taken back."""
    key, allocation = key_of(claim), claim.status.allocation
    if allocation is None or state.claims.expired.get(key) != allocation.id:
        return None
    if claim.spec.binding_mode == "Immediate":
        del state.claims.expired[key]
        return _without_pod(claim, state)
    reserved = claim.status.reserved_for
    pod = "" if reserved is None else reserved.pod_name
    return write_desired(claim, state, DesiredStatus.expired(pod), let_go=True)


def keep_for_next_pod(claim: VGPUClaim, state: State) -> Effect | None:
    """Take the pod's name off an Immediate claim whose pod went unbound; its devices stay."""
    if lifecycle.pod_to_forget(claim, state.cache) is None:
        return None
    held = state.reservations.of_claim(key_of(claim))
    if held is not None:
        unreserve(state, held)
    return _without_pod(claim, state)


def read_lapsed(claim: VGPUClaim, state: State) -> Effect | None:
    """Before a reservation's devices go its pod is read: it may have a node by now."""
    held = state.reservations.of_claim(key_of(claim))
    reserved = claim.status.reserved_for
    if held is None or held.is_tentative or held.is_read or not held.is_written:
        return None
    if not held.has_lapsed(state.now):
        if held.until is not None:
            state.claims.timers.set(held.key, held.until)
        return None
    if not held.pod_uid or reserved is None:  # an Immediate claim's, which names no pod yet
        unreserve(state, held)
        return None
    held.is_read = True
    return ReadPod(held.key.namespace, reserved.pod_name, held.pod_uid, held.allocation_id)


def resize(claim: VGPUClaim, state: State) -> Effect | None:
    """A changed request gets its amounts on the devices that the claim has, the ledger first."""
    new, key = resized(claim, state), key_of(claim)
    if new is None:
        return None
    if not fits(claim, new, state):
        state.claims.timers.set(key, state.now + lifecycle.REFIT_S)
        return None
    assumption = state.ledger.assume(key, claim.spec, new)
    state.claims.writing[key] = InFlight(new, claim.spec, assumption)
    return write(claim, with_devices(claim, new))


def track_reservation(claim: VGPUClaim, state: State) -> Effect | None:
    """An allocation that stands for a pod without a node is a reservation, and lapses.

    However it came about: written by a former leader, or after its own reservation had ended.
    """
    key, reserved = key_of(claim), claim.status.reserved_for
    if claim.status.allocation is None or reserved is None:
        return None
    pod = state.cache.pod(reserved.pod_uid)
    if pod is None or not (pod.wants_node or pod.is_gated) or pod.claim != key:
        return None
    if state.reservations.of_claim(key) is None and state.reservations.of_pod(pod.uid) is None:
        held = adopt(state, pod, claim)
        if claim.metadata.deletion_timestamp is not None:
            held.until = state.now  # its pod cannot use it any more
        note_lifted(state, pod)
    return read_lapsed(claim, state)


def delete_unused(claim: VGPUClaim, state: State) -> Effect | None:
    """A user's claim goes some time after its pod ended."""
    at = lifecycle.expires_at(claim, state.cache)
    if at is None:
        return None
    if at > state.unix:
        state.claims.timers.set(key_of(claim), state.now + at - state.unix)
        return None
    metadata = claim.metadata
    return DeleteClaim(key_of(claim), metadata.uid, metadata.resource_version)


def observe_generation(claim: VGPUClaim, state: State) -> Effect | None:
    """A change of the spec that asks for no other devices is marked as read.

    `kubectl wait` and kstatus wait for that, and a change of the ttl alone needs nothing else.
    """
    status, generation = claim.status, claim.metadata.generation
    is_decided = status.allocation is not None or status.state == RELEASED
    if not is_decided or not generation or status.observed_generation == generation:
        return None
    if claim.metadata.deletion_timestamp is not None:
        return None
    if state.reservations.of_claim(key_of(claim)) is not None:  # a resize waits for its end
        return None
    if resized(claim, state) is not None:
        return None
    return write(claim, observed(claim))


def outrun_unsettled(claim: VGPUClaim, state: State) -> Effect | None:
    """A write without an answer may land as long as the claim is at the version that it tests."""
    if key_of(claim) not in state.claims.unsettled:
        return None
    return write(claim, claim.status.model_copy(update={"decider": state.new_id()}))


CLAIM_STEPS: tuple[Step, ...] = (
    remove_stale_finalizer,
    follow_node,
    reallocate_unusable,
    release,
    release_orphaned,
    write_reservation,
    expire,
    keep_for_next_pod,
    lift_gate,
    replace_stuck,
    read_lapsed,
    return_init_devices,
    refit_init_devices,
    resize,
    track_reservation,
    delete_unused,
    evict_violator,
    describe,
    observe_generation,
    outrun_unsettled,
)
"""In this order: what frees devices goes before what keeps them, words come after both."""


# Making claims.


def _make(key: ClaimKey, state: State) -> Effect | None:
    """The claim of a pod that has a reservation, made with it."""
    held = state.reservations.of_claim(key)
    if held is None or held.allocation is None:
        return None
    pod = state.cache.pod(held.pod_uid)
    if pod is None or not pod.owned or held.spec is None:
        unreserve(state, held)  # the claim that it names is gone, or the pod is
        return None
    desired = DesiredStatus.allocated(held.allocation, held.reserved_for)
    state.claims.writing[key] = InFlight(held.allocation, held.spec, held.assumption)
    return WriteClaim(
        key=key,
        version="",
        status=status_with(None, held.spec, desired, unix=state.unix),
        create=claim_for_pod(pod.pod, held.spec),
        allocation_id=held.allocation_id,
    )


def _may_write(claim: VGPUClaim, held: Reservation, state: State) -> bool:
    """Whether the reservation may be written over this version of the claim."""
    standing = claim.status.allocation
    if standing is not None and standing.id not in {held.allocation_id, *held.replaces}:
        return False
    if claim.metadata.deletion_timestamp is not None:
        return False
    if held.spec is not None and claim.spec != held.spec:
        return False
    pod = state.cache.pod(held.pod_uid)
    if pod is None:
        return not held.pod_uid
    if pod.owned:
        return is_owned_by(claim, pod.uid)
    return not serves_another(claim, pod.uid)


def _note_lapsed(key: ClaimKey, state: State) -> None:
    """End a tentative place that no Filter came for."""
    held = state.reservations.of_claim(key)
    if held is not None and held.is_tentative and held.has_lapsed(state.now):
        unreserve(state, held)
        pod = state.cache.pod(held.pod_uid)
        cleared = None if pod is None else clear_nomination(pod, state)
        if cleared is not None:
            state.outbox.append(cleared)


def _without_pod(claim: VGPUClaim, state: State) -> Effect:
    assert claim.status.allocation is not None
    return write_desired(claim, state, DesiredStatus.allocated(claim.status.allocation, None))
