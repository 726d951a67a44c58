"""ResourceClaims that users have made, and the pods that name them.

Such a ResourceClaim is allocated for one pod at a time: its devices have one limit. Of several pods
that name it the first gets it, and the others wait until that one has ended. Admission has read
what it asks for when the pod was created; its spec cannot change, but it may be recreated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vgpu_api import dra
from vgpu_api.core import ResourceClaim
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_operator.dialects.resource_claims import requests_of, uid_at_admission
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.known import (
    ResourceKey,
    is_for,
    resource_claim_of,
    resource_key,
    served,
)
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.state import State


def refusal_of_named(state: State, pod: GPUPod) -> Refusal | None:
    """Return why a user's ResourceClaim cannot be allocated for a pod now; None if it can."""
    name, found = pod.resource_claim, state.cache.resource_claims.get(resource_claim_of(pod))
    if found is None:
        return Refusal(Reason.CLAIM_MISSING, f"ResourceClaim {name} does not exist")
    if found.metadata.uid != uid_at_admission(pod.pod):
        text = f"ResourceClaim {name} was made anew after the pod; create the pod anew"
        return Refusal(Reason.REQUEST_MISMATCH, text)
    if found.status.allocation is not None:
        return None if is_for(found, pod.uid) else _in_use(found, state.cache.pod(served(found)))
    if found.metadata.deletion_timestamp is not None:
        return Refusal(Reason.CLAIM_IN_USE, f"ResourceClaim {name} is going away")
    first = _first(state, found)
    return _mismatch(pod, found) if first in (None, pod) else _in_use(found, first)


def _in_use(found: ResourceClaim, holder: GPUPod | None) -> Refusal:
    who = "another pod" if holder is None else holder.pod.metadata.name
    text = (
        f"ResourceClaim {found.metadata.name} serves {who}, and one pod at a time; name a "
        "ResourceClaimTemplate, and each pod gets a claim of its own"
    )
    return Refusal(Reason.CLAIM_IN_USE, text)


def requests_for(state: State, pod: GPUPod) -> Mapping[str, str]:
    """Return the request of the pod's ResourceClaim by container."""
    used = requests_of(pod.pod)
    found = state.cache.resource_claims.get(resource_claim_of(pod))
    only = [] if found is None else [each.name for each in found.spec.devices.requests]
    return {name: each or (only[0] if len(only) == 1 else name) for name, each in used.items()}


def concerned(state: State, key: ResourceKey, before: ResourceClaim | None) -> Iterator[GPUPod]:
    """Yield the pods for which a change of a ResourceClaim matters.

    Of one that a user has made, these are the pod that it serves or served, and the first of those
    that wait: there may be thousands behind it, which wait as before.
    """
    now = state.cache.resource_claims.get(key)
    if dra.is_made_name(key.name) or (now is not None and now.is_of_scheduler):
        yield from state.cache.pods_of_resource_claim(key)
        return
    held = (state.cache.pod(served(each)) for each in (before, now) if each is not None)
    first = None if now is None else _first(state, now)
    found = {each.uid: each for each in (*held, first) if each is not None}
    yield from (each for each in found.values() if resource_claim_of(each) == key)


def wake_next(state: State, pod: GPUPod) -> None:
    """Judge the pod that is next in a ResourceClaim, since this pod no longer waits for it."""
    refusal = state.pods.blocked.get(pod.uid)
    if not pod.resource_claim or dra.is_made_name(pod.resource_claim):
        return
    if refusal is not None and refusal.reason is Reason.CLAIM_IN_USE:
        return  # it was not the first
    found = state.cache.resource_claims.get(resource_claim_of(pod))
    first = None if found is None else _first(state, found)
    if first is not None and first.uid in state.pods.blocked:
        state.pods.due[first.uid] = None


def _first(state: State, claim: ResourceClaim) -> GPUPod | None:
    """Return the pod that is served next through a user's ResourceClaim, or None."""
    named = state.cache.pods_of_resource_claim(resource_key(claim))
    may = (each for each in named if _may_be_served(each, claim))
    return min(may, key=_order, default=None)


def _may_be_served(pod: GPUPod, claim: ResourceClaim) -> bool:
    is_live = pod.is_gated or pod.wants_node or pod.is_running
    is_read = pod.is_admitted and not isinstance(pod.demand, BadInput)
    return is_live and is_read and uid_at_admission(pod.pod) == claim.metadata.uid


def _order(pod: GPUPod) -> tuple[bool, str, str]:
    return not pod.is_running, pod.pod.metadata.creation_timestamp or "", pod.uid


def _mismatch(pod: GPUPod, found: ResourceClaim) -> Refusal | None:
    """Return a refusal if the pod's containers and the requests are not one to one."""
    used, there = requests_of(pod.pod), [each.name for each in found.spec.devices.requests]
    named = sorted(each or next(iter(there), "") for each in used.values())
    asking = () if isinstance(pod.demand, BadInput) else pod.demand.containers
    if named == sorted(there) and set(asking) == set(used):
        return None
    text = (
        f"ResourceClaim {pod.resource_claim} has the requests {', '.join(there)}, and the pod was "
        f"admitted with containers {', '.join(asking)} that use {', '.join(named) or 'none'}; "
        "create the pod anew"
    )
    return Refusal(Reason.REQUEST_MISMATCH, text)
