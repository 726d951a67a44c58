"""Removes our allocation and our finalizer from ResourceClaims that no pod uses any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from vgpu_api import dra
from vgpu_api.core import ResourceClaim
from vgpu_api.errors import BadInput
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import RESOURCE_CLAIMS
from vgpu_api.v1alpha1 import Allocation
from vgpu_client.recorder import Regarding
from vgpu_operator.dialects.claim_templates import of_claim, refuse_unserved
from vgpu_operator.engine.effects import Effect, RecordEvent, WriteResourceClaim
from vgpu_operator.engine.resource_claims.hand_over import shows
from vgpu_operator.engine.resource_claims.known import ResourceKey, vgpu_claim_of
from vgpu_operator.engine.state import State

_ACTION = "Allocating"


def tidy_due(state: State) -> Iterator[list[Effect]]:
    """Yield the writes of the ResourceClaims that have changed, or whose VGPUClaim has."""
    work = state.resource_claims
    for key, at in list(work.not_before.items()):
        if at <= state.now:
            del work.not_before[key]
            work.due[key] = None
    due, work.due = work.due, {}
    for key in due:
        _tell_of_unserved(key, state)
        effect = None if key in work.writing or key in work.not_before else _tidy(key, state)
        if effect is not None:
            work.writing[key] = effect
            yield [effect]


def _tell_of_unserved(key: ResourceKey, state: State) -> None:
    """Record an event on a ResourceClaim of our classes that will never be allocated."""
    found, told = state.cache.resource_claims.get(key), state.resource_claims.told
    if found is None or dra.is_made_name(key.name) or found.is_of_scheduler:
        return
    if found.metadata.deletion_timestamp is not None:
        return
    metadata = found.metadata
    if found.status.allocation is not None or told.get(key) == metadata.uid:
        return
    told[key] = metadata.uid
    note = _why_unserved(found, state)
    if note:
        regarding = Regarding(
            RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, key.namespace, key.name, metadata.uid
        )
        state.outbox.append(RecordEvent(regarding, "Warning", "Unsupported", _ACTION, note))


def _why_unserved(found: ResourceClaim, state: State) -> str:
    """Return why a ResourceClaim that the operator has not made is not served; empty if it is."""
    if any(owner.kind == "Pod" for owner in found.metadata.owner_references):
        # What a template asks for is read when its pod is created.
        return "no admission read the template when the pod was created, so create the pod anew"
    try:
        refuse_unserved(of_claim(found.metadata.name, found.spec.devices), state.config)
    except BadInput as error:
        return str(error)
    return ""


def _tidy(key: ResourceKey, state: State) -> WriteResourceClaim | None:
    """Return the write that a ResourceClaim needs; None if it is in order or has to wait."""
    found = state.cache.resource_claims.get(key)
    if found is None or found.is_of_scheduler or not _is_touched(found):
        return None
    claim_key = vgpu_claim_of(found)
    if state.cache.is_unreadable(claim_key) or claim_key in state.claims.writing:
        return None
    waits = any(pod.wants_node or pod.is_gated for pod in state.cache.pods_of_resource_claim(key))
    holder = state.cache.claim(claim_key)
    allocation = None if holder is None else holder.status.allocation
    if found.metadata.deletion_timestamp is not None:
        return _of_deleted(found, is_held=allocation is not None, waits=waits)
    if found.status.reserved_for:  # Kubernetes takes pods off that have ended
        return None
    return _of_unreserved(found, allocation, waits=waits)


def _of_deleted(found: ResourceClaim, *, is_held: bool, waits: bool) -> WriteResourceClaim | None:
    """Let a claim go that is being deleted, unless its devices may be in use.

    kube-scheduler binds no pod by a claim that goes away. So the claim of a pod that waits for its
    node may go, and is made again.
    """
    if is_held and (found.status.reserved_for or not waits):
        return None
    return _let_go(found)


def _of_unreserved(
    found: ResourceClaim, allocation: Allocation | None, *, waits: bool
) -> WriteResourceClaim | None:
    """Free a claim that no pod uses and none will, or that shows something else than it should."""
    if found.status.allocation is None:
        return None if allocation is not None or waits else _let_go(found)
    is_right = allocation is not None and shows(found, allocation)
    return None if is_right else _free(found, is_awaited=waits)


def _is_touched(found: ResourceClaim) -> bool:
    """Return True if a ResourceClaim has our finalizer or a device of our driver."""
    has_device = any(each.driver == dra.DRIVER for each in found.results)
    return has_device or FINALIZER_IN_USE in found.metadata.finalizers


def _let_go(found: ResourceClaim) -> WriteResourceClaim | None:
    finalizers = tuple(found.metadata.finalizers)
    return _write(found, "let go", finalizers) if FINALIZER_IN_USE in finalizers else None


def _free(found: ResourceClaim, *, is_awaited: bool) -> WriteResourceClaim:
    """Return the write that deallocates a claim, and drops our finalizer if no pod waits."""
    finalizers = tuple(found.metadata.finalizers)
    is_kept = is_awaited or FINALIZER_IN_USE not in finalizers
    return _write(found, "deallocate", None if is_kept else finalizers)


def _write(
    found: ResourceClaim,
    purpose: Literal["deallocate", "let go"],
    finalizers: tuple[str, ...] | None,
) -> WriteResourceClaim:
    return WriteResourceClaim(
        namespace=found.metadata.namespace or "",
        name=found.metadata.name,
        purpose=purpose,
        version=found.metadata.resource_version,
        claim=vgpu_claim_of(found),
        finalizers=finalizers,
    )
