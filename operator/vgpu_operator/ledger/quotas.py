"""Quotas: what namespaces may hold of all devices together, and what they hold.

A ResourceQuota limits the number of devices, their memory and their compute, by `requests.` or
`limits.` and the configured resource name. Kubernetes counts the first for pods, which carry one
device for each container of a claim whatever the claim holds, and the second for nothing; here both
count what claims hold, those without a pod included (HAMi gives `limits.` that meaning). Of several
limits each must be kept, so the least counts; one of 0 lets nothing through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from vgpu_api import quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import ResourceQuota
from vgpu_api.errors import QuantityError
from vgpu_operator.demand import Demand
from vgpu_operator.ledger.shares import ClaimShares
from vgpu_operator.placement.bounds import UNLIMITED, Budget, together

_PREFIXES = ("requests", "limits")


@dataclass(slots=True)
class _QuotaUse:
    memory_mib: int = 0
    cores: int = 0
    devices: int = 0


@dataclass(frozen=True, slots=True)
class _Limit:
    """One entry of a quota.

    Attributes:
        resource: As the quota spells it.
        amount: What of: a field of `_QuotaUse`.
        hard: In MiB, percent of compute, or devices.
    """

    resource: str
    amount: str
    hard: int


class Quotas:
    """Limits by quota object, and use by namespace.

    Args:
        config: The names of the resources.
    """

    def __init__(self, *, config: ClusterConfig) -> None:
        self._nvidia = config.nvidia
        self._limits: dict[str, dict[str, tuple[_Limit, ...]]] = {}  # namespace → quota → limits
        self._least: dict[str, Budget] = {}  # of all the quotas of a namespace
        self._versions: dict[tuple[str, str], int] = {}
        self._held: dict[str, _QuotaUse] = {}
        self._grown: dict[str, int] = {}  # namespace → how often it could take more

    def apply(self, quota: ResourceQuota) -> None:
        """A quota was added or changed."""
        metadata = quota.metadata
        namespace, version = metadata.namespace or "", int(metadata.resource_version)
        if version <= self._versions.get((namespace, metadata.name), -1):
            return
        self._versions[namespace, metadata.name] = version
        limits = self._limits.setdefault(namespace, {})
        before = limits.get(metadata.name, ())
        limits[metadata.name] = tuple(self._read(quota))
        if limits[metadata.name] != before:
            self._grow(namespace)

    def remove(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        self._versions.pop((namespace, name), None)
        limits = self._limits.get(namespace, {})
        if limits.pop(name, ()):
            self._grow(namespace)
        if not limits:
            self._limits.pop(namespace, None)
            self._least.pop(namespace, None)

    def version(self, namespace: str) -> int:
        """Grows whenever the namespace may take more than before; its limits may have changed."""
        return self._grown.get(namespace, 0)

    def move(self, namespace: str, *, before: ClaimShares, after: ClaimShares) -> None:
        """A claim of the namespace holds `after` where it held `before`."""
        held = self._held.setdefault(namespace, _QuotaUse())
        held.devices += after.device_count - before.device_count
        for share in before.devices.values():
            held.memory_mib -= share.use.memory_mib
            held.cores -= share.use.cores
        for share in after.devices.values():
            held.memory_mib += share.use.memory_mib
            held.cores += share.use.cores

    def left(self, namespace: str) -> Budget:
        """What the namespace may still take; below 0 where it holds more than it may."""
        least = self._least.get(namespace, UNLIMITED)
        if not least.is_limited:
            return UNLIMITED
        held = self._held.get(namespace, _QuotaUse())
        return Budget(
            None if least.memory_mib is None else least.memory_mib - held.memory_mib,
            None if least.cores is None else least.cores - held.cores,
            None if least.devices is None else least.devices - held.devices,
        )

    def exceeded(self, namespace: str, demand: Demand) -> list[str]:
        """The limits that a claim that is refused by quota exceeds, each in Kubernetes' words.

        What a percentage of a device is depends on the device, and so does a device as a whole:
        such a request may exceed any limit of memory, and how much it asks for is not known.
        """
        return [line for line, _ in self._exceeded(namespace, demand)]

    def surely_exceeded(self, namespace: str, demand: Demand) -> list[str]:
        """Those of `exceeded` that the claim exceeds on any device, whatever its memory."""
        return [line for line, is_sure in self._exceeded(namespace, demand) if is_sure]

    def _exceeded(self, namespace: str, demand: Demand) -> Iterator[tuple[str, bool]]:
        """Each limit in words, and whether it is exceeded on any device."""
        held = self._held.get(namespace, _QuotaUse())
        requested = {
            "devices": together(demand, lambda _: 1),
            "memory_mib": _memory_of(demand),
            "cores": together(demand, lambda request: request.cores),
        }
        for name, limits in sorted(self._limits.get(namespace, {}).items()):
            for limit in limits:
                used, more = getattr(held, limit.amount), requested[limit.amount]
                if more is None or used + more > limit.hard:
                    addition = "" if more is None else f"requested: {limit.resource}={more}, "
                    line = (
                        f"exceeded quota: {name}, {addition}used: {limit.resource}={used}, "
                        f"limited: {limit.resource}={limit.hard}"
                    )
                    yield line, more is not None

    def may_take_more(self, namespace: str) -> None:
        """Something that the namespace held has become free."""
        if namespace in self._limits:
            self._count(namespace)

    def _grow(self, namespace: str) -> None:
        """The limits of a namespace have changed."""
        limits = [limit for of_quota in self._limits[namespace].values() for limit in of_quota]
        least: dict[str, int] = {}
        for limit in limits:
            least[limit.amount] = min(least.get(limit.amount, limit.hard), limit.hard)
        self._least[namespace] = Budget(**least)
        self._count(namespace)

    def _count(self, namespace: str) -> None:
        self._grown[namespace] = self._grown.get(namespace, 0) + 1

    def _read(self, quota: ResourceQuota) -> Iterator[_Limit]:
        nvidia = self._nvidia
        for prefix in _PREFIXES:
            for name, amount in (
                (nvidia.resource_count_name, "devices"),
                (nvidia.resource_memory_name, "memory_mib"),
                (nvidia.resource_core_name, "cores"),
            ):
                written = quota.spec.hard.get(f"{prefix}.{name}")
                if written is not None:
                    factor = self._mib_of(written) if amount == "memory_mib" else Fraction(1)
                    yield _Limit(f"{prefix}.{name}", amount, int(_number(written) * factor))

    def _mib_of(self, written: str | int) -> Fraction:
        """How many MiB one unit of a written amount of memory is."""
        if quantity.has_binary_suffix(written):
            return Fraction(1, quantity.MIB)
        return Fraction(self._nvidia.memory_factor)


def _memory_of(demand: Demand) -> int | None:
    """MiB of the claim; None: it depends on the devices that it gets."""
    for request in demand.requests:
        if request.mode == "Exclusive" or request.part is not None or request.memory_mib is None:
            return None
    return together(demand, lambda request: request.memory_mib or 0)


def _number(text: str | int) -> Fraction:
    """The number; what cannot be read lets nothing through."""
    try:
        return quantity.parse(text)
    except QuantityError:
        return Fraction(0)
