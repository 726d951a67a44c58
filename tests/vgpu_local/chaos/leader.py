"""Finds the leader from the Lease, since asking the processes would block on a suspended one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from vgpu_api.resources import LEASES as _LEASES
from vgpu_local.cluster import LocalCluster
from vgpu_local.programs import NAMESPACE
from vgpu_local.readiness import plural

LEASES = plural(_LEASES)
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the Lease by its record.

    Attributes:
        name: The name of the operator, which may have ended.
        renewed: The time of its last renewal as it wrote it.
    """

    name: str
    renewed: str


def holder_of(cluster: LocalCluster) -> Holder | None:
    """Return the holder of the Lease, or None while it is free."""
    for lease in cluster.objects(LEASES, NAMESPACE):
        spec = lease.get("spec") or {}
        held_by = str(spec.get("holderIdentity") or "").rpartition("_")[0]
        for daemon in cluster.operators:
            if held_by == daemon.name:
                return Holder(daemon.name, str(spec.get("renewTime")))
    return None


def live_leader(cluster: LocalCluster, *, within_s: float) -> str | None:
    """Wait for a leader that renews the Lease; return None if there is none in that time."""
    deadline = time.monotonic() + within_s
    before = holder_of(cluster)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = holder_of(cluster)
        if now is not None and before is not None and now != before and now.name == before.name:
            return now.name
        before = now
    return None
