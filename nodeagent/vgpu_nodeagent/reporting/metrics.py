"""The agent's metrics, on a registry of their own so that two agents fit into one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from vgpu_api.quantity import MIB
from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity

_DEVICE = ["node", "device_uuid"]
_CLAIM = [*_DEVICE, "namespace", "claim"]


@dataclass(slots=True)
class Metrics:
    """The agent's metrics; names and units as documented for operations."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    build_info: Gauge = field(init=False)
    registrations: Counter = field(init=False)
    plugin_connected: Gauge = field(init=False)
    plugin_losses: Counter = field(init=False)
    prestart_seconds: Histogram = field(init=False)
    prestart_failures: Counter = field(init=False)
    prepare_seconds: Histogram = field(init=False)
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
        self.build_info = Gauge(
            "vgpu_build_info",
            "Always 1; the label is the version of the program.",
            ["version"],
            registry=r,
        )
        self.build_info.labels(version("vgpu")).set(1)
        self.registrations = Counter(
            "vgpu_agent_registrations_total", "Registrations with the kubelet.", registry=r
        )
        self.plugin_connected = Gauge(
            "vgpu_agent_plugin_connected",
            "1 while the kubelet offers the slots of this agent.",
            registry=r,
        )
        self.plugin_losses = Counter(
            "vgpu_agent_plugin_losses_total",
            "Times that the kubelet stopped offering the slots of this agent.",
            ["state"],
            registry=r,
        )
        self.prestart_seconds = Histogram(
            "vgpu_agent_prestart_duration_seconds", "Time to answer PreStartContainer.", registry=r
        )
        self.prestart_failures = Counter(
            "vgpu_agent_prestart_failures_total", "Containers refused.", ["reason"], registry=r
        )
        self.prepare_seconds = Histogram(
            "vgpu_agent_prepare_duration_seconds",
            "Time to prepare a ResourceClaim.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45),
            registry=r,
        )
        self.slots = Gauge("vgpu_agent_slots", "Slots by state.", ["state"], registry=r)
        self.memory_capacity = Gauge(
            "vgpu_device_memory_capacity_bytes", "Memory of the GPU.", _DEVICE, registry=r
        )
        self.memory_allocatable = Gauge(
            "vgpu_device_memory_allocatable_bytes",
            "Memory that may be given away.",
            _DEVICE,
            registry=r,
        )
        self.memory_used = Gauge(
            "vgpu_device_memory_used_bytes", "Memory in use, by the driver.", _DEVICE, registry=r
        )
        self.utilization = Gauge(
            "vgpu_device_utilization_ratio", "Compute in use, by the driver.", _DEVICE, registry=r
        )
        self.healthy = Gauge(
            "vgpu_device_healthy", "1 for a GPU that can be relied on.", _DEVICE, registry=r
        )
        self.violations = Counter(
            "vgpu_claim_violations_total",
            "Times that a claim was found to violate a limit, by the driver's word.",
            [*_CLAIM, "reason"],
            registry=r,
        )
        self.info = Gauge(
            "vgpu_device_info",
            "Always 1; what the GPU is stands in the labels.",
            [*_DEVICE, "index", "model", "driver_version"],
            registry=r,
        )

    def device(
        self, node: str, device: PhysicalDevice, capacity: DeviceCapacity, *, healthy: bool
    ) -> None:
        """Set the gauges of a device."""
        self.memory_capacity.labels(node, device.uuid).set(capacity.capacity.memory_mib * MIB)
        self.memory_allocatable.labels(node, device.uuid).set(capacity.allocatable.memory_mib * MIB)
        self.healthy.labels(node, device.uuid).set(healthy)
        self.info.labels(
            node, device.uuid, str(device.index), device.model, device.driver_version
        ).set(1)

    def usage(self, node: str, uuid: str, usage: DeviceUsage) -> None:
        """Set the usage of a device."""
        self.memory_used.labels(node, uuid).set(usage.memory_mib * MIB)
        self.utilization.labels(node, uuid).set(usage.cores / 100)
