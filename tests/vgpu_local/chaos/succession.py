"""Checks that each leader waited for the end of its predecessor's lease and of its late writes.

Two leaders at the same time may do no visible harm in a run, because resourceVersions and the
agents' own sums are further safeguards. So this watches the Lease itself, by the API server's
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.leader import LEASES
from vgpu_local.programs import NAMESPACE

_WRITES = 1 / 5  # of the lease, as in the leader's terms: how long what was sent may take to land


@dataclass(slots=True)
class Succession:
    """An observer of the Lease; subscribe `saw` to the API server's writes.

    Attributes:
        delivery_s: The longest time from a write to its observation.
        clock: Returns monotonic seconds.
        findings: A message for each leader that took over too early.
    """

    delivery_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    findings: list[str] = field(default_factory=list)
    _holder: str = ""
    _since: float = 0.0

    def saw(self, write: WriteEvent) -> None:
        """Check a write of the operators' Lease."""
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
