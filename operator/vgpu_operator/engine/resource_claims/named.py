"""ResourceClaims that users have made, and the pods that name them.

Such a ResourceClaim is allocated for one pod at a time: its devices have one limit. Of several pods
that name it the first gets it, and the others wait until that one has ended. Admission has read
what it asks for when the pod was created; its spec cannot change, but it may be made anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpu_api import dra
from vgpu_api.core import ResourceClaim
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason
from vgpu_operator.dialects.resource_claims import requests_of, uid_at_admission
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.known import is_for, resource_claim_of
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
    is_allocated = found.status.allocation is not None
    if is_allocated and is_for(found, pod.uid):
        return None
    if found.metadata.deletion_timestamp is not None:
        return Refusal(Reason.CLAIM_IN_USE, f"ResourceClaim {name} is going away")
    first = _first(state, pod)
    if is_allocated or first is not pod:
        who = "another pod" if first is pod else first.pod.metadata.name
        text = (
            f"ResourceClaim {name} serves {who}, and one pod at a time; name a "
            "ResourceClaimTemplate, and each pod gets a claim of its own"
        )
        return Refusal(Reason.CLAIM_IN_USE, text)
    return _mismatch(pod, found)


def requests_for(state: State, pod: GPUPod) -> Mapping[str, str]:
    """Return the request of the pod's ResourceClaim by container."""
    used = requests_of(pod.pod)
    found = state.cache.resource_claims.get(resource_claim_of(pod))
    only = [] if found is None else [each.name for each in found.spec.devices.requests]
    return {name: each or (only[0] if len(only) == 1 else name) for name, each in used.items()}


def wake_sharers(state: State, pod: GPUPod) -> None:
    """Judge the other pods of a ResourceClaim again, since this pod no longer waits for it."""
    if not pod.resource_claim or dra.is_made_name(pod.resource_claim):
        return
    for other in state.cache.pods_of_resource_claim(resource_claim_of(pod)):
        if other.uid in state.pods.blocked:
            state.pods.due[other.uid] = None


def _first(state: State, pod: GPUPod) -> GPUPod:
    """Return the pod that is served next through the ResourceClaim that this pod names."""
    named = state.cache.pods_of_resource_claim(resource_claim_of(pod))
    return min((each for each in named if _may_be_served(each)), key=_order, default=pod)


def _may_be_served(pod: GPUPod) -> bool:
    is_live = pod.is_gated or pod.wants_node or pod.is_running
    return is_live and pod.is_admitted and not isinstance(pod.demand, BadInput)


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
