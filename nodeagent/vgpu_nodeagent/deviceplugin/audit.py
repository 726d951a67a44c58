"""Compares every record of what this node has given away: where two disagree, there is a finding.

Five records have who may use what: the agent's own (leases, holdings, instances), the limit pages,
the CDI specs, the kubelet's checkpoint, and the claims. While a container starts or a pod ends they
differ for a moment, so an audit of a busy node is taken twice: what is found both times is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vgpu_api.effective import Use, effective_use
from vgpu_api.quantity import MIB
from vgpu_api.resize import was_changed
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.deviceplugin.kubelet_checkpoint import KubeletEntry, read_kubelet_checkpoint
from vgpu_nodeagent.deviceplugin.node import LocalNode
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState


@dataclass(frozen=True, slots=True)
class Finding:
    """Two records that disagree.

    Attributes:
        reason: In CamelCase.
        subject: The lease, claim or device.
        message: The value of each record.
    """

    reason: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All records, read at one moment.

    Attributes:
        state: The agent's own.
        pages: By lease: the content of every page on disk; None for a damaged one.
        specs: Leases with a CDI spec.
        entries: The kubelet's checkpoint, our resource only.
        pods: UIDs of this node's pods that have not ended.
        claims: Those allocated on this node, by UID.
        allocatable: What may be given away of each device, by UUID.
        instances: UUIDs of the MIG instances that the driver shows.
    """

    state: SlotState
    pages: Mapping[str, PageContent | None]
    specs: frozenset[str]
    entries: Sequence[KubeletEntry]
    pods: frozenset[str]
    claims: Mapping[str, VGPUClaim]
    allocatable: Mapping[str, Use]
    instances: frozenset[str]


def gather(node: LocalNode) -> Evidence:
    """Read all records; nothing is awaited, so that none changes in between.

    Raises:
        KubeletUnavailable: The kubelet's checkpoint cannot be read.
    """
    allocations = node.allocations
    devices = node.inventory.devices.values()
    return Evidence(
        state=node.checkpoint.state,
        pages={name: _page(node, name) for name in allocations.folders()},
        specs=allocations.specs(),
        entries=read_kubelet_checkpoint(node.kubelet_checkpoint, resource=node.resource),
        pods=frozenset(
            pod.metadata.uid for pod in node.view.pods.objects.values() if not pod.is_terminal
        ),
        claims={claim.metadata.uid: claim for claim in node.view.claims.objects.values()},
        allocatable={uuid: terms.allocatable for uuid, terms in node.inventory.terms().items()},
        instances=frozenset(i.uuid for device in devices for i in device.mig_instances if i.uuid),
    )


def _page(node: LocalNode, lease: str) -> PageContent | None:
    try:
        return node.allocations.content(lease)
    except PageDamaged:
        return None


def findings(evidence: Evidence) -> list[Finding]:
    """Everything on which two records disagree, by reason and subject."""
    found = [
        *_of_leases(evidence),
        *_of_kubelet(evidence),
        *_of_holdings(evidence),
        *_of_devices(evidence),
    ]
    return sorted(found, key=lambda finding: (finding.reason, finding.subject))


def _of_leases(evidence: Evidence) -> Iterator[Finding]:
    """The agent's leases against pages and specs."""
    leases = evidence.state.leases
    for name in sorted({*leases, *evidence.pages, *evidence.specs}):
        page = evidence.pages.get(name)
        grants = page is not None and page.state is PageState.GRANT
        if name not in leases:
            where = "a page" if name in evidence.pages else "a CDI spec"
            yield Finding("LeaseUnknown", name, f"there is {where} of a lease that nobody holds")
        elif name not in evidence.pages:
            yield Finding("PageMissing", name, "the lease has no folder")
        elif page is None:
            yield Finding("PageDamaged", name, "its limit page cannot be read")
        elif grants and name not in evidence.specs:
            yield Finding("SpecMissing", name, "its page grants, and there is no CDI spec")
        elif not grants and name in evidence.specs:
            message = f"there is a CDI spec, and its page is {page.state.name}"
            yield Finding("SpecLeft", name, message)
        elif grants and not leases[name].is_bound:
            yield Finding("GrantUnbound", name, "its page grants, and no pod holds the lease")


