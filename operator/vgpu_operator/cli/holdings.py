"""Computes the allocated amounts of devices from the claims.

The operator updates `status.allocated` of a GPUDevice with a delay of up to five seconds, so a
command that runs right after `kubectl apply` would show old numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from vgpu_api.errors import BadInput
from vgpu_api.quantity import format_mib
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import Amount, GPUDevice, VGPUClaim
from vgpu_api.v1alpha1.gpudevice import DeviceClaim
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden
from vgpu_client.transport import Object
from vgpu_operator.ledger.shares import NOTHING, ClaimShares, shares_of, shares_of_unreadable

NOT_ALLOWED = (
    "you may not list the claims of all namespaces, so the allocated amounts of devices are up to "
    "5 s old"
)


async def claims_of(api: Api) -> list[Object] | None:
    """Return the claims of all namespaces, or None if the user may not list them.

    Raises:
        ClientError: The API server is unreachable.
    """
    try:
        listing = await api.list(VGPU_CLAIMS)
    except Forbidden:
        return None
    return list(listing.items)


def with_holdings(devices: Iterable[Object], claims: Iterable[Object]) -> list[Object]:
    """Return the devices with `status.allocated` and `status.claims` computed from the claims."""
    held: dict[str, list[tuple[Object, Any]]] = {}
    full_nodes: set[str] = set()
    for claim in sorted(claims, key=_name):
        shares = _shares(claim)
        full_nodes |= shares.full_nodes
        for uuid, share in shares.devices.items():
            held.setdefault(uuid, []).append((claim["metadata"], share))
    return [_shown(device, held, full_nodes) for device in devices]


def _shares(claim: Object) -> ClaimShares:
    try:
        read = VGPUClaim.read(claim)
        return shares_of(read.spec, read.status.allocation)
    # an invalid claim occupies its devices in full, as in the operator's ledger
    except (ValidationError, BadInput):
        return shares_of_unreadable(claim, known=NOTHING)


def _shown(raw: Object, held: dict[str, list[tuple[Object, Any]]], full_nodes: set[str]) -> Object:
    try:
        device = GPUDevice.model_validate(raw)
    except ValidationError:
        return raw
    has = device.status.allocatable or Amount()
    whole = (has.memory_mib, has.cores, has.slots)
    parts = [
        (of, whole if share.full else (share.use.memory_mib, share.use.cores, share.use.slots))
        for of, share in held.get(device.status.uuid, ())
    ]
    memory, cores, slots = (sum(part[at] for _, part in parts) for at in range(3))
    if device.spec.node_name in full_nodes:
        memory, cores, slots = whole
    allocated = Amount(memory=format_mib(memory), cores=cores, slots=slots)
    claims = [
        DeviceClaim(
            namespace=of.get("namespace", ""),
            name=of["name"],
            memory=format_mib(part[0]),
            cores=part[1],
        ).to_wire()
        for of, part in parts
    ]
    status = {**(raw.get("status") or {}), "allocated": allocated.to_wire(), "claims": claims}
    return {**raw, "status": status}


def _name(claim: Object) -> tuple[str, str]:
    return claim["metadata"].get("namespace", ""), claim["metadata"]["name"]
