"""Compares all records of what this node has allocated, and reports where two disagree.

Five records say who may use what: the agent's checkpoint (slot allocations, claim allocations,
instances), the limit pages, the CDI specs, the kubelet's checkpoints, and the claims. They differ
for a moment while a container starts or a pod ends, so a busy node is audited twice, and only a
finding that appears both times is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vgpu_api.effective import Use, effective_use
from vgpu_api.quantity import MIB
from vgpu_api.resize import was_changed
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.discovery.inventory import allocatable
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.state.cdi_device import is_share
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotState


@dataclass(frozen=True, slots=True)
class Finding:
    """Two records that disagree.

    Attributes:
        reason: A reason in CamelCase.
        subject: The slot allocation, claim or device.
        message: The value of each record.
    """

    reason: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All records as they were at one moment.

    Attributes:
        state: The agent's checkpoint.
        pages: The content of every page on disk by slot allocation; None for a damaged page.
        specs: Slot allocations with a CDI spec.
        entries: The entries for our resource in the kubelet's checkpoint.
        remembered: UIDs of the ResourceClaims that the kubelet has on record.
        pods: UIDs of this node's pods that have not ended.
        claims: The claims allocated on this node, by UID.
        allocatable: The allocatable amounts of each device, by UUID.
        instances: UUIDs of the MIG instances that the driver shows.
    """

    state: SlotState
    pages: Mapping[str, PageContent | None]
    specs: frozenset[str]
    entries: Sequence[KubeletEntry]
    remembered: frozenset[str]
    pods: frozenset[str]
    claims: Mapping[str, VGPUClaim]
    allocatable: Mapping[str, Use]
    instances: frozenset[str]


def gather(node: LocalNode) -> Evidence:
    """Read all records, without an await, so that none changes in between.

    Raises:
        KubeletUnavailable: A record of the kubelet cannot be read.
    """
    allocations = node.allocations
    devices = node.inventory.devices.values()
    return Evidence(
        state=node.checkpoint.state,
        pages={name: _page(node, name) for name in allocations.folders()},
        specs=allocations.specs(),
        entries=node.kubelet.entries(),
        remembered=node.kubelet.remembered(
            {each.resource_claim_uid for each in node.checkpoint.state.claim_allocations.values()}
            - {""}
        ),
        pods=frozenset(
            pod.metadata.uid for pod in node.view.pods.objects.values() if not pod.is_terminal
        ),
        claims={claim.metadata.uid: claim for claim in node.view.claims.objects.values()},
        allocatable=allocatable(node.inventory.capacities()),
        instances=frozenset(i.uuid for device in devices for i in device.mig_instances if i.uuid),
    )


def _page(node: LocalNode, slot_allocation: str) -> PageContent | None:
    try:
        return node.allocations.content(slot_allocation)
    except PageDamaged:
        return None


def findings(evidence: Evidence) -> list[Finding]:
    """Return the disagreements of all records, ordered by reason and subject."""
    found = [
        *_of_slot_allocations(evidence),
        *_of_leftovers(evidence),
        *_of_kubelet(evidence),
        *_of_claim_allocations(evidence),
        *_of_devices(evidence),
    ]
    return sorted(found, key=lambda finding: (finding.reason, finding.subject))


def _of_slot_allocations(evidence: Evidence) -> Iterator[Finding]:
    """Compare the slot allocations with pages and CDI specs."""
    for name, slot_allocation in sorted(evidence.state.slot_allocations.items()):
        page = evidence.pages.get(name)
        grants = page is not None and page.state is PageState.GRANT
        if name not in evidence.pages:
            yield Finding("PageMissing", name, "the lease has no folder")
        elif page is None:
            yield Finding("PageDamaged", name, "its limit page cannot be read")
        elif grants and name not in evidence.specs:
            yield Finding("SpecMissing", name, "its page grants, and there is no CDI spec")
        elif not grants and name in evidence.specs:
            message = f"there is a CDI spec, and its page is {page.state.name}"
            yield Finding("SpecLeft", name, message)
        elif grants and not slot_allocation.is_bound:
            yield Finding("GrantUnbound", name, "its page grants, and no pod holds the lease")


def _of_leftovers(evidence: Evidence) -> Iterator[Finding]:
    """Find pages and CDI specs without a slot allocation."""
    for name in sorted({*evidence.pages, *evidence.specs} - evidence.state.slot_allocations.keys()):
        where = "a page" if name in evidence.pages else "a CDI spec"
        yield Finding("LeaseUnknown", name, f"there is {where} of a lease that nobody holds")


