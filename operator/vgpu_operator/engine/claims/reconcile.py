"""Reconciles one claim: returns the next write that it needs.

Each step looks at the last observed version of the claim and at the state, and returns a write or
None. The first write wins. The claim is reconciled again when that write has ended, whatever its
outcome, and whenever anything about the claim changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vgpu_api.names import AGENT_UNREADY_S, FINALIZER_IN_USE
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims import lifecycle
from vgpu_operator.engine.claims.announce import announce_violation
from vgpu_operator.engine.claims.describe import describe, describe_missing
from vgpu_operator.engine.claims.init_containers import refit_init_devices, return_init_devices
from vgpu_operator.engine.claims.resizing import fits, mark_resize, resized
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
from vgpu_operator.engine.resource_claims.hand_over import hand_over_bound, name_resource_claim
from vgpu_operator.engine.scheduling.gate import lift_gate, note_lifted, replace_stuck
from vgpu_operator.engine.scheduling.places import adopt, unreserve
from vgpu_operator.engine.scheduling.requeue import clear_nomination
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.state import InFlight, State
from vgpu_operator.ledger import ClaimKey

Step: TypeAlias = Callable[[VGPUClaim, State], Effect | None]


def reconcile(key: ClaimKey, state: State) -> Effect | None:
    """Return the write that the claim needs now; None if none is needed or one is in flight."""
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
    """Return the write that creates a pod's claim, with its allocation or its refusal."""
    effect = _make(key, state) or describe_missing(key, state)
    if effect is None:  # the last response may have arrived after the claim's deletion
        state.claims.backoffs.pop(key, None)
        state.claims.not_before.pop(key, None)
    return effect


def _first_wanted(claim: VGPUClaim, state: State) -> Effect | None:
    """Return the write of the first step that needs one."""
    if claim.unknown_values:
        return None  # a later version of the operator wrote this claim, so leave it alone
    announce_violation(claim, state)
    effects = (step(claim, state) for step in CLAIM_STEPS)
    return next((each for each in effects if each is not None), None)


# Steps.


def remove_stale_finalizer(claim: VGPUClaim, state: State) -> Effect | None:
    """Remove our finalizer from a deleted claim that holds nothing."""
    if not lifecycle.is_stranded(claim):
        return None
    return write(claim, claim.status, let_go=True)


def follow_node(claim: VGPUClaim, state: State) -> Effect | None:
    """Move the allocation of a live pod to the new UID of its node, if that was registered again.

    The pod keeps its devices, because its containers may have kept running. If the node no longer
    has these devices, another machine has taken its name; then the devices are released and the pod
    waits for a new decision.
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
    """Release an Immediate claim whose devices no pod could use for five minutes.

    The claim is then decided again. Otherwise it might never be used, because its pod can go only
    to the node of the allocation.
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


def take_back(claim: VGPUClaim, state: State) -> Effect | None:
    """Release an Immediate claim in favour of a more important pod; the claim waits again."""
    key, held = key_of(claim), state.reservations.of_claim(key_of(claim))
    why = state.preemptions.taken_back.get(key)
    if why is None:
        return None
    if not lifecycle.is_idle(claim) or (held is not None and held.is_binding):
        del state.preemptions.taken_back[key]  # a pod has come for it, or it holds nothing
        return None
    if held is not None:
        unreserve(state, held)
    desired = DesiredStatus.refused(reason=Reason.TAKEN_BACK, message=why)
    return write_desired(claim, state, desired, let_go=True)


def release(claim: VGPUClaim, state: State) -> Effect | None:
    """Remove the allocation from a claim if nothing can use the devices any more."""
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
    """Return True while a Binding to a node that is gone may still succeed.

    The API server binds a pod to any name, even if there is no such node. The bound pod would keep
    its devices, because the node may come back with the pod's containers on it.
    """
    allocation, pod = claim.status.allocation, state.cache.pod(uid)
    if allocation is None or pod is None or not pod.wants_node:
        return False
    return lifecycle.node_lost(allocation, state.cache) is not None


def _unreserve_written(state: State, key: ClaimKey) -> None:
    """End the reservation of a released claim, unless the reservation has not been written yet."""
    held = state.reservations.of_claim(key)
    if held is not None and held.is_written:
        unreserve(state, held)


def release_orphaned(claim: VGPUClaim, state: State) -> Effect | None:
    """Release the devices of an ended pod after some time if the node's agent is silent.

    Otherwise, the namespace of a deleted claim would stay `Terminating` for as long as the node
    exists. No device is allocated twice: nothing new is placed on a node whose agent is silent, and
    an agent that comes back counts what is still running there before it lets a container start.
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
        state.claims.timers.set(key, state.now + AGENT_UNREADY_S)
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
    """Return since when the pod has ended and the agent has been silent, in monotonic seconds."""
    named, since = state.claims.orphaned.get(key, ("", state.now))
    if named != allocation.id:
        since = state.now
    since = max(since, absent.seen)  # the agent may have been back in the meantime
    state.claims.orphaned[key] = allocation.id, since
    return since


def write_reservation(claim: VGPUClaim, state: State) -> Effect | None:
    """Write the reservation into the claim's status, or end it if it no longer fits the claim."""
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
    """Remove an allocation whose pod was not bound in time."""
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
    """Clear the pod of an Immediate claim if it will never use it. The claim keeps its devices."""
    if lifecycle.pod_to_forget(claim, state.cache) is None:
        return None
    held = state.reservations.of_claim(key_of(claim))
    if held is not None:
        unreserve(state, held)
    return _without_pod(claim, state)


