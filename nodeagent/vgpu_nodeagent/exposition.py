"""Use of cards and containers as Prometheus series: ours, and the names that HAMi's users know.

A collector renders the last reading at each scrape, so series of a claim that is gone are gone too.
Names, labels and units of the second group are HAMi's (v2.10, `cmd/vGPUmonitor/metrics.go`), which
gives utilization in percent, whatever the name says; `views.hamiMetrics` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vgpu_api.names import published_model
from vgpu_api.quantity import MIB
from vgpu_nodeagent.drivers.base import CardUsage, PhysicalDevice
from vgpu_nodeagent.usage import ContainerUse, Usage

_CONTAINER = ("node", "device_uuid", "namespace", "claim", "pod", "container")
_HAMI_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_HAMI_CARD = ("node", "device_index", "device_uuid", "device_type")
_OLD_CARD = ("nodeid", "deviceidx", "deviceuuid", "devicetype")


@dataclass(frozen=True, slots=True)
class _OfContainer:
    """A series of each container and card; None leaves a container's out."""

    name: str
    help: str
    value: Callable[[ContainerUse], float | None]
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class _OfCard:
    """A series of each card that the driver shows."""

    name: str
    help: str
    value: Callable[[PhysicalDevice, CardUsage, float], float]
    """Of the card, its use, and the cores that containers were given, 0 to 1."""


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


def _card_used(card: PhysicalDevice, use: CardUsage, given: float) -> float:
    return float(use.memory_mib * MIB)


def _card_busy(card: PhysicalDevice, use: CardUsage, given: float) -> float:
    return float(use.cores)


HAMI_CARD: Sequence[tuple[tuple[str, ...], _OfCard]] = (
    (_HAMI_CARD, _OfCard("hami_host_gpu_memory_used_bytes", "Memory in use.", _card_used)),
    (_HAMI_CARD, _OfCard("hami_host_gpu_utilization_ratio", "Compute, percent.", _card_busy)),
    (_OLD_CARD, _OfCard("HostGPUMemoryUsage", "Memory in use, bytes.", _card_used)),
    (_OLD_CARD, _OfCard("HostCoreUtilization", "Compute in use, percent.", _card_busy)),
    (_HAMI_CARD, _OfCard("device_memory_usage_bytes", "Memory in use.", _card_used)),
    (
        _HAMI_CARD,
        _OfCard(
            "device_memory_limit_bytes",
            "Memory of the card.",
            lambda card, use, given: float(card.memory_mib * MIB),
        ),
    ),
    (_HAMI_CARD, _OfCard("device_utilization_percent", "Compute in use.", _card_busy)),
    (
        _HAMI_CARD,
        _OfCard(
            "device_core_usage",
            "Compute given to containers, percent.",
            lambda card, use, given: given * 100,
        ),
    ),
)


class UsageCollector(Collector):
    """Renders the last reading.

    Scrapes come from a thread of their own: `usage` is replaced whole, never changed.

    Args:
        node: The node's name.
        cards: The cards known, by UUID.
        hami: Whether HAMi's names are shown too.
    """

    def __init__(
        self, node: str, cards: Callable[[], Mapping[str, PhysicalDevice]], *, hami: bool
    ) -> None:
        self._node = node
        self._cards = cards
        self._hami = hami
        self.usage = Usage()

    def collect(self) -> Iterator[Metric]:
        """The series of the last reading."""
        usage, cards = self.usage, dict(self._cards())
        for row in OURS:
            yield _containers(row, _CONTAINER, usage.containers, self._our_labels)
        if not self._hami:
            return
        for names, row in HAMI_CONTAINER:
            yield _containers(row, names, usage.containers, _hami_labels)
        given: dict[str, float] = {}
        for use in usage.containers:
            given[use.uuid] = given.get(use.uuid, 0.0) + (use.cores_limit or 0.0)
        for names, of_card in HAMI_CARD:
            family = GaugeMetricFamily(of_card.name, of_card.help, labels=names)
            for uuid, used in usage.cards.items():
                if (card := cards.get(uuid)) is not None:
                    labels = (self._node, str(card.index), uuid, published_model(card.model))
                    family.add_metric(labels, of_card.value(card, used, given.get(uuid, 0.0)))
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
