"""Random faults of the API server, on requests that are frequent enough to be affected."""

from __future__ import annotations

import random

from vgpu_api.resources import RESOURCE_CLAIMS
from vgpu_local.apiserver.faults import Action, Fault
from vgpu_local.chaos.leader import LEASES
from vgpu_local.readiness import plural

# Rates of faults by client, verb and resource, for requests that are made all the time.
_REQUESTS: tuple[tuple[int, str, str, str], ...] = (
    (6, "leader", "patch", "vgpuclaims.vgpu.dev/status"),
    (3, "leader", "patch", "vgpuclaims.vgpu.dev"),
    (3, "leader", "create", "vgpuclaims.vgpu.dev"),
    (2, "leader", "get", "vgpuclaims.vgpu.dev"),
    (4, "leader", "create", "pods/binding"),
    (2, "leader", "get", "pods"),
    (2, "leader", "patch", "pods"),
    (1, "leader", "patch", "pods/status"),
    (2, "leader", "patch", "gpudevices.vgpu.dev/status"),
    (2, "leader", "*", LEASES),
    (3, "leader", "*", "*"),
    (2, "operator", "list", "*"),
    (2, "operator", "watch", "*"),
    (2, "operator", "*", "*"),
    (6, "agent", "patch", "vgpuclaims.vgpu.dev/status"),
    (1, "agent", "patch", "gpudevices.vgpu.dev/status"),
    (3, "agent", "get", "vgpuclaims.vgpu.dev"),
    (2, "agent", "list", "*"),
    (3, "agent", "watch", "*"),
    (3, "agent", "*", "*"),
    (3, "", "create", "pods"),
    (2, "", "delete", "pods"),
    (3, "", "update", "pods/status"),
    (3, "", "get", "pods"),
    (6, "", "*", "*"),
)
_RESOURCE_CLAIMS = plural(RESOURCE_CLAIMS)
WRITES_OF_CLAIMS = (
    ("create", _RESOURCE_CLAIMS),
    ("patch", f"{_RESOURCE_CLAIMS}/status"),
    ("patch", _RESOURCE_CLAIMS),
)
"""The writes of ResourceClaims: verb and resource."""
_OF_CLAIMS = (
    *((6, "leader", *write) for write in WRITES_OF_CLAIMS),
    (2, "leader", "get", _RESOURCE_CLAIMS),
)
"""The same for Claims mode, beside the others."""
_CODES = (409, 422, 429, 500, 503, 504)


def draw(chance: random.Random, *, in_claims: bool = False) -> tuple[str, Fault]:
    """Return a fault and its target: `leader`, `operator`, `agent`, or "" for all."""
    rows = (*_REQUESTS, *_OF_CLAIMS) if in_claims else _REQUESTS
    _, who, verb, resource = chance.choices(rows, [row[0] for row in rows])[0]
    actions: tuple[Action, ...] = ("status", "delay", "lost", "refuse")
    if verb == "watch":
        actions = ("status", "delay", "refuse", "drop", "gone")
    return who, Fault(
        action=chance.choice(actions),
        verb=verb,
        resource=resource,
        times=chance.choice((2, 5, 10, 20)),
        share=chance.choice((0.3, 0.6, 1.0)),
        code=chance.choice(_CODES),
        seconds=chance.choice((0.1, 0.5, 1.5)),
        after=chance.choice((0, 1, 5)),
    )
