"""Applies events to the state. It decides nothing, but records what needs a decision.

An event may come late, twice or out of order, and to a replica that does not lead. Cache and ledger
keep the newest version from any source, and the recorded work waits until the replica leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vgpu_operator.engine import events
from vgpu_operator.engine.event_handlers import (
    claims,
    nodes,
    outcomes,
    pod_groups,
    pods,
    resource_claims,
)
from vgpu_operator.engine.state import State

HANDLERS: Mapping[type[Any], Callable[[Any, State], None]] = {
    events.PodObserved: pods.pod_observed,
    events.PodDeleted: pods.pod_deleted,
    events.PodsListed: pods.pods_listed,
    events.ClaimObserved: claims.claim_observed,
    events.ClaimDeleted: claims.claim_deleted,
    events.ClaimUnreadable: claims.claim_unreadable,
    events.NodeObserved: nodes.node_observed,
    events.NodeDeleted: nodes.node_deleted,
    events.NodeUnreadable: nodes.node_unreadable,
    events.DeviceObserved: nodes.device_observed,
    events.DeviceDeleted: nodes.device_deleted,
    events.QuotaObserved: nodes.quota_observed,
    events.QuotaDeleted: nodes.quota_deleted,
    events.PodGroupObserved: pod_groups.pod_group_observed,
    events.PodGroupDeleted: pod_groups.pod_group_deleted,
    events.PodGroupsListed: pod_groups.pod_groups_listed,
    events.PodGroupsNotServed: pod_groups.pod_groups_not_served,
    events.BudgetObserved: pods.budget_observed,
    events.BudgetDeleted: pods.budget_deleted,
    events.BudgetsListed: pods.budgets_listed,
    events.StorageObserved: nodes.storage_observed,
    events.StorageDeleted: nodes.storage_deleted,
    events.StorageUnreadable: nodes.storage_unreadable,
    events.ClaimWritten: outcomes.claim_written,
    events.ClaimDeletionEnded: outcomes.claim_deletion_ended,
    events.DeviceWritten: outcomes.device_written,
    events.PodRead: outcomes.pod_read,
    events.RequeueEnded: outcomes.requeue_ended,
    events.GateEnded: outcomes.gate_ended,
    events.ResourceClaimObserved: resource_claims.resource_claim_observed,
    events.ResourceClaimDeleted: resource_claims.resource_claim_deleted,
    events.ResourceClaimWritten: resource_claims.resource_claim_written,
    events.BindingEnded: outcomes.binding_ended,
    events.EvictionEnded: outcomes.eviction_ended,
}
"""The handler for each type of event."""


def apply(event: events.Event, state: State) -> None:
    """Apply an event to the state."""
    HANDLERS[type(event)](event, state)
