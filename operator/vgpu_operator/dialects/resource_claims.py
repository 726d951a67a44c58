"""The ResourceClaim through which a pod gets its devices in mode Claims.

Admission moves what the pod asks for into an annotation (`moved.py`) and adds one entry to
`spec.resourceClaims`, with a request for each container that gets devices. The ResourceClaim itself
is made by the operator, together with its allocation.
"""

from __future__ import annotations

from vgpu_api import dra
from vgpu_api.core import Pod


def made_claim(pod: Pod) -> str:
    """Return the name of the ResourceClaim that the operator makes for the pod; empty if none."""
    for entry in pod.spec.resource_claims:
        if entry.name == dra.POD_ENTRY and dra.is_made_name(entry.resource_claim_name):
            return entry.resource_claim_name
    return ""
