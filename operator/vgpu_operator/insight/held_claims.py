"""Builds the claims that hold what HAMi's pods use until they end.

Such a claim is as the operator's own for a pod: owned by the pod, so that Kubernetes deletes it
with the pod, and allocated, so that quotas, capacity and every view count it. The agent reports its
release once the pod has ended, as for each claim whose containers it has not started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api import names
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import (
    AllocatedDevice,
    Allocation,
    ReservedFor,
    VGPUClaim,
    VGPUClaimSpec,
    VGPUClaimStatus,
    VGPURequest,
)
from vgpu_operator.engine.claims.status import DesiredStatus, claim_for_pod, status_with
from vgpu_operator.insight.hami_records import RecordedPod


def spec_of(pod: RecordedPod) -> VGPUClaimSpec:
    """Return the claim's spec: a request for each container that uses GPUs."""
    return VGPUClaimSpec(
        requests=[
            VGPURequest(
                name=name,
                count=len(devices),
                memory=format_mib(devices[0].memory_mib),
                cores=devices[0].cores,
            )
            for name, devices in pod.containers.items()
        ]
    )


def claim_to_hold(pod: RecordedPod) -> dict[str, Any]:
    """Return the claim to create."""
    claim = claim_for_pod(pod.pod, spec_of(pod))
    claim["metadata"]["labels"] = {names.LABEL_HELD_FOR: names.HAMI}
    return claim


def status_to_hold(
    claim: VGPUClaim,
    pod: RecordedPod,
    *,
    node_uid: str,
    indices: Mapping[str, int],
    allocation_id: str,
    unix: float,
) -> VGPUClaimStatus:
    """Return the status to write over this version of the claim: the devices that the pod uses.

    Args:
        claim: The claim, as created.
        pod: The pod with its devices.
        node_uid: The UID of its node.
        indices: By UUID, the number of each GPU on its node.
        allocation_id: A new UUID.
        unix: The current Unix time.
    """
    allocation = Allocation(
        node_name=pod.pod.spec.node_name,
        node_uid=node_uid,
        id=allocation_id,
        devices=[
            AllocatedDevice(
                request=name,
                name=names.device_object_name(device.uuid),
                uuid=device.uuid,
                index=indices[device.uuid],
                memory=format_mib(device.memory_mib),
                cores=device.cores,
            )
            for name, devices in pod.containers.items()
            for device in devices
        ],
    )
    metadata = pod.pod.metadata
    reserved = ReservedFor(pod_name=metadata.name, pod_uid=metadata.uid)
    desired = DesiredStatus.allocated(allocation, reserved)
    return status_with(claim, claim.spec, desired, unix=unix)