def read_lapsed(claim: VGPUClaim, state: State) -> Effect | None:
    """Read the pod of a lapsed reservation before freeing its devices, because it may be bound."""
    held = state.reservations.of_claim(key_of(claim))
    reserved = claim.status.reserved_for
    if held is None or held.is_tentative or held.is_read or not held.is_written:
        return None
    if not held.has_lapsed(state.now):
        if held.until is not None:
            state.claims.timers.set(held.key, held.until)
        return None
    if not held.pod_uid or reserved is None:  # an Immediate claim that names no pod yet
        unreserve(state, held)
        return None
    held.is_read = True
    return ReadPod(held.key.namespace, reserved.pod_name, held.pod_uid, held.allocation_id)


def resize(claim: VGPUClaim, state: State) -> Effect | None:
    """Write changed amounts of a request, on the same devices. The ledger assumes them first."""
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
    """Create a reservation for an allocation whose pod is not bound, so that it can lapse.

    Such an allocation was written by a former leader, or its reservation ended before the write.
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
            held.until = state.now  # the pod cannot use it any more
        note_lifted(state, pod)
    return read_lapsed(claim, state)


def delete_unused(claim: VGPUClaim, state: State) -> Effect | None:
    """Delete a user's claim when it has been unused for `ttlSecondsAfterUnused`."""
    at = lifecycle.expires_at(claim, state.cache)
    if at is None:
        return None
    if at > state.unix:
        state.claims.timers.set(key_of(claim), state.now + at - state.unix)
        return None
    metadata = claim.metadata
    return DeleteClaim(key_of(claim), metadata.uid, metadata.resource_version)


def observe_generation(claim: VGPUClaim, state: State) -> Effect | None:
    """Update `observedGeneration` after a change of the spec that needs no other write.

    `kubectl wait` and kstatus rely on it. A change of only the TTL is an example.
    """
    status, generation = claim.status, claim.metadata.generation
    is_decided = status.allocation is not None or status.state == RELEASED
    if not is_decided or not generation or status.observed_generation == generation:
        return None
    if claim.metadata.deletion_timestamp is not None:
        return None
    if state.reservations.of_claim(key_of(claim)) is not None:  # a resize has to end first
        return None
    if resized(claim, state) is not None:
        return None
    return write(claim, observed(claim))


def outrun_unsettled(claim: VGPUClaim, state: State) -> Effect | None:
    """Write the claim again after a write without a response, so that the latter must fail.

    Otherwise, it could land for as long as the claim stays at the version that it tests.
    """
    if key_of(claim) not in state.claims.unsettled:
        return None
    return write(claim, claim.status.model_copy(update={"decider": state.new_id()}))


CLAIM_STEPS: tuple[Step, ...] = (
    remove_stale_finalizer,
    follow_node,
    reallocate_unusable,
    take_back,
    release,
    release_orphaned,
    write_reservation,
    expire,
    keep_for_next_pod,
    outrun_unsettled,
    lift_gate,
    hand_over_bound,
    name_resource_claim,
    replace_stuck,
    read_lapsed,
    return_init_devices,
    refit_init_devices,
    mark_resize,
    resize,
    track_reservation,
    delete_unused,
    evict_violator,
    describe,
    observe_generation,
)
"""The order matters: steps that free devices come before steps that keep them, descriptions last.
No gate is lifted while a write without a response may still change the claim.
"""


# Making claims.


def _make(key: ClaimKey, state: State) -> Effect | None:
    """Return the write that creates a pod's claim together with its reservation."""
    held = state.reservations.of_claim(key)
    if held is None or held.allocation is None:
        return None
    pod = state.cache.pod(held.pod_uid)
    if pod is None or not pod.owned or held.spec is None:
        unreserve(state, held)  # the pod is gone, or the claim that it names is
        return None
    desired = DesiredStatus.allocated(held.allocation, held.reserved_for)
    state.claims.writing[key] = InFlight(held.allocation, held.spec, held.assumption)
    return WriteClaim(
        key=key,
        version="",
        status=status_with(None, held.spec, desired, unix=state.unix),
        create=claim_for_pod(pod.pod, held.spec, entry=pod.scheduler_entry),
        allocation_id=held.allocation_id,
    )


def _may_write(claim: VGPUClaim, held: Reservation, state: State) -> bool:
    """Return True if the reservation may be written over this version of the claim."""
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
    """End a tentative place if no Filter has come for it in time."""
    held = state.reservations.of_claim(key)
    if held is None or not held.is_tentative:
        return
    if not held.has_lapsed(state.now):
        if held.until is not None:  # a timer of an earlier place has brought us here
            state.claims.timers.set(key, held.until)
    else:
        unreserve(state, held)
        pod = state.cache.pod(held.pod_uid)
        cleared = None if pod is None else clear_nomination(pod, state)
        if cleared is not None:
            state.outbox.append(cleared)


def _without_pod(claim: VGPUClaim, state: State) -> Effect:
    assert claim.status.allocation is not None
    return write_desired(claim, state, DesiredStatus.allocated(claim.status.allocation, None))
