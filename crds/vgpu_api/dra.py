"""The names by which the operator, the agent and Kubernetes speak of ResourceClaims.

In mode `Claims` the operator allocates a ResourceClaim for each pod, and the kubelet has the agent
prepare it; on nodes that are labelled so, kube-scheduler allocates it. The VGPUClaim decides what a
container gets; the ResourceClaim carries the names below.
"""

from __future__ import annotations

import hashlib
import re
import uuid

from vgpu_api.names import GROUP

DRIVER = GROUP
"""The DRA driver: in results of ResourceClaims, in ResourceSlices, and at the kubelet."""
CLASS = GROUP
"""The DeviceClass of the ResourceClaims that the operator makes."""
HAMI_CLASS = "hami-core-gpu.project-hami.io"
"""The DeviceClass and the attribute domain of HAMi's DRA driver, whose users' claims are served."""
CLASSES = frozenset({CLASS, HAMI_CLASS})
"""The classes of which the operator allocates claims."""
SCHEDULER_CLASS = f"scheduler.{GROUP}"
"""The DeviceClass of devices that kube-scheduler allocates, on nodes that are labelled so."""
ALLOCATOR = "allocator"
"""The attribute of such a device in its ResourceSlice. The selectors of both classes look at it, so
kube-scheduler cannot allocate a ResourceClaim that the operator has created and not allocated yet.
"""
MAX_RESULTS = 32
"""The most devices that the API server accepts in one claim."""
POD_ENTRY = "vgpu"
"""The name of the entry of `spec.resourceClaims` that admission adds to a pod."""
_MADE = re.compile(r"vgpu-[0-9a-f]{12}")
CDI_KIND = f"{GROUP}/share"
"""The CDI kind of the devices of a prepared ResourceClaim."""
TAINT = f"{GROUP}/ledger"
"""The key of the taint on all devices in ResourceSlices of nodes where the operator allocates."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_KEPT = 54  # of 63 characters, which leaves room for a hyphen and 8 digits


def device_name(device_uuid: str) -> str:
    """Return the name of a device in ResourceSlices and ResourceClaims: a DNS label.

    It follows from the UUID, because a device's number may change when the node is started again.
    """
    plain = device_uuid.lower()
    if _LABEL.fullmatch(plain):
        return plain
    kept = re.sub(r"[^a-z0-9]+", "-", plain)[:_KEPT].strip("-") or "device"
    return f"{kept}-{hashlib.sha256(device_uuid.encode()).hexdigest()[:8]}"


def share_id(allocation_id: str, request: str) -> str:
    """Return the shareID of the results of one request of a ResourceClaim.

    It is also the name of the CDI device that the kubelet passes to the container's runtime. A
    request for several devices has one result for each, with different devices and the same
    shareID: Kubernetes identifies a share by its device and its shareID together.

    Args:
        allocation_id: The id of the VGPUClaim's allocation, a UUID.
        request: The name of the request, which is the container's.
    """
    return str(uuid.uuid5(uuid.UUID(allocation_id), request))


def made_claim_name(token: str) -> str:
    """Return the name of the ResourceClaim that the operator makes for a pod.

    Args:
        token: 12 random hexadecimal digits, because a pod has no UID yet when it is admitted.
    """
    return f"vgpu-{token}"


def is_made_name(name: str) -> bool:
    """Return True if `made_claim_name` can have made this name of a ResourceClaim."""
    return _MADE.fullmatch(name) is not None
