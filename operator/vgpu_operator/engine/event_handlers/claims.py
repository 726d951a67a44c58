"""Applies events about claims."""

from __future__ import annotations

from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.v1alpha1.base import version_of
from vgpu_operator.engine import events
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.lifecycle import has_live_pod
from vgpu_operator.engine.claims.status import RELEASED
from vgpu_operator.engine.scheduling.places import confirm, keep_bound, resolve, unreserve
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_one import put_immediate_in_queue
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey

_NEVER = 1 << 63
"""A version greater than any on which a write can be based."""


def claim_observed(event: events.ClaimObserved, state: State) -> None:
    """Apply an added or updated claim."""
    observe_claim(state, event.claim)


def observe_claim(state: State, claim: VGPUClaim) -> None:
    """Apply an added or updated claim, unless a newer version is known."""
    former = state.cache.claim(key_of(claim))
    if not state.cache.put_claim(claim):
        return
    if former is not None and claim.status.allocation is None:
        _note_owed(state, former)
    state.ledger.apply_claim(claim)
    key, allocation = key_of(claim), claim.status.allocation
    note_shown(state, key)
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


def note_shown(state: State, key: ClaimKey) -> None:
    """Look at the ResourceClaims that show a claim, which may be free now."""
    for each in state.cache.resource_claims.showing(key):
        state.resource_claims.due[each] = None


def _compare(state: State, claim: VGPUClaim, held: Reservation) -> None:
    """Confirm a reservation that the claim shows, and end one that the claim no longer shows."""
    allocation = claim.status.allocation
    if allocation is not None and allocation.id == held.allocation_id:
        confirm(state, held, claim)
        if held.is_written and _has_arrived(state, held):
            state.reservations.drop(held)
    elif held.is_written:
        unreserve(state, held)  # the allocation was released or replaced


def _note_owed(state: State, claim: VGPUClaim) -> None:
    """If a claim has lost its devices while its pod runs, let that pod be served first.

    Standbys record this, too, because the pod may have to wait for longer than the current leader
    lasts.
    """
    if claim.status.reserved_for is not None and has_live_pod(claim, state.cache):
        state.pods.owed.add(claim.status.reserved_for.pod_uid)


def note_scopes(state: State, key: ClaimKey) -> None:
    """Give the ledger the quota scopes of a claim's pod, whichever was observed first."""
    claim, held = state.cache.claim(key), state.reservations.of_claim(key)
    reserved = None if claim is None else claim.status.reserved_for
    uid = "" if reserved is None else reserved.pod_uid
    if held is not None and not held.is_tentative:
        uid = held.pod_uid or uid
    pod = state.cache.pod(uid)
    if pod is not None or not uid:
        state.ledger.count_as(key, None if pod is None else pod.scopes)


def _has_arrived(state: State, held: Reservation) -> bool:
    """Return True if the claim's status is now sufficient, so that the reservation can end."""
    pod = state.cache.pod(held.pod_uid)
    return not held.pod_uid or (held.is_bound and pod is not None and pod.pod.is_bound)


def claim_deleted(event: events.ClaimDeleted, state: State) -> None:
    """Forget a deleted claim, but keep the devices of a pod that is still running."""
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
        work.marked,
        work.going,
        work.evicted,
        work.init_refused,
        work.violated,
        work.not_before,
        work.backoffs,
    ):
        of_claim.pop(key, None)
    work.turns.leave(key)
    note_shown(state, key)
    _note_owed(state, known)
    _keep_for_pod(state, known)
    work.look_at(key)
    note_immediate(state, key)
    for pod in state.cache.pods_of(key):
        state.pods.due[pod.uid] = None


def _keep_for_pod(state: State, claim: VGPUClaim) -> None:
    """Keep the devices of a running pod whose own claim has vanished, and recreate the claim.

    Our finalizer protects claims in use. They vanish only if it is removed by hand or the CRD is
    deleted. The new claim has the same allocation, so the agent recognizes it.
    """
    reserved = claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if pod is not None and pod.owned and has_live_pod(claim, state.cache):
        keep_bound(state, pod, claim)


def claim_unreadable(event: events.ClaimUnreadable, state: State) -> None:
    """Count the devices of an invalid claim as full, and leave the claim alone."""
    metadata = event.raw["metadata"]
    key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
    uid, version = metadata["uid"], version_of(metadata["resourceVersion"])
    state.cache.put_unreadable(key, uid, version)
    state.ledger.mark_unreadable(uid, event.raw)


def note_immediate(state: State, key: ClaimKey) -> None:
    """Queue an Immediate claim if it needs devices, else remove it from the queue."""
    claim, waiter = state.cache.claim(key), state.queue.get(key)
    if claim is not None and _lacks_devices(state, claim):
        put_immediate_in_queue(state, claim)
    elif waiter is not None and not waiter.pod_uid:
        state.queue.remove(key)
        drop_earmark(state, key)


def _lacks_devices(state: State, claim: VGPUClaim) -> bool:
    """Return True for an Immediate claim that needs devices and has no reservation."""
    key = key_of(claim)
    held = state.reservations.of_claim(key)
    return (
        claim.spec.binding_mode == "Immediate"
        and not claim.unknown_values
        and claim.status.allocation is None
        and claim.metadata.deletion_timestamp is None
        and (held is None or held.is_tentative)
        # A claim that was used and released gets no devices until another pod needs it.
        and (claim.status.state != RELEASED or _is_needed(state, key))
    )


def _is_needed(state: State, key: ClaimKey) -> bool:
    pods = state.cache.pods_of(key)
    return any(pod.wants_node or pod.is_running or pod.is_gated for pod in pods)


def drop_earmark(state: State, key: ClaimKey) -> None:
    """Remove the claim's earmark, so that waiters look at its node again."""
    earmark = state.earmarks.remove(key)
    if earmark is not None:
        state.ledger.touch(earmark.node)
