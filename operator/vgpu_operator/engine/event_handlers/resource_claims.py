"""Applies events about ResourceClaims."""

from __future__ import annotations

from vgpu_api.core import ResourceClaim
from vgpu_client.backoff import Backoff
from vgpu_operator.engine import events
from vgpu_operator.engine.event_handlers.outcomes import let_go_ended
from vgpu_operator.engine.event_handlers.pods import note_pod
from vgpu_operator.engine.resource_claims.hand_over import note_taken_away
from vgpu_operator.engine.resource_claims.known import ResourceKey, is_for, resource_key
from vgpu_operator.engine.resource_claims.named import concerned
from vgpu_operator.engine.state import State

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 5.0


def resource_claim_observed(event: events.ResourceClaimObserved, state: State) -> None:
    """Apply an added or updated ResourceClaim. Those of other classes are left out."""
    _observe(state, event.claim)


def _observe(state: State, claim: ResourceClaim) -> None:
    key = resource_key(claim)
    before = state.cache.resource_claims.get(key)
    if (before is not None or claim.is_ours) and state.cache.put_resource_claim(claim):
        _note_change(state, key, before)


def resource_claim_deleted(event: events.ResourceClaimDeleted, state: State) -> None:
    """Forget a deleted ResourceClaim. A pod that still waits for it gets another."""
    _forget(state, event.key, event.uid)


def _forget(state: State, key: ResourceKey, uid: str) -> None:
    before = state.cache.delete_resource_claim(key, uid)
    if before is not None:
        state.resource_claims.backoffs.pop(key, None)
        state.resource_claims.not_before.pop(key, None)
        state.resource_claims.told.pop(key, None)
        _note_change(state, key, before)


def _note_change(state: State, key: ResourceKey, before: ResourceClaim | None) -> None:
    """Look at a ResourceClaim and its pods again, and see if its allocation was taken away."""
    state.resource_claims.due[key] = None
    state.resource_claims.users_due.update(dict.fromkeys(state.cache.users.pods_of(key)))
    now = state.cache.resource_claims.get(key)
    was_allocated = before is not None and before.status.allocation is not None
    is_taken = was_allocated and (now is None or now.status.allocation is None)
    ours = state.resource_claims.writing.get(key)
    # kube-scheduler takes an allocation away only if its node has no room for the pod.
    is_rejection = now is not None and (ours is None or ours.purpose != "deallocate")
    for pod in list(concerned(state, key, before)):
        if before is not None and is_taken and pod.is_gated and is_for(before, pod.uid):
            note_taken_away(state, pod, before, is_rejection=is_rejection)
        note_pod(state, pod)
        state.claims.look_at(pod.claim)


def _is_last_of(claim: ResourceClaim | None) -> bool:
    """Return True for the version with which a ResourceClaim ends: its last finalizer is gone."""
    if claim is None:
        return False
    metadata = claim.metadata
    return metadata.deletion_timestamp is not None and not metadata.finalizers


def resource_claim_written(event: events.ResourceClaimWritten, state: State) -> None:
    """Apply the outcome of a write of a ResourceClaim."""
    effect, work = event.effect, state.resource_claims
    key = ResourceKey(effect.namespace, effect.name)
    if event.claim is not None:
        _observe(state, event.claim)
    work.writing.pop(key, None)
    known = state.cache.resource_claims.get(key)
    if known is not None and (event.is_gone or _is_last_of(event.claim)):
        _forget(state, key, known.metadata.uid)
    state.gates.lifting.discard(effect.pod_uid)
    if effect.purpose == "allocate":
        outcome = "lifted" if event.outcome == "done" else event.outcome
        let_go_ended(state, effect.pod_uid, effect.allocation_id, outcome)
    if event.outcome == "done":
        work.backoffs.pop(key, None)
    else:
        backoff = work.backoffs.setdefault(key, Backoff(_FIRST_WAIT_S, _LAST_WAIT_S))
        work.not_before[key] = state.now + backoff.failed()
    work.due[key] = None
    state.claims.look_at(effect.claim)
