"""Pure rules that decide when a claim's devices are released and when a claim is deleted.

Capacity is free exactly when `status.allocation` is gone. It is removed only when nothing can use
the devices any more: the agent has reported that for this very allocation, the pod never had a
node, or both the node and its pod are gone.
"""

from __future__ import annotations

from datetime import datetime

from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.init_part import has_init_part, init_part_ended
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_api.vendors import kind_of
from vgpu_operator.engine.cache import Cache, key_of
from vgpu_operator.engine.claims.status import RELEASED
from vgpu_operator.ledger import Ledger
from vgpu_operator.ledger.device_facts import is_healthy

DEVICES_BACK_S = 60.0
"""Seconds that a node has to publish its devices after it was registered again."""
REFIT_S = 1.0
"""The interval between attempts while devices are not published yet or there is no capacity."""
UNUSABLE_S = 300.0
"""Seconds for which an Immediate claim keeps devices that no pod could use."""


def was_released(claim: VGPUClaim) -> bool:
    """Return True if the agent has reported that *this* allocation is no longer in use."""
    released, allocation = claim.status.released, claim.status.allocation
    return (
        released is not None
        and allocation is not None
        and bool(allocation.id)
        and released.allocation_id == allocation.id
    )


def release_reason(claim: VGPUClaim, cache: Cache) -> str | None:
    """Return why the claim's allocation must be released now, or None if it must stay."""
    allocation = claim.status.allocation
    if allocation is None:
        return None
    if was_released(claim) or _ended_without_agent(claim, cache):
        return "its pod has ended"
    lost = node_lost(allocation, cache)
    if lost is not None and not has_live_pod(claim, cache):
        return lost
    reserved = claim.status.reserved_for
    if reserved is None or not reserved.pod_uid:
        deleted = claim.metadata.deletion_timestamp is not None
        return "it was deleted before a pod used it" if deleted else None
    if claim.spec.binding_mode == "Immediate" and claim.metadata.deletion_timestamp is None:
        return None  # only the pod's name is removed, by `keep_for_next_pod`
    return _never_there(reserved.pod_uid, allocation, cache)


def _ended_without_agent(claim: VGPUClaim, cache: Cache) -> bool:
    """Return True if the devices need no agent's report and their pod has ended or is gone.

    This is for devices of other vendors' plugins: the kubelet keeps a pod until its containers have
    ended, and then takes their devices back. A claim that also requests an NVIDIA device waits for
    the agent.
    """
    reserved = claim.status.reserved_for
    if reserved is None or any(kind_of(each.vendor) is None for each in claim.spec.requests):
        return False
    pod = cache.pod(reserved.pod_uid)
    if pod is not None:
        return pod.pod.is_terminal and pod.pod.is_bound
    if cache.was_never_bound(reserved.pod_uid):
        return False
    # If the watch missed the end of the pod, the claim shows it: Kubernetes deletes a pod's own
    # claim once the pod is gone.
    is_collected = claim.metadata.deletion_timestamp is not None
    return cache.is_deleted(reserved.pod_uid) or is_collected


def has_live_pod(claim: VGPUClaim, cache: Cache) -> bool:
    """Return True while the pod of an allocated claim is bound to its node and has not ended.

    The Node object does not matter: kubelet, autoscaler and Cluster API delete Nodes and register
    them again while their pods keep running.
    """
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    known = None if reserved is None else cache.pod(reserved.pod_uid)
    if allocation is None or known is None or known.pod.is_terminal:
        return False
    return known.pod.spec.node_name == allocation.node_name


def node_lost(allocation: Allocation, cache: Cache) -> str | None:
    """Return how the allocation's node was lost, or None if the node is still there."""
    if cache.is_there(allocation):
        return None
    if allocation.node_name in cache.nodes:
        return f"node {allocation.node_name} is gone; another was registered under its name"
    return f"node {allocation.node_name} is gone"


