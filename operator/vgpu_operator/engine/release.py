"""When the cards of a claim are free again. Pure.

Capacity is free exactly when `status.allocation` is gone, and that goes only when nothing can
use the cards any more: the agent says so of this very allocation, or the pod never had a node,
or the node is gone. Source: design, Life of a claim.
"""

from __future__ import annotations

from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.status import was_released


def release_reason(claim: VGPUClaim, books: Books) -> str | None:
    """Why the claim's allocation must go now; None while it must stay."""
    allocation = claim.status.allocation
    if allocation is None:
        return None
    if was_released(claim):
        return "its pod has ended"
    lost = node_lost(allocation, books)
    if lost is not None:
        return lost
    reserved = claim.status.reserved_for
    if reserved is None or not reserved.pod_uid:
        deleted = claim.metadata.deletion_timestamp is not None
        return "it was deleted before a pod used it" if deleted else None
    if claim.spec.binding_mode == "Immediate" and claim.metadata.deletion_timestamp is None:
        return None  # only its pod's name goes
    return _never_bound(reserved.pod_uid, books)


def node_lost(allocation: Allocation, books: Books) -> str | None:
    """In which way the node of an allocation is gone; None while it is there."""
    node = books.nodes.get(allocation.node_name)
    if node is None:
        return f"node {allocation.node_name} is gone"
    if allocation.node_uid not in ("", node.metadata.uid):
        return f"node {allocation.node_name} is gone; another was registered under its name"
    return None


def pod_to_forget(claim: VGPUClaim, books: Books) -> str | None:
    """Why an Immediate claim is free for another pod, its cards kept; None while it is not."""
    reserved = claim.status.reserved_for
    if claim.status.allocation is None or reserved is None or not reserved.pod_uid:
        return None
    immediate = claim.spec.binding_mode == "Immediate"
    return _never_bound(reserved.pod_uid, books) if immediate else None


def _never_bound(uid: str, books: Books) -> str | None:
    """Why a pod cannot have used its cards."""
    consumer = books.consumer(uid)
    if consumer is None:
        return "its pod went before it had a node" if books.was_never_bound(uid) else None
    if consumer.pod.is_terminal and not consumer.pod.is_bound:
        return "its pod ended before it had a node"
    return None


def is_stranded(claim: VGPUClaim) -> bool:
    """Whether only our finalizer keeps a deleted claim, which holds nothing."""
    return (
        claim.metadata.deletion_timestamp is not None
        and claim.status.allocation is None
        and FINALIZER_IN_USE in claim.metadata.finalizers
    )
