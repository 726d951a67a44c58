"""The checker: replays what was written, and finds every moment at which a card was given twice.

It knows nothing of the operator's ledger: capacity is what GPUDevices said, use is what claims'
statuses said, by the effective sums of the architecture's third rule, after every single write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vgpu_api.effective import Use, effective_use
from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_local.apiserver.storage import WriteEvent

_DEVICES = f"{GPU_DEVICES.plural}.{GPU_DEVICES.group}"
_CLAIMS = f"{VGPU_CLAIMS.plural}.{VGPU_CLAIMS.group}"


@dataclass(frozen=True, slots=True)
class Excess:
    """A card that held more than it may, after the write with this resourceVersion."""

    uuid: str
    resource_version: int
    use: Use
    capacity: Use


def excesses(history: Iterable[WriteEvent]) -> list[Excess]:
    """Every moment at which a card was over its capacity; empty when there was none.

    A card counts from its first published status on; what claims hold of a card that was never
    published is an excess over nothing.
    """
    capacity: dict[str, Use] = {}
    held: dict[str, dict[str, Use]] = {}  # claim UID → card → use
    total: dict[str, Use] = {}
    found: list[Excess] = []
    for write in history:
        if write.resource == _DEVICES and write.type != "DELETED":
            device = GPUDevice.model_validate(write.object)
            amount = device.status.allocatable
            if amount is not None and device.status.uuid:
                capacity[device.status.uuid] = Use(amount.memory_mib, amount.cores, amount.slots)
        if write.resource != _CLAIMS:
            continue
        claim = VGPUClaim.read(write.object)
        uses = {} if write.type == "DELETED" else _uses(claim)
        before = held.pop(claim.metadata.uid, {})
        for uuid, use in before.items():
            total[uuid] = total[uuid] - use
        for uuid, use in uses.items():
            total[uuid] = total.get(uuid, Use()) + use
        if uses:
            held[claim.metadata.uid] = uses
        for uuid in uses:
            limit = capacity.get(uuid, Use())
            if total[uuid].peak(limit) != limit:
                found.append(Excess(uuid, write.resource_version, total[uuid], limit))
    return found


def _uses(claim: VGPUClaim) -> dict[str, Use]:
    allocation = claim.status.allocation
    return {} if allocation is None else dict(effective_use(claim.spec, allocation.devices))
