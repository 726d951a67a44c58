"""Applies what was observed of claims."""

from __future__ import annotations

from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine import events
from vgpu_operator.engine.cache import key_of, version_of
from vgpu_operator.engine.claims.lifecycle import has_live_pod
from vgpu_operator.engine.claims.status import RELEASED
from vgpu_operator.engine.scheduling.places import confirm, keep_bound, resolve, unreserve
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_one import put_immediate_in_queue
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey

_NEVER = 1 << 63
"""A version that no write was decided on."""


def claim_observed(event: events.ClaimObserved, state: State) -> None:
    """Take a version of a claim into the state."""
    observe_claim(state, event.claim)


def observe_claim(state: State, claim: VGPUClaim) -> None:
    """Take a version of a claim into the state."""
    former = state.cache.claim(key_of(claim))
    if not state.cache.put_claim(claim):
        return
    if former is not None and claim.status.allocation is None:
        _note_owed(state, former)
    state.ledger.apply_claim(claim)
    key, allocation = key_of(claim), claim.status.allocation
    note_scopes(state, key)
    resolve(state, key, version_of(claim.metadata.resource_version))
    held = state.reservations.of_claim(key)
    if held is not None and held.allocation is not None:
        _compare(state, claim, held)
    if allocation is None or allocation.id != state.claims.expired.get(key):
        state.claims.expired.pop(key, None)
    state.claims.look_at(key)
    note_immediate(state, key)
    for pod in (*state.cache.pods_of(key), *state.cache.pods_of_template(key)):
        state.pods.due[pod.uid] = None


def _compare(state: State, claim: VGPUClaim, held: Reservation) -> None:
    """Confirm a reservation that the claim shows by now; end one that it does not show any more."""
    allocation = claim.status.allocation
    if allocation is not None and allocation.id == held.allocation_id:
        confirm(state, held, claim)
        if held.is_written and _has_arrived(state, held):
            state.reservations.drop(held)
    elif held.is_written:
        unreserve(state, held)  # what stood there was released, or replaced


def _note_owed(state: State, claim: VGPUClaim) -> None:
    """Let the pod of a claim that has lost its devices go first, if the pod still runs.

    Every replica notes that, since the pod may have to wait for longer than a leader lasts.
    """
    if claim.status.reserved_for is not None and has_live_pod(claim, state.cache):
        state.pods.owed.add(claim.status.reserved_for.pod_uid)


def note_scopes(state: State, key: ClaimKey) -> None:
    """Let quotas count what a claim holds as its pod's, whichever of the two was seen first."""
    claim, held = state.cache.claim(key), state.reservations.of_claim(key)
    reserved = None if claim is None else claim.status.reserved_for
    uid = "" if reserved is None else reserved.pod_uid
    if held is not None and not held.is_tentative:
        uid = held.pod_uid or uid
    pod = state.cache.pod(uid)
    if pod is not None or not uid:
        state.ledger.count_as(key, None if pod is None else pod.scopes)


def _has_arrived(state: State, held: Reservation) -> bool:
    """Return True if the claim alone shows from now on what is held, and for whom."""
    pod = state.cache.pod(held.pod_uid)
    return not held.pod_uid or (held.is_bound and pod is not None and pod.pod.is_bound)


def claim_deleted(event: events.ClaimDeleted, state: State) -> None:
    """Forget all that is known of a claim, but keep the devices of its pod if that still runs."""
    key = event.key
    state.ledger.remove_claim(event.uid)
    known = state.cache.delete_claim(key, event.uid)
    if known is None:
        return
    resolve(state, key, _NEVER)
    held = state.reservations.of_claim(key)
    if held is not None and held.is_written:
        unreserve(state, held)
    work = state.claims
    for of_claim in (
        work.reported,
        work.expired,
        work.unusable,
        work.without_devices,
        work.orphaned,
        work.going,
        work.evicted,
        work.init_refused,
        work.violated,
        work.not_before,
        work.backoffs,
    ):
        of_claim.pop(key, None)
    work.turns.leave(key)
    _note_owed(state, known)
    _keep_for_pod(state, known)
    work.look_at(key)
    note_immediate(state, key)
    for pod in state.cache.pods_of(key):
        state.pods.due[pod.uid] = None


def _keep_for_pod(state: State, claim: VGPUClaim) -> None:
    """Keep the devices of a running pod whose own claim vanished, which is then made again.

    Our finalizer keeps claims in use; what takes them all the same is a finalizer removed by hand,
    or the CRD deleted. The new claim has the same allocation, so the agent knows it.
    """
    reserved = claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if pod is not None and pod.owned and has_live_pod(claim, state.cache):
        keep_bound(state, pod, claim)


def claim_unreadable(event: events.ClaimUnreadable, state: State) -> None:
    """Count the devices of a claim as full until the claim can be read, and leave it alone."""
    metadata = event.raw["metadata"]
    key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
    uid, version = metadata["uid"], version_of(metadata["resourceVersion"])
    state.cache.put_unreadable(key, uid, version)
    state.ledger.mark_unreadable(uid, event.raw)


def note_immediate(state: State, key: ClaimKey) -> None:
    """Put an Immediate claim in the queue if it needs devices, else take it out."""
    claim, waiter = state.cache.claim(key), state.queue.get(key)
    if claim is not None and _lacks_devices(state, claim):
        put_immediate_in_queue(state, claim)
    elif waiter is not None and not waiter.pod_uid:
        state.queue.remove(key)
        drop_earmark(state, key)


def _lacks_devices(state: State, claim: VGPUClaim) -> bool:
    """Return True for an Immediate claim that is to get devices and has no reservation."""
    key = key_of(claim)
    held = state.reservations.of_claim(key)
    return (
        claim.spec.binding_mode == "Immediate"
        and not claim.unknown_values
        and claim.status.allocation is None
        and claim.metadata.deletion_timestamp is None
        and (held is None or held.is_tentative)
        # One that was used and released holds nothing until a pod comes to use it again.
        and (claim.status.state != RELEASED or _is_needed(state, key))
    )


def _is_needed(state: State, key: ClaimKey) -> bool:
    pods = state.cache.pods_of(key)
    return any(pod.wants_node or pod.is_running or pod.is_gated for pod in pods)


def drop_earmark(state: State, key: ClaimKey) -> None:
    """Keep devices free for the claim no more, and let others look at their node."""
    earmark = state.earmarks.remove(key)
    if earmark is not None:
        state.ledger.touch(earmark.node)
