"""Events on claims: allocated, refused, released, violated.

A claim that a user created gets an event for each change of its condition. A claim that was made
for a pod gets none: the pod has the same events, and a second set would double the requests
(docs/design/web-cli-and-monitoring.md).
"""

from __future__ import annotations

from vgpu_api.conditions import ALLOCATED, VIOLATED, find
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.status import BEING_DELETED, RELEASED, DesiredStatus
from vgpu_operator.engine.effects import RecordEvent
from vgpu_operator.engine.state import State

_QUIET = frozenset({Reason.WAITING_FOR_POD.value, Reason.TEMPLATE.value})
"""Reasons without an event, because nothing has happened yet."""


def is_news(claim: VGPUClaim, desired: DesiredStatus) -> bool:
    """Return True if the change to the desired status is worth an event."""
    if desired.reason in _QUIET or any(o.kind == "Pod" for o in claim.metadata.owner_references):
        return False
    shown, allocation = find(claim.status.conditions, ALLOCATED), claim.status.allocation
    before = "" if allocation is None else allocation.id
    after = "" if desired.allocation is None else desired.allocation.id
    return shown is None or shown.reason != desired.reason or before != after


def announce(claim: VGPUClaim) -> RecordEvent | None:
    """Return the event about the written status, or None if it has no condition."""
    shown = find(claim.status.conditions, ALLOCATED)
    if shown is None:
        return None
    is_good = shown.status == "True" or shown.reason in (RELEASED, BEING_DELETED)
    return RecordEvent(
        _regarding(claim),
        "Normal" if is_good else "Warning",
        shown.reason,
        "Allocating",
        shown.message,
    )


def announce_violation(claim: VGPUClaim, state: State) -> None:
    """Record one event each time an agent reports that a claim has exceeded its limits."""
    key, violated = key_of(claim), find(claim.status.conditions, VIOLATED)
    if violated is None or violated.status != "True":
        state.claims.violated.pop(key, None)
        return
    if state.claims.violated.get(key) == violated.last_transition_time:
        return
    state.claims.violated[key] = violated.last_transition_time
    note = violated.message or violated.reason
    state.outbox.append(RecordEvent(_regarding(claim), "Warning", VIOLATED, "Watching", note))


def _regarding(claim: VGPUClaim) -> Regarding:
    metadata = claim.metadata
    return Regarding(claim.api_version, claim.kind, metadata.namespace, metadata.name, metadata.uid)