def _of_kubelet(evidence: Evidence) -> Iterator[Finding]:
    """Compare the slot allocations with the kubelet's checkpoint."""
    entries = {entry.slot_allocation: entry for entry in evidence.entries if entry.slot_allocation}
    for name, entry in sorted(entries.items()):
        if finding := _of_entry(evidence, name, entry):
            yield finding
    for name, slot_allocation in sorted(evidence.state.slot_allocations.items()):
        claim_allocation = evidence.state.claim_allocations.get(slot_allocation.claim_uid)
        if claim_allocation is None or claim_allocation.closed:
            continue
        uid = claim_allocation.resource_claim_uid
        is_known = uid in evidence.remembered if is_share(name) else name in entries
        if slot_allocation.is_bound and not is_known:
            yield Finding("LeaseStale", name, "the kubelet has no record of it")


def _of_entry(evidence: Evidence, name: str, entry: KubeletEntry) -> Finding | None:
    slot_allocation = evidence.state.slot_allocations.get(name)
    pod = f"pod {entry.pod_uid}, container {entry.container}"
    if slot_allocation is None:
        # The kubelet keeps the entries of an ended pod until it admits the next one.
        if entry.pod_uid not in evidence.pods:
            return None
        return Finding("LeaseForgotten", name, f"the kubelet has given it to {pod}")
    holder = (slot_allocation.pod_uid, slot_allocation.container)
    if not slot_allocation.is_bound or holder == (entry.pod_uid, entry.container):
        return None
    mine = f"pod {slot_allocation.pod_uid}, container {slot_allocation.container}"
    return Finding("LeaseDisputed", name, f"held by {mine}; the kubelet has it for {pod}")


def _of_claim_allocations(evidence: Evidence) -> Iterator[Finding]:
    """Compare the claim allocations with the status of the claims."""
    for uid, claim_allocation in sorted(evidence.state.claim_allocations.items()):
        if claim_allocation.closed:
            continue
        name = f"{claim_allocation.namespace}/{claim_allocation.claim_name}"
        claim = evidence.claims.get(uid)
        allocation = None if claim is None else claim.status.allocation
        if claim is None or allocation is None:
            yield Finding("ClaimMissing", name, "held here, and not allocated to this node")
            continue
        if allocation.id != claim_allocation.allocation_id:
            message = f"allocation {allocation.id}; held here: {claim_allocation.allocation_id}"
            yield Finding("AllocationDiffers", name, message)
            continue
        expected = effective_use(claim.spec, allocation.devices)
        if (
            claim_allocation.init_ended is None
            and not was_changed(claim)
            and claim_allocation.use != expected
        ):
            message = (
                f"the claim has {_words(expected)}; counted here: {_words(claim_allocation.use)}"
            )
            yield Finding("AmountsDiffer", name, message)
        yield from _of_pages(evidence, claim_allocation, name)


def _of_pages(
    evidence: Evidence, claim_allocation: ClaimAllocation, name: str
) -> Iterator[Finding]:
    """Find pages that grant more of a device than is counted for their claim."""
    for slot_allocation in evidence.state.of_claim(claim_allocation.claim_uid):
        page = evidence.pages.get(slot_allocation.name)
        for limit in page.devices if page is not None else ():
            use = claim_allocation.use.get(limit.uuid)
            if use is None or limit.memory_bytes == UNLIMITED:
                continue  # a MIG instance: the hardware enforces its size
            if limit.memory_bytes > use.memory_mib * MIB or limit.cores > use.cores:
                message = (
                    f"lease {slot_allocation.name} grants {limit.memory_bytes // MIB} MiB "
                    f"and {limit.cores} % of GPU {limit.uuid}; "
                    f"counted: {use.memory_mib} MiB and {use.cores} %"
                )
                yield Finding("PageExceeds", name, message)


def _of_devices(evidence: Evidence) -> Iterator[Finding]:
    """Compare sums with the capacity of devices, and instances with the driver."""
    for uuid, use in sorted(evidence.state.used().items()):
        has = evidence.allocatable.get(uuid)
        if has is None:
            yield Finding("CardUnknown", uuid, f"{_words({uuid: use})} of it are given away")
        elif use.memory_mib > has.memory_mib or use.cores > has.cores or use.slots > has.slots:
            message = f"{_words({uuid: use})} of {_words({uuid: has})} are given away"
            yield Finding("Overcommitted", uuid, message)
    for claim_instance in evidence.state.claim_instances.values():
        if claim_instance.instance.uuid and claim_instance.instance.uuid not in evidence.instances:
            message = f"{claim_instance.instance} was made, and the driver does not show it"
            yield Finding("InstanceMissing", claim_instance.card, message)


def _words(uses: Mapping[str, Use]) -> str:
    return ", ".join(
        f"{use.memory_mib} MiB, {use.cores} % and {use.slots} slots of GPU {uuid}"
        for uuid, use in sorted(uses.items())
    )
