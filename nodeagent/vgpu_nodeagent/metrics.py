"""What the agent counts, on a registry of its own so that two agents fit into one process."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vgpu_api.quantity import MIB
from vgpu_nodeagent.drivers.base import CardUsage, PhysicalDevice
from vgpu_nodeagent.inventory import DeviceCapacity

_CARD = ["node", "device_uuid"]
_CLAIM = [*_CARD, "namespace", "claim"]


@dataclass(slots=True)
class Metrics:
    """The agent's metrics; names and units as documented for operations."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    registrations: Counter = field(init=False)
    prestart_seconds: Histogram = field(init=False)
    prestart_failures: Counter = field(init=False)
    slots: Gauge = field(init=False)
    memory_capacity: Gauge = field(init=False)
    memory_allocatable: Gauge = field(init=False)
    memory_used: Gauge = field(init=False)
    utilization: Gauge = field(init=False)
    healthy: Gauge = field(init=False)
    info: Gauge = field(init=False)
    violations: Counter = field(init=False)

    def __post_init__(self) -> None:
        r = self.registry
        self.registrations = Counter(
            "vgpu_agent_registrations_total", "Registrations with the kubelet.", registry=r
        )
        self.prestart_seconds = Histogram(
            "vgpu_agent_prestart_duration_seconds", "Time to answer PreStartContainer.", registry=r
        )
        self.prestart_failures = Counter(
            "vgpu_agent_prestart_failures_total", "Containers refused.", ["reason"], registry=r
        )
        self.slots = Gauge("vgpu_agent_slots", "Slots by state.", ["state"], registry=r)
        self.memory_capacity = Gauge(
            "vgpu_device_memory_capacity_bytes", "Memory of the card.", _CARD, registry=r
        )
        self.memory_allocatable = Gauge(
            "vgpu_device_memory_allocatable_bytes",
            "Memory that may be given away.",
            _CARD,
            registry=r,
        )
        self.memory_used = Gauge(
            "vgpu_device_memory_used_bytes", "Memory in use, by the driver.", _CARD, registry=r
        )
        self.utilization = Gauge(
            "vgpu_device_utilization_ratio", "Compute in use, by the driver.", _CARD, registry=r
        )
        self.healthy = Gauge(
            "vgpu_device_healthy", "1 for a card that can be relied on.", _CARD, registry=r
        )
        self.violations = Counter(
            "vgpu_claim_violations_total",
            "Times that a claim was found to violate a limit, by the driver's word.",
            [*_CLAIM, "reason"],
            registry=r,
        )
        self.info = Gauge(
            "vgpu_device_info",
            "Always 1; what the card is stands in the labels.",
            [*_CARD, "index", "model", "driver_version"],
            registry=r,
        )

    def card(
        self, node: str, card: PhysicalDevice, terms: DeviceCapacity, *, healthy: bool
    ) -> None:
        """Set what is known of a card."""
        self.memory_capacity.labels(node, card.uuid).set(terms.capacity.memory_mib * MIB)
        self.memory_allocatable.labels(node, card.uuid).set(terms.allocatable.memory_mib * MIB)
        self.healthy.labels(node, card.uuid).set(healthy)
        self.info.labels(node, card.uuid, str(card.index), card.model, card.driver_version).set(1)

    def usage(self, node: str, uuid: str, usage: CardUsage) -> None:
        """Set what is in use on a card."""
        self.memory_used.labels(node, uuid).set(usage.memory_mib * MIB)
        self.utilization.labels(node, uuid).set(usage.cores / 100)
