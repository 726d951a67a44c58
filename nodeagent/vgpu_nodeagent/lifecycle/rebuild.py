"""Rebuilds the slot state from other records when the agent's checkpoint is lost or damaged.

The kubelet's checkpoint names every slot allocation with its pod UID and container; the names of
shares follow from their claims; the claims have the amounts of their pods; a page that still grants
has what its processes may use, even if its claim is gone. Nothing is guessed: a slot allocation
that no record binds stays unbound until PreStart finds its claim, and whatever a record grants
counts in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from vgpu_api.core.pod import Pod
from vgpu_api.effective import Use, effective_use
from vgpu_api.init_part import init_requests, init_round, without_init_part
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.state import claim_instances
from vgpu_nodeagent.state.cdi_device import is_share, share_name
from vgpu_nodeagent.state.claim_instances import ClaimInstance, ClaimInstances
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState, slot_order


def rebuild(
    *,
    entries: Iterable[KubeletEntry],
    claims: Iterable[VGPUClaim],
    pages: Mapping[str, PageContent | None],
    capacities: Mapping[str, DeviceCapacity],
    now: float,
) -> SlotState:
    """Return the state that the records show.

    Args:
        entries: The entries for our resource and those of shares (`share_entries`).
        claims: The claims allocated on this node.
        pages: The content of every page on disk by slot allocation; None for a damaged page.
        capacities: The devices of this node, for pages without a limit.
        now: Seconds since the epoch.
    """
    by_pod = _by_pod(claims)
    slot_allocations: dict[str, SlotAllocation] = {}
    claim_allocations: dict[str, ClaimAllocation] = {}
    ended: set[str] = set()  # claims whose init containers' pages are closed
    for entry in entries:
        if not entry.slot_allocation:
            continue
        slot_ids = tuple(sorted(entry.slot_ids, key=slot_order))
        slot_allocation = SlotAllocation(entry.slot_allocation, slot_ids, now)
        page = pages.get(entry.slot_allocation)
        claim = by_pod.get(entry.pod_uid)
        has_ended = _is_ended_init(entry, claim, page)
        if page is None or page.state is PageState.GRANT or has_ended:
            claim_allocation = _claim_allocation(
                entry.pod_uid, claim, entry.slot_allocation, page, capacities
            )
            if claim_allocation is not None:
                if has_ended or claim_allocation.claim_uid in ended:
                    claim_allocation = _without_init(claim_allocation, claim)
                    ended.add(claim_allocation.claim_uid)
                claim_allocations[claim_allocation.claim_uid] = claim_allocation
                slot_allocation = SlotAllocation(
                    entry.slot_allocation,
                    slot_ids,
                    now,
                    entry.pod_uid,
                    entry.container,
                    claim_allocation.claim_uid,
                )
        slot_allocations[slot_allocation.name] = slot_allocation
    for name, page in _granting(pages):
        if name not in slot_allocations:
            # The kubelet has forgotten it, but its processes may still be ending.
            account = f"page:{name}"
            slot_ids = () if is_share(name) else (name.rpartition("-")[0],)
            slot_allocations[name] = SlotAllocation(name, slot_ids, now, account, "", account)
            claim_allocations[account] = _of_page(account, account, page, capacities)
    return SlotState(slot_allocations, claim_allocations)


def share_entries(
    claims: Iterable[VGPUClaim], pods: Iterable[Pod], pages: Mapping[str, PageContent | None]
) -> Iterator[KubeletEntry]:
    """Yield an entry for each share that was opened, as if the kubelet's checkpoint had it.

    Args:
        claims: The claims allocated on this node.
        pods: The pods of this node.
        pages: The content of every page on disk; None for a damaged page.
    """
    by_uid = {pod.metadata.uid: pod for pod in pods}
    for claim in claims:
        allocation, reserved = claim.status.allocation, claim.status.reserved_for
        if allocation is None or reserved is None or not allocation.resource_claim_uid:
            continue
        pod = by_uid.get(reserved.pod_uid)
        for request in claim.spec.requests:
            # A request without a name is the only one, and only its pod knows the container.
            container = request.name or _first_user(pod)
            name = share_name(allocation.id, container)
            if name not in pages:
                continue
            page = pages[name]
            if page is None or page.state is not PageState.DENY:
                yield KubeletEntry(reserved.pod_uid, container, "", frozenset(), name)


def _first_user(pod: Pod | None) -> str:
    containers = () if pod is None else (*pod.spec.containers, *pod.spec.init_containers)
    return next((each.name for each in containers if each.resources.claims), "")


def _granting(pages: Mapping[str, PageContent | None]) -> Iterator[tuple[str, PageContent]]:
    for name, page in pages.items():
        if page is not None and page.state is PageState.GRANT:
            yield name, page


def _by_pod(claims: Iterable[VGPUClaim]) -> Mapping[str, VGPUClaim]:
    """Return the allocated claims by the UID of the pod that they are reserved for."""
    return {
        claim.status.reserved_for.pod_uid: claim
        for claim in claims
        if claim.status.reserved_for is not None and claim.status.allocation is not None
    }


def _claim_allocation(
    pod_uid: str,
    claim: VGPUClaim | None,
    slot_allocation: str,
    page: PageContent | None,
    capacities: Mapping[str, DeviceCapacity],
) -> ClaimAllocation | None:
    if claim is not None and claim.status.allocation is not None:
        reserved = claim.status.reserved_for
        return ClaimAllocation(
            claim_uid=claim.metadata.uid,
            namespace=claim.metadata.namespace or "",
            claim_name=claim.metadata.name,
            allocation_id=claim.status.allocation.id,
            pod_uid=pod_uid,
            pod_name=reserved.pod_name if reserved is not None else "",
            use=effective_use(claim.spec, claim.status.allocation.devices),
            resource_claim_uid=claim.status.allocation.resource_claim_uid,
        )
    return None if page is None else _of_page(f"page:{slot_allocation}", pod_uid, page, capacities)


def _is_ended_init(entry: KubeletEntry, claim: VGPUClaim | None, page: PageContent | None) -> bool:
    """True if the container is an init container with a closed page: it has ended."""
    if claim is None or page is None or page.state is not PageState.CLOSED:
        return False
    init = init_requests(claim.spec)
    return entry.container in init or init == {""}


def _without_init(claim_allocation: ClaimAllocation, claim: VGPUClaim | None) -> ClaimAllocation:
    if claim is None or claim.status.allocation is None:
        return claim_allocation
    allocation = claim.status.allocation
    rest = without_init_part(claim.spec, allocation)
    use = effective_use(claim.spec, rest.devices)
    return replace(claim_allocation, use=use, init_ended=init_round(allocation))


def _of_page(
    account: str, pod_uid: str, page: PageContent, capacities: Mapping[str, DeviceCapacity]
) -> ClaimAllocation:
    use: dict[str, Use] = {}
    for limit in page.devices:
        known = capacities.get(limit.uuid)
        whole = known.capacity.memory_mib if known is not None else 0
        mib = whole if limit.memory_bytes == UNLIMITED else limit.memory_bytes // MIB
        use[limit.uuid] = use.get(limit.uuid, Use()) + Use(mib, limit.cores, 1)
    return ClaimAllocation(account, "", "", "", pod_uid, "", use)


def recovered(
    state: SlotState,
    pages: Mapping[str, PageContent | None],
    devices: Mapping[str, PhysicalDevice],
    *,
    static: frozenset[str] = frozenset(),
) -> SlotState:
    """Return the state with the MIG instances that our pages name.

    An instance that was made but is in no page yet remains for an administrator to remove.

    Args:
        state: The rebuilt state, without instances.
        pages: The content of every page on disk, by slot allocation.
        devices: The devices that the driver shows now, by UUID.
        static: Devices whose instances belong to an administrator, and stay.
    """
    found: ClaimInstances = {}
    named = {
        limit.uuid: slot_allocation
        for slot_allocation, page in pages.items()
        if page is not None
        for limit in page.devices
    }
    for uuid, device in devices.items():
        for instance in device.mig_instances:
            slot_allocation = state.slot_allocations.get(named.get(instance.uuid, ""))
            if instance.uuid in named:
                claim_uid = slot_allocation.claim_uid if slot_allocation is not None else ""
                claim_allocation = state.claim_allocations.get(claim_uid)
                allocation_id = (
                    claim_allocation.allocation_id if claim_allocation is not None else ""
                )
                claim_instance = ClaimInstance(
                    uuid, instance, claim_uid, allocation_id, adopted=uuid in static
                )
                found = claim_instances.with_instance(found, claim_instance)
    return replace(state, claim_instances=found)
