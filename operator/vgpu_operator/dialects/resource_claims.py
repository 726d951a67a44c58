"""The ResourceClaim through which a pod gets its devices in Claims mode.

Admission moves what the pod asks for into an annotation (`moved.py`). If the pod names a
ResourceClaim of its author's that asks for our devices, admission notes its entry and its UID in
another. If that asks for the class that kube-scheduler allocates, admission notes the entry alone,
and the operator allocates nothing. Otherwise it adds one entry to `spec.resourceClaims`, with a
request for each container that gets devices, and the operator makes that ResourceClaim together
with its allocation.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpu_api import dra
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_RESOURCE_CLAIM, ANNOTATION_SCHEDULER_CLAIM
from vgpu_operator.dialects.containers import each_container


def claim_of_pod(pod: Pod) -> str:
    """Return the name of the ResourceClaim through which the pod is served; empty if none.

    The name of one that Kubernetes makes from a template is known some time after the pod.
    """
    chosen = entry_of(pod)
    if is_of_scheduler(pod):
        made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        given = {entry.name: entry.resource_claim_name for entry in pod.spec.resource_claims}
        return given.get(chosen) or made.get(chosen) or ""
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name
        if entry.name == chosen and dra.is_made_name(name) == (chosen == dra.POD_ENTRY):
            return name
    return ""


def is_of_scheduler(pod: Pod) -> bool:
    """Return True if kube-scheduler allocates the pod's devices, as admission has noted."""
    return bool(scheduler_entry(pod))


def scheduler_entry(pod: Pod) -> str:
    """Return the entry of the pod's `resourceClaims` that kube-scheduler allocates, if any."""
    return pod.metadata.annotations.get(ANNOTATION_SCHEDULER_CLAIM, "")


def entry_of(pod: Pod) -> str:
    """Return the entry of the pod's `resourceClaims` that stands for its devices, if it has any."""
    return scheduler_entry(pod) or _noted(pod)[0] or dra.POD_ENTRY


def uid_at_admission(pod: Pod) -> str:
    """Return the UID of the ResourceClaim that admission has read; empty for one of ours."""
    return _noted(pod)[1]


def note_of(entry: str, uid: str) -> str:
    """Return what admission notes of a ResourceClaim that it has read."""
    return f"{entry}:{uid}"


def requests_of(pod: Pod) -> Mapping[str, str]:
    """Return the request of its ResourceClaim by container; empty if the container names none."""
    entry = entry_of(pod)
    return {
        place.name: used.request
        for place in each_container(pod)
        for used in place.container.resources.claims
        if used.name == entry
    }


def _noted(pod: Pod) -> tuple[str, str]:
    entry, _, uid = pod.metadata.annotations.get(ANNOTATION_RESOURCE_CLAIM, "").partition(":")
    return entry, uid