def pod_to_forget(claim: VGPUClaim, cache: Cache) -> str | None:
    """Return why the pod of an Immediate claim will never use it, or None if it may.

    The claim keeps its devices for another pod.
    """
    reserved = claim.status.reserved_for
    if claim.status.allocation is None or reserved is None or not reserved.pod_uid:
        return None
    if claim.spec.binding_mode != "Immediate":
        return None
    return _never_there(reserved.pod_uid, claim.status.allocation, cache)


def _never_there(uid: str, allocation: Allocation, cache: Cache) -> str | None:
    """Return why a pod cannot have used its devices, or None if it may have."""
    known = cache.pod(uid)
    if known is None:
        return "its pod went before it had a node" if cache.was_never_bound(uid) else None
    if known.pod.is_bound:  # by any scheduler or user; the node of a pod never changes
        node = known.pod.spec.node_name
        return None if node == allocation.node_name else f"its pod was bound to node {node}"
    if known.pod.is_terminal:
        return "its pod ended before it had a node"
    # The API server refuses to bind a pod that is being deleted, even if a finalizer keeps the pod.
    is_going = known.pod.metadata.deletion_timestamp is not None
    return "its pod was deleted before it had a node" if is_going else None


def is_stranded(claim: VGPUClaim) -> bool:
    """Return True if the claim is being deleted, holds nothing, and still has our finalizer."""
    return (
        claim.metadata.deletion_timestamp is not None
        and claim.status.allocation is None
        and FINALIZER_IN_USE in claim.metadata.finalizers
    )


def is_idle(claim: VGPUClaim) -> bool:
    """Return True for an Immediate claim that has devices but no pod."""
    reserved = claim.status.reserved_for
    return (
        claim.spec.binding_mode == "Immediate"
        and claim.status.allocation is not None
        and (reserved is None or not reserved.pod_uid)
    )


def why_unusable(allocation: Allocation, cache: Cache, ledger: Ledger) -> str | None:
    """Return why no pod could use an allocation now, or None if one could.

    A device that is only cordoned still serves the claim that holds it.
    """
    name = allocation.node_name
    node = cache.nodes.get(name)
    if node is None or not node.is_ready or node.spec.unschedulable:
        return f"node {name} takes no pods"
    duplicates = ledger.duplicates()
    sound = {
        device.status.uuid
        for device in ledger.devices(name)
        if is_healthy(device) and device.metadata.name not in duplicates
    }
    for device in allocation.devices:
        if device.uuid not in sound:
            return f"GPU {device.uuid} on {name} is gone or not healthy"
    return None


def init_devices_are_free(claim: VGPUClaim) -> bool:
    """Return True if the init containers have ended and their devices can be released.

    MIG instances and numbered cores are kept while the pod lives. If they were released, another
    claim could take their places, and a rerun could not get the same ones again.
    """
    allocation = claim.status.allocation
    if allocation is None or any(each.mig or each.core_ids for each in allocation.devices):
        return False
    return has_init_part(claim.spec, allocation) and init_part_ended(claim)


def unused_since(claim: VGPUClaim) -> float | None:
    """Return the Unix time at which the claim released its devices; None if it never had any.

    Also return None while it has devices. The condition `Allocated` keeps its transition time while
    it stays False, even if pods are refused in between, so a new leader gets the same answer.
    """
    status = claim.status
    was_used = status.state == RELEASED or status.released is not None
    allocated = find(status.conditions, ALLOCATED)
    if status.allocation is not None or not was_used or allocated is None:
        return None
    try:
        return datetime.fromisoformat(allocated.last_transition_time).timestamp()
    except ValueError:
        return None


def expires_at(claim: VGPUClaim, cache: Cache) -> float | None:
    """Return the Unix time at which `ttlSecondsAfterUnused` deletes a user's claim, or None."""
    ttl_s, since = claim.spec.ttl_seconds_after_unused, unused_since(claim)
    if ttl_s is None or since is None or claim.metadata.deletion_timestamp is not None:
        return None
    key = key_of(claim)
    desired = any(not pod.pod.is_terminal for pod in cache.pods_of(key))
    made_for_a_pod = any(owner.kind == "Pod" for owner in claim.metadata.owner_references)
    if desired or made_for_a_pod or cache.is_template(key):
        return None
    return since + ttl_s
