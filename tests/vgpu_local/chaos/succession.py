"""Whether each leader waited for its predecessor's lease, and for what that had sent, to be over.

Two leaders at once need not do harm in a run: resourceVersions and the agents' own sums stand
behind the Lease. So the Lease itself is watched, by the API server's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.leader import LEASES
from vgpu_local.programs import NAMESPACE

_WRITES = 1 / 3  # of the lease: how long what was sent may take to land


@dataclass(slots=True)
class Succession:
    """`saw` is to be subscribed to the API server's writes.

    Attributes:
        delivery_s: so long after a write it may be noted.
        clock: monotonic seconds.
        findings: leaders that came too early.
    """

    delivery_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    findings: list[str] = field(default_factory=list)
    _holder: str = ""
    _since: float = 0.0

    def saw(self, write: WriteEvent) -> None:
        """Note a write of the operators' Lease."""
        if write.resource != LEASES:
            return
        obj = write.object
        if obj["metadata"]["namespace"] != NAMESPACE:
            return
        now, spec = self.clock(), obj["spec"]
        holder = str(spec.get("holderIdentity") or "")
        waited, due = now - self._since, float(spec["leaseDurationSeconds"]) * (1 + _WRITES)
        if self._holder and holder not in ("", self._holder) and waited + self.delivery_s < due:
            self.findings.append(
                f"{holder} took the Lease {waited:.2f} s after {self._holder} had renewed it, "
                f"which is sooner than {due:.2f} s"
            )
        self._holder, self._since = holder, now