def _of_kubelet(evidence: Evidence) -> Iterator[Finding]:
    """The agent's leases against the kubelet's checkpoint."""
    entries = {entry.lease: entry for entry in evidence.entries if entry.lease}
    for name, entry in sorted(entries.items()):
        lease = evidence.state.leases.get(name)
        pod = f"pod {entry.pod_uid}, container {entry.container}"
        if lease is None and entry.pod_uid in evidence.pods:  # of others it forgets later
            yield Finding("LeaseForgotten", name, f"the kubelet has given it to {pod}")
        elif (
            lease is not None
            and lease.is_bound
            and (lease.pod_uid, lease.container)
            != (
                entry.pod_uid,
                entry.container,
            )
        ):
            mine = f"pod {lease.pod_uid}, container {lease.container}"
            yield Finding("LeaseDisputed", name, f"held by {mine}; the kubelet has it for {pod}")
    for name, lease in sorted(evidence.state.leases.items()):
        if lease.is_bound and name not in entries and _is_open(evidence, lease):
            yield Finding("LeaseStale", name, "the kubelet has no record of it")


def _is_open(evidence: Evidence, lease: SlotAllocation) -> bool:
    holding = evidence.state.holdings.get(lease.claim_uid)
    return holding is not None and not holding.closed


def _of_holdings(evidence: Evidence) -> Iterator[Finding]:
    """Claims as counted here against their status, and what their pages grant."""
    for uid, holding in sorted(evidence.state.holdings.items()):
        if holding.closed:
            continue
        name = f"{holding.namespace}/{holding.claim_name}"
        claim = evidence.claims.get(uid)
        allocation = None if claim is None else claim.status.allocation
        if claim is None or allocation is None:
            yield Finding("ClaimMissing", name, "held here, and not allocated to this node")
            continue
        if allocation.id != holding.allocation_id:
            message = f"allocation {allocation.id}; held here: {holding.allocation_id}"
            yield Finding("AllocationDiffers", name, message)
            continue
        expected = effective_use(claim.spec, allocation.devices)
        if holding.init_ended is None and not was_changed(claim) and holding.use != expected:
            message = f"the claim has {_words(expected)}; counted here: {_words(holding.use)}"
            yield Finding("AmountsDiffer", name, message)
        yield from _of_pages(evidence, holding, name)


def _of_pages(evidence: Evidence, holding: ClaimAllocation, name: str) -> Iterator[Finding]:
    """No page of a claim grants more of a device than the claim is counted for."""
    for lease in evidence.state.of_claim(holding.claim_uid):
        page = evidence.pages.get(lease.name)
        for limit in page.devices if page is not None else ():
            use = holding.use.get(limit.uuid)
            if use is None or limit.memory_bytes == UNLIMITED:
                continue  # an instance, which its device keeps within itself
            if limit.memory_bytes > use.memory_mib * MIB or limit.cores > use.cores:
                message = (
                    f"lease {lease.name} grants {limit.memory_bytes // MIB} MiB and {limit.cores} "
                    f"% of GPU {limit.uuid}; counted: {use.memory_mib} MiB and {use.cores} %"
                )
                yield Finding("PageExceeds", name, message)


def _of_devices(evidence: Evidence) -> Iterator[Finding]:
    """Sums against what devices have, and instances against the driver."""
    for uuid, use in sorted(evidence.state.used().items()):
        has = evidence.allocatable.get(uuid)
        if has is None:
            yield Finding("CardUnknown", uuid, f"{_words({uuid: use})} of it are given away")
        elif use.memory_mib > has.memory_mib or use.cores > has.cores or use.slots > has.slots:
            message = f"{_words({uuid: use})} of {_words({uuid: has})} are given away"
            yield Finding("Overcommitted", uuid, message)
    for cut in evidence.state.cuts.values():
        if cut.instance.uuid and cut.instance.uuid not in evidence.instances:
            message = f"{cut.instance} was made, and the driver does not show it"
            yield Finding("InstanceMissing", cut.card, message)


def _words(uses: Mapping[str, Use]) -> str:
    return ", ".join(
        f"{use.memory_mib} MiB, {use.cores} % and {use.slots} slots of GPU {uuid}"
        for uuid, use in sorted(uses.items())
    )
