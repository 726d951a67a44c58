"""Decides which grants the containers of a pod start with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vgpu_api import init_part
from vgpu_api.effective import effective_use
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.discovery.inventory import DeviceCapacity, allocatable
from vgpu_nodeagent.enforcement.backends import Backends
from vgpu_nodeagent.enforcement.grants import ContainerGrant, container_grant
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.identity import Consumer
from vgpu_nodeagent.lifecycle.decisions.init_starts import Fill
from vgpu_nodeagent.lifecycle.decisions.resize import may_start_with
from vgpu_nodeagent.lifecycle.effects import Commit, Effect, OpenPage
from vgpu_nodeagent.state import claim_instances, slots
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotState


@dataclass(frozen=True, slots=True)
class Start:
    """A start that is not refused.

    Attributes:
        consumer: The pod and its slot allocations.
        claim: Its claim.
        grants: The grant of each container, by slot allocation.
        effects: The effects that put the grants in place.
    """

    consumer: Consumer
    claim: VGPUClaim
    grants: Mapping[str, ContainerGrant]
    effects: tuple[Effect, ...]

    @property
    def has_devices(self) -> bool:
        """True if a container gets a device."""
        return any(grant.limits for grant in self.grants.values())


def decide_start(
    consumer: Consumer,
    claim: VGPUClaim,
    fill: Fill,
    *,
    state: SlotState,
    capacities: Mapping[str, DeviceCapacity],
    backends: Backends,
    resource: str,
) -> Start:
    """Decide what the pod's containers are granted.

    Args:
        consumer: The pod and its slot allocations.
        claim: The claim that is reserved for it.
        fill: The slot allocations to fill, and with which part of the claim's allocation.
        state: What is allocated on the node.
        capacities: The devices of the node.
        backends: Shape the grants for what enforces them.
        resource: The resource by which a container requests a slot.

    Raises:
        Refused: The containers must not start.
    """
    if not fill.bindings:
        raise Refused(
            Why.INIT_ENDED,
            "the pod's init containers had ended and gave back what they had; "
            "they start again once there is room for them",
        )
    grants = {
        binding.slot_allocation: backends.shape(
            container_grant(
                claim,
                may_start_with(claim, fill.allocation),
                pod=consumer.pod,
                container=binding.container,
                slot_resource=resource,
                capacities=capacities,
                instances=claim_instances.made(state.claim_instances),
            )
        )
        for binding in fill.bindings
    }
    granted = slots.grant(
        state,
        claim_allocation=_claim_allocation(consumer, claim, fill.allocation, state),
        bindings=[
            replace(b, interposed=grants[b.slot_allocation].interposed) for b in fill.bindings
        ],
        allocatable=allocatable(capacities),
    )
    opened = (OpenPage(name, grant) for name, grant in grants.items())
    return Start(consumer, claim, grants, (Commit(granted), *opened))


def _claim_allocation(
    consumer: Consumer, claim: VGPUClaim, allocation: Allocation, state: SlotState
) -> ClaimAllocation:
    pod = consumer.pod.metadata
    former = state.claim_allocations.get(claim.metadata.uid)
    has_init = bool(init_part.init_requests(claim.spec))
    ended = has_init and not init_part.has_init_part(claim.spec, allocation)
    return ClaimAllocation(
        claim_uid=claim.metadata.uid,
        namespace=claim.metadata.namespace or "",
        claim_name=claim.metadata.name,
        allocation_id=allocation.id,
        pod_uid=pod.uid,
        pod_name=pod.name,
        use=dict(effective_use(claim.spec, allocation.devices)),
        init_ended=init_part.init_round(allocation) if ended else None,
        init_ids=former.init_ids if former is not None and former.pod_uid == pod.uid else (),
        resource_claim_uid=allocation.resource_claim_uid,
    )
