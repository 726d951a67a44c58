"""Reports claims that violate a limit, and processes without a claim.

Conditions and events are for people, metrics for programs. The operator evicts pods if configured.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Gauge

from vgpu_api import names
from vgpu_api.conditions import VIOLATED, is_true
from vgpu_nodeagent.enforcement.watchdog import Account, Stranger, Violation
from vgpu_nodeagent.events import Events, StrangersChanged
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.slots import ClaimAllocation

logger = logging.getLogger(__name__)

UNCLAIMED = "UnclaimedProcess"
_LABELS = ["node", "device_uuid"]
_CLAIM_LABELS = [*_LABELS, "namespace", "claim"]


class WatchMetrics:
    """The metrics of the watchdog."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.peak = Gauge(
            "vgpu_claim_memory_driver_peak_bytes",
            "The most memory that the driver counted for the claim in the last minute.",
            _CLAIM_LABELS,
            registry=registry,
        )
        self.excess = Gauge(
            "vgpu_claim_memory_excess_byte_seconds",
            "Memory above the claim's limit times how long it was held, since the agent started.",
            _CLAIM_LABELS,
            registry=registry,
        )
        self.compute = Gauge(
            "vgpu_claim_compute_ratio",
            "Compute used by a claim with a share: average of two minutes in which it is in force.",
            _CLAIM_LABELS,
            registry=registry,
        )
        self.unclaimed = Gauge(
            "vgpu_device_unclaimed_processes",
            "Processes on the device that belong to no claim.",
            _LABELS,
            registry=registry,
        )
        self.unclaimed_memory = Gauge(
            "vgpu_device_unclaimed_memory_bytes",
            "Memory of the device that was held by them when they were last found to have changed.",
            _LABELS,
            registry=registry,
        )


class Violations:
    """Reports violations in conditions, events and metrics.

    Args:
        view: The newest known claims, pods and devices.
        devices: Holds the processes without a claim.
        reports: Writes conditions and events.
        metrics: Counts violations.
        events: The queue for changes.
    """

    def __init__(
        self,
        view: NodeView,
        devices: NodeDevices,
        reports: Reports,
        metrics: Metrics,
        events: Events,
    ) -> None:
        self._node = view.node
        self._view = view
        self._devices = devices
        self._events = events
        self._reports = reports
        self._metrics = metrics
        self._measured = WatchMetrics(metrics.registry)

    def violated(
        self, claim_allocation: ClaimAllocation, violation: Violation, uuid: str, sentence: str
    ) -> None:
        """Report that a claim violates a limit."""
        labels = (
            self._node,
            uuid,
            claim_allocation.namespace,
            claim_allocation.claim_name,
            violation.value,
        )
        self._metrics.violations.labels(*labels).inc()
        if claim := self._view.claim_with_uid(claim_allocation.claim_uid):
            self._reports.violated(claim, violation.value, sentence)
        if pod := self._view.pod_with_uid(claim_allocation.pod_uid):
            self._reports.warning(
                pod, violation.value, f"claim {claim_allocation.claim_name} {sentence}"
            )

    def obeys(self, claim_allocation: ClaimAllocation, remaining: Mapping[Violation, str]) -> None:
        """Report that a claim violates one limit less."""
        claim = self._view.claim_with_uid(claim_allocation.claim_uid)
        if claim is None:
            return
        if remaining:
            # The condition has room for one violation; the smallest name keeps it stable from look
            # to look.
            violation, sentence = min(remaining.items())
            self._reports.violated(claim, violation.value, sentence)
        else:
            self._reports.obeys(claim)

    def confirmed(self, claim_allocation: ClaimAllocation) -> None:
        """Withdraw the report of an earlier agent: the claim violates nothing."""
        claim = self._view.claim_with_uid(claim_allocation.claim_uid)
        if claim is not None and is_true(claim.status.conditions, VIOLATED):
            self._reports.obeys(claim)

    def accounts(self, found: Mapping[tuple[str, str, str], Account]) -> None:
        """Set the metrics of claims; claims that are gone lose their series."""
        for gauge in (self._measured.peak, self._measured.excess, self._measured.compute):
            # All series are written again: a claim that is gone must not keep its last value
            # forever.
            gauge.clear()
        for (namespace, claim, uuid), account in found.items():
            labels = (self._node, uuid, namespace, claim)
            self._measured.peak.labels(*labels).set(account.peak_bytes)
            self._measured.excess.labels(*labels).set(account.excess_byte_seconds)
            if account.compute_percent is not None:
                self._measured.compute.labels(*labels).set(account.compute_percent / 100)

    def held_pods(self) -> Collection[str]:
        """Return the UIDs of pods that were given devices by HAMi and are held by a claim."""
        return {
            claim.status.reserved_for.pod_uid
            for claim in self._view.claims.objects.values()
            if claim.held_for and claim.status.reserved_for is not None
        }

    def strangers(self, found: Mapping[str, tuple[Stranger, ...]]) -> None:
        """Note the processes without a claim, and create an event for each new one."""
        before = self._devices.strangers
        known = {(uuid, s.pid, s.name) for uuid, there in before.items() for s in there}
        self._devices.strangers = found
        self._measured.unclaimed.clear()
        self._measured.unclaimed_memory.clear()
        for uuid, there in found.items():
            self._measured.unclaimed.labels(self._node, uuid).set(len(there))
            held = sum(stranger.held for stranger in there)
            self._measured.unclaimed_memory.labels(self._node, uuid).set(held)
            for stranger in there:
                if (uuid, stranger.pid, stranger.name) not in known:
                    self._report(uuid, stranger)
        self._events.put(StrangersChanged())

    def _report(self, uuid: str, stranger: Stranger) -> None:
        """Create an event on the process's pod, or on the device if it is in none."""
        sentence = f"{stranger} of device {uuid} and belongs to no claim"
        logger.warning("%s", sentence)
        pod = self._view.pod_with_uid(stranger.pod_uid) if stranger.pod_uid else None
        if pod is not None:
            self._reports.warning(pod, UNCLAIMED, sentence)
            return
        for name in (
            names.device_object_name(uuid),
            names.device_object_name_on_node(uuid, self._node),
        ):
            if device := self._view.devices.objects.get(("", name)):
                self._reports.device_warning(device, UNCLAIMED, sentence)
                return
