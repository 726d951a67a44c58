"""Finds the claim that is reserved for exactly this pod on exactly this node.

The second half of a container's identity: `identity.py` finds the pod of the slots, this module the
claim of the pod. A claim that names the pod but has another UID belongs to another pod.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_api import names
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.identity import Consumer


def claim_reserved_for(
    pod: Pod, claims: Iterable[VGPUClaim], *, node: str
) -> tuple[VGPUClaim, Allocation]:
    """Return the pod's claim and its allocation.

    Args:
        pod: The pod, as our watch shows it.
        claims: The claims known on this node.
        node: The node's name.

    Raises:
        Refused: There is no such claim, or more than one; or it is reserved for another pod of the
            same name, is not allocated here, or has values of a later version.
    """
    claim = _only_claim(pod, claims)
    allocation = claim.status.allocation
    if allocation is None or allocation.node_name != node:
        raise Refused(Why.NO_CLAIM, f"claim {claim.metadata.name} is not allocated on this node")
    if not allocation.id:  # its release could never be reported
        raise Refused(Why.NO_CLAIM, f"the allocation of claim {claim.metadata.name} has no id")
    if claim.unknown_values:
        # It is unknown what the container should get; running containers keep what they have.
        raise Refused(
            Why.LATER_VERSION,
            f"claim {claim.metadata.name} has values that this version of the agent does "
            f"not have: {', '.join(claim.unknown_values)}",
        )
    return claim, allocation


def refuse_another_plugins(consumer: Consumer, claims: Iterable[VGPUClaim], *, node: str) -> None:
    """Refuse containers that another device plugin gave its devices, unless their pod is held.

    A pod that ran when the node was taken over from HAMi keeps what HAMi's device plugin gave it,
    also when a container starts again: the kubelet repeats that plugin's answer. The claim that
    holds it was made for a pod that our admission has not marked, and the operator gives such a pod
    nothing.

    Raises:
        Refused: The pod was not taken over.
    """
    if not consumer.of_another:
        return
    pod = consumer.pod
    is_held = any(
        claim.held_for
        and claim.metadata.namespace == pod.metadata.namespace
        and claim.status.reserved_for is not None
        and claim.status.reserved_for.pod_uid == pod.metadata.uid
        and claim.status.allocation is not None
        and claim.status.allocation.node_name == node
        for claim in claims
    )
    if not is_held or pod.metadata.labels.get(names.LABEL_ADMITTED) == names.ADMITTED:
        raise Refused(
            Why.UNKNOWN_ALLOCATION,
            f"container {consumer.of_another[0]} was allocated by another device plugin",
        )


def _only_claim(pod: Pod, claims: Iterable[VGPUClaim]) -> VGPUClaim:
    """Return the only claim that is reserved for this pod."""
    metadata = pod.metadata
    named = [
        (claim, claim.status.reserved_for.pod_uid)
        for claim in claims
        if claim.metadata.namespace == metadata.namespace
        and claim.status.reserved_for is not None
        and claim.status.reserved_for.pod_name == metadata.name
    ]
    # A pod that was recreated under the same name is another consumer: only the UID counts.
    mine = [claim for claim, pod_uid in named if pod_uid == metadata.uid]
    if named and not mine:
        claim, pod_uid = named[0]
        raise Refused(
            Why.WRONG_POD,
            f"claim {claim.metadata.name} is reserved for another pod named {metadata.name} "
            f"(UID {pod_uid}), not for this one (UID {metadata.uid})",
        )
    if not mine:
        raise Refused(
            Why.NO_CLAIM,
            f"no claim on this node is reserved for pod {metadata.namespace}/{metadata.name}",
        )
    if len(mine) > 1:
        names = ", ".join(sorted(claim.metadata.name for claim in mine))
        raise Refused(Why.RECORDS_DISAGREE, f"several claims are reserved for the pod: {names}")
    return mine[0]
