"""Who leads, by the Lease: asking the processes would wait for one that is stopped."""

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
    """Whose the Lease is, by its record.

    Attributes:
        name: the operator's, be it alive or not.
        renewed: when it renewed the Lease last, as it wrote it down.
    """

    name: str
    renewed: str


def holder_of(cluster: LocalCluster) -> Holder | None:
    """Who holds the Lease; None while it is free."""
    for lease in cluster.objects(LEASES, NAMESPACE):
        spec = lease.get("spec") or {}
        held_by = str(spec.get("holderIdentity") or "").rpartition("_")[0]
        for daemon in cluster.operators:
            if held_by == daemon.name:
                return Holder(daemon.name, str(spec.get("renewTime")))
    return None


def live_leader(cluster: LocalCluster, *, within_s: float) -> str | None:
    """Wait for a leader that is seen to renew the Lease; None if there is none in that time."""
    deadline = time.monotonic() + within_s
    before = holder_of(cluster)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = holder_of(cluster)
        if now is not None and before is not None and now != before and now.name == before.name:
            return now.name
        before = now
    return None
