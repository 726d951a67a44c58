"""Applies events about nodes, devices, quotas and volumes."""

from __future__ import annotations

import logging

from vgpu_api.core import Node
from vgpu_api.names import ALLOCATOR_SCHEDULER, LABEL_ALLOCATOR
from vgpu_api.v1alpha1 import Metadata
from vgpu_api.vendors import kind_of, kinds
from vgpu_operator.engine import events
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.event_handlers.agents import note_devices, review_agent
from vgpu_operator.engine.scheduling.places import unreserve
from vgpu_operator.engine.state import State
from vgpu_operator.ledger.device_facts import cordoned_uuids, unread_words
from vgpu_operator.ledger.device_table import DEVICES_OF_A_NODE
from vgpu_operator.vendors import values_of

TOO_MANY_DEVICES = "TooManyDevices"
"""The reason of the event on a node with more devices than can be used."""
ALLOCATOR_CHANGED = "AllocatorChanged"
"""The reason of the event on a node whose label changed while claims held its devices."""
logger = logging.getLogger(__name__)


def node_observed(event: events.NodeObserved, state: State) -> None:
    """Apply an added or updated node; check its register and claims if they may be affected."""
    node, name = event.node, event.node.metadata.name
    known = state.cache.nodes.get(name)
    state.cache.nodes[name] = node
    state.ledger.apply_node(node)
    if known is None or _registers(known) != _registers(node):
        state.registers[name] = None
    if known is None or _readiness(known) != _readiness(node):
        _look_at_claims_on(state, name)
    review_agent(name, state)
    if known is not None and _is_of_scheduler(known) != _is_of_scheduler(node):
        _tell_of_allocator(state, node)


def _is_of_scheduler(node: Node) -> bool:
    return node.metadata.labels.get(LABEL_ALLOCATOR) == ALLOCATOR_SCHEDULER


def _tell_of_allocator(state: State, node: Node) -> None:
    """Record an event if claims of the former allocator are on a node whose label has changed."""
    name, is_mirror = node.metadata.name, not _is_of_scheduler(node)
    claims = (state.cache.claim(key) for key in state.cache.claims_on(name))
    held = [each for each in claims if each is not None and each.is_mirror == is_mirror]
    if not held:
        return
    who = "kube-scheduler" if is_mirror else "the operator"
    then = (
        "the operator allocates beside them"
        if is_mirror
        else "until they are gone, nobody allocates devices of this node"
    )
    note = f"claims that {who} allocated keep their devices ({len(held)}); {then}"
    state.outbox.append(node_event(node, ALLOCATOR_CHANGED, note))


def node_deleted(event: events.NodeDeleted, state: State) -> None:
    """Forget a node, and the tentative places on it."""
    number = state.ledger.columns.node_id(event.name)
    if number is not None:
        for place in list(state.reservations.tentative.get(number, {}).values()):
            unreserve(state, place)
    state.cache.nodes.pop(event.name, None)
    state.ledger.remove_node(event.name)
    review_agent(event.name, state)
    _look_at_claims_on(state, event.name)


def node_unreadable(event: events.NodeUnreadable, state: State) -> None:
    """Record that an invalid node exists, so that its claims keep their devices."""
    if event.name not in state.cache.nodes:
        metadata = Metadata(name=event.name, uid=event.uid)
        state.cache.nodes[event.name] = Node(metadata=metadata)


def device_observed(event: events.DeviceObserved, state: State) -> None:
    """Apply an added or updated device, unless its node already has too many."""
    device = event.device
    if state.ledger.is_one_too_many(device):
        _report_crowded(state, device.spec.node_name)
        return
    state.ledger.apply_device(device)
    state.devices[device.spec.node_name] = None
    if kind_of(device.status.vendor) is not None or not device.status.vendor:
        state.registers[device.spec.node_name] = None
    state.links[device.spec.node_name] = None
    note_devices(device.spec.node_name, state)
    _look_at_claims_on(state, device.spec.node_name, idle_only=True)


def _report_crowded(state: State, name: str) -> None:
    """Report once that a node has too many devices, because an agent could create thousands."""
    if name in state.crowded:
        return
    state.crowded.add(name)
    note = f"only {DEVICES_OF_A_NODE} GPUDevices of a node are used, and it has more"
    logger.warning("node %s: %s", name, note)
    node = state.cache.nodes.get(name)
    if node is not None:
        state.outbox.append(node_event(node, TOO_MANY_DEVICES, note))


def device_deleted(event: events.DeviceDeleted, state: State) -> None:
    """Forget a device, and everything that was written or reported about it."""
    node = state.ledger.node_of(event.name)
    state.ledger.remove_device(event.name)
    if node is not None:
        state.crowded.discard(node)
    state.device_views.pop(event.name, None)
    state.device_writes.pop(event.name, None)
    state.device_looks.zeros.discard(event.name)
    if state.register_writes.pop(event.name, None) is not None and node is not None:
        state.registers[node] = None
    state.out_of_service.pop(event.name, None)
    if node is not None:
        note_devices(node, state)
        _look_at_claims_on(state, node, idle_only=True)


def quota_observed(event: events.QuotaObserved, state: State) -> None:
    """Apply an added or updated quota."""
    state.ledger.apply_quota(event.quota)


def quota_deleted(event: events.QuotaDeleted, state: State) -> None:
    """Forget a quota."""
    state.ledger.remove_quota(event.namespace, event.name)


# Volumes, in Gate mode.


def storage_observed(event: events.StorageObserved, state: State) -> None:
    """Apply an added or updated PersistentVolumeClaim, volume, StorageClass or CSINode."""
    state.ledger.filters.volumes.observe(event.obj)


def storage_deleted(event: events.StorageDeleted, state: State) -> None:
    """Forget such an object."""
    state.ledger.filters.volumes.remove(event.kind, event.namespace, event.name)


def storage_unreadable(event: events.StorageUnreadable, state: State) -> None:
    """Record why such an object is invalid; pods that depend on it are refused with this reason."""
    state.ledger.filters.volumes.unreadable(event.kind, event.namespace, event.name, event.why)


def _look_at_claims_on(state: State, node: str, *, idle_only: bool = False) -> None:
    for key in state.cache.claims_on(node):
        claim = state.cache.claim(key)
        if not idle_only or (claim is not None and claim.spec.binding_mode == "Immediate"):
            state.claims.look_at(key)


def _registers(node: Node) -> list[object]:
    """Return the values of a node that affect registered devices and reports about them."""
    said: list[object] = [unread_words(node), cordoned_uuids(node)]
    return said + [values_of(kind, node) for kind in kinds()]


def _readiness(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.is_ready, node.spec.unschedulable
