"""Usage of devices and containers as Prometheus series, under our names and under HAMi's.

A collector renders the last reading at each scrape, so the series of a claim vanish with the claim.
Names, labels and units of the second group are those of HAMi (v2.10,
`cmd/vGPUmonitor/metrics.go`), which gives utilization in percent, whatever the name suggests;
`views.hamiMetrics` disables them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vgpu_api.names import published_model
from vgpu_api.quantity import MIB
from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, PhysicalDevice
from vgpu_nodeagent.reporting.usage import ContainerUse, Usage

_CONTAINER = ("node", "device_uuid", "namespace", "claim", "pod", "container")
_HAMI_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_HAMI_DEVICE = ("node", "device_index", "device_uuid", "device_type")
_OLD_DEVICE = ("nodeid", "deviceidx", "deviceuuid", "devicetype")


@dataclass(frozen=True, slots=True)
class _OfContainer:
    """A series per container and device; a container whose value is None is left out."""

    name: str
    help: str
    value: Callable[[ContainerUse], float | None]
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class _OfDevice:
    """A series per device that the driver shows."""

    name: str
    help: str
    value: Callable[[PhysicalDevice, DeviceUsage, float], float]
    """Takes the device, its usage, and the share of its cores that is allocated, 0 to 1."""


OURS = (
    _OfContainer(
        "vgpu_claim_memory_limit_bytes", "Memory that may be used.", lambda use: use.memory_limit
    ),
    _OfContainer(
        "vgpu_claim_memory_used_bytes", "Memory in use.", lambda use: float(use.memory_used)
    ),
    _OfContainer(
        "vgpu_claim_memory_peak_bytes", "Most memory ever in use.", lambda use: use.memory_peak
    ),
    _OfContainer(
        "vgpu_claim_cores_limit_ratio", "Compute that may be used.", lambda use: use.cores_limit
    ),
    _OfContainer(
        "vgpu_claim_cores_used_ratio",
        "Compute in use, by the driver.",
        lambda use: use.cores_used,
    ),
    _OfContainer(
        "vgpu_claim_oom_rejections",
        "Allocations refused because of the limit.",
        lambda use: float(use.denied),
        is_counter=True,
    ),
    _OfContainer(
        "vgpu_claim_throttled_seconds",
        "Time that launches were held back.",
        lambda use: use.throttled_s,
        is_counter=True,
    ),
)


def _percent(use: ContainerUse) -> float | None:
    return None if use.cores_used is None else use.cores_used * 100


def _used(use: ContainerUse) -> float:
    return float(use.memory_used)


HAMI_CONTAINER: Sequence[tuple[tuple[str, ...], _OfContainer]] = (
    (
        _HAMI_CONTAINER,
        _OfContainer("hami_vgpu_memory_used_bytes", "Memory in use of a container.", _used),
    ),
    (
        _HAMI_CONTAINER,
        _OfContainer(
            "hami_vgpu_memory_limit_bytes",
            "Memory limit of a container.",
            lambda use: use.memory_limit,
        ),
    ),
    (
        _HAMI_CONTAINER,
        _OfContainer("hami_container_device_memory_bytes", "Memory in use of a container.", _used),
    ),
    (
        _HAMI_CONTAINER,
        _OfContainer(
            "hami_container_device_utilization_ratio", "Compute of a container, percent.", _percent
        ),
    ),
    (
        _OLD_CONTAINER,
        _OfContainer("vGPU_device_memory_usage_in_bytes", "Memory in use of a container.", _used),
    ),
    (
        _OLD_CONTAINER,
        _OfContainer(
            "vGPU_device_memory_limit_in_bytes",
            "Memory limit of a container.",
            lambda use: use.memory_limit,
        ),
    ),
    (
        _OLD_CONTAINER,
        _OfContainer(
            "Device_utilization_desc_of_container", "Compute of a container, percent.", _percent
        ),
    ),
)


def _device_used(device: PhysicalDevice, use: DeviceUsage, given: float) -> float:
    return float(use.memory_mib * MIB)


def _device_busy(device: PhysicalDevice, use: DeviceUsage, given: float) -> float:
    return float(use.cores)


HAMI_DEVICE: Sequence[tuple[tuple[str, ...], _OfDevice]] = (
    (_HAMI_DEVICE, _OfDevice("hami_host_gpu_memory_used_bytes", "Memory in use.", _device_used)),
    (_HAMI_DEVICE, _OfDevice("hami_host_gpu_utilization_ratio", "Compute, percent.", _device_busy)),
    (_OLD_DEVICE, _OfDevice("HostGPUMemoryUsage", "Memory in use, bytes.", _device_used)),
    (_OLD_DEVICE, _OfDevice("HostCoreUtilization", "Compute in use, percent.", _device_busy)),
    (_HAMI_DEVICE, _OfDevice("device_memory_usage_bytes", "Memory in use.", _device_used)),
    (
        _HAMI_DEVICE,
        _OfDevice(
            "device_memory_limit_bytes",
            "Memory of the GPU.",
            lambda device, use, given: float(device.memory_mib * MIB),
        ),
    ),
    (_HAMI_DEVICE, _OfDevice("device_utilization_percent", "Compute in use.", _device_busy)),
    (
        _HAMI_DEVICE,
        _OfDevice(
            "device_core_usage",
            "Compute given to containers, percent.",
            lambda device, use, given: given * 100,
        ),
    ),
)


class KnownDevices(Protocol):
    """Knows the devices; implemented by the inventory."""

    @property
    def devices(self) -> Mapping[str, PhysicalDevice]:
        """Return every device that was ever seen, by UUID."""


class UsageCollector(Collector):
    """Renders the last reading as metrics.

    Scrapes come from another thread, so `usage` is replaced as a whole and never changed.

    Args:
        node: The node's name.
        known: Knows the devices.
        hami: True to show HAMi's names too.
    """

    def __init__(self, node: str, known: KnownDevices, *, hami: bool) -> None:
        self._node = node
        self._known = known
        self._hami = hami
        self.usage = Usage()

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the last reading."""
        usage, devices = self.usage, dict(self._known.devices)
        for row in OURS:
            yield _containers(row, _CONTAINER, usage.containers, self._our_labels)
        if not self._hami:
            return
        for names, row in HAMI_CONTAINER:
            yield _containers(row, names, usage.containers, _hami_labels)
        given: dict[str, float] = {}
        for use in usage.containers:
            given[use.uuid] = given.get(use.uuid, 0.0) + (use.cores_limit or 0.0)
        for names, of_device in HAMI_DEVICE:
            family = GaugeMetricFamily(of_device.name, of_device.help, labels=names)
            for uuid, used in usage.devices.items():
                if (device := devices.get(uuid)) is not None:
                    labels = (self._node, str(device.index), uuid, published_model(device.model))
                    family.add_metric(labels, of_device.value(device, used, given.get(uuid, 0.0)))
            yield family

    def _our_labels(self, use: ContainerUse) -> Sequence[str]:
        return (self._node, use.uuid, use.namespace, use.claim, use.pod, use.container)


def _hami_labels(use: ContainerUse) -> Sequence[str]:
    return (use.namespace, use.pod, use.container, str(use.number), use.uuid)


def _containers(
    row: _OfContainer,
    names: Sequence[str],
    uses: Iterable[ContainerUse],
    labels: Callable[[ContainerUse], Sequence[str]],
) -> Metric:
    kind = CounterMetricFamily if row.is_counter else GaugeMetricFamily
    family = kind(row.name, row.help, labels=names)
    for use in uses:
        if (value := row.value(use)) is not None:
            family.add_metric(labels(use), value)
    return family
