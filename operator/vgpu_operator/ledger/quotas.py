"""Quotas: the limits of namespaces on devices, memory and compute, and the usage of their claims.

A ResourceQuota limits the configured resource names, prefixed with `requests.` or `limits.`. For
Kubernetes, `requests.` counts pods, which request one device per container whatever the claim
holds, and `limits.` counts nothing. Here both count what claims hold, including claims without a
pod (HAMi gives `limits.` that meaning). All limits apply, so the lowest one decides; a limit of 0
lets nothing through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from vgpu_api import quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import PodScopes, ResourceQuota
from vgpu_api.core.quota import ResourceQuotaSpec
from vgpu_api.errors import QuantityError
from vgpu_operator.demand import Demand
from vgpu_operator.ledger.shares import ClaimShares
from vgpu_operator.placement.constraints import UNLIMITED, Budget, together

_PREFIXES = ("requests", "limits")


@dataclass(slots=True)
class _QuotaUse:
    memory_mib: int = 0
    cores: int = 0
    devices: int = 0

    def add(self, shares: ClaimShares, times: int = 1) -> None:
        """Add a claim's usage, or subtract it if `times` is -1."""
        self.devices += times * shares.device_count
        for share in shares.devices.values():
            self.memory_mib += times * share.use.memory_mib
            self.cores += times * share.use.cores

    def plus(self, other: _QuotaUse) -> _QuotaUse:
        """Return the sum."""
        return _QuotaUse(
            self.memory_mib + other.memory_mib,
            self.cores + other.cores,
            self.devices + other.devices,
        )


@dataclass(frozen=True, slots=True)
class _Limit:
    """One entry of a quota.

    Attributes:
        resource: The resource as the quota spells it.
        amount: The name of the field of `_QuotaUse` that it limits.
        hard: The limit in MiB, percent of compute or devices.
    """

    resource: str
    amount: str
    hard: int


@dataclass(slots=True)
class _Quota:
    """A quota on devices: its scopes, its limits, and the usage of the claims that it counts."""

    spec: ResourceQuotaSpec
    limits: tuple[_Limit, ...]
    held: _QuotaUse


@dataclass(frozen=True, slots=True)
class QuotaAmount:
    """One limit of a quota and how much of it is used.

    Attributes:
        namespace: The namespace.
        name: The quota's name.
        resource: The resource as the quota spells it.
        used: What claims hold, in MiB, percent of compute or devices.
        hard: The limit in the same unit.
    """

    namespace: str
    name: str
    resource: str
    used: int
    hard: int


class Quotas:
    """The quotas and the usage of all namespaces.

    A quota with scopes counts only claims whose pod matches them, and no claim without a pod.

    Args:
        config: The names of the resources.
    """

    def __init__(self, *, config: ClusterConfig) -> None:
        self._nvidia = config.nvidia
        self._quotas: dict[str, dict[str, _Quota]] = {}  # namespace → name → a quota of devices
        self._versions: dict[tuple[str, str], int] = {}
        self._held: dict[str, dict[PodScopes | None, _QuotaUse]] = {}  # by namespace
        self._grown: dict[str, int] = {}  # namespace → how often more became free

    def apply(self, quota: ResourceQuota) -> None:
        """Record an added or updated quota."""
        metadata = quota.metadata
        namespace, version = metadata.namespace or "", int(metadata.resource_version)
        if version <= self._versions.get((namespace, metadata.name), -1):
            return
        self._versions[namespace, metadata.name] = version
        known = self._quotas.get(namespace, {}).get(metadata.name)
        # Kubernetes writes a quota's status whenever pods come and go; only a changed spec matters
        # here.
        if known is not None and known.spec == quota.spec:
            return
        self._drop(namespace, metadata.name)
        limits = tuple(self._read(quota))
        if limits:
            held = _QuotaUse()
            for scopes, use in self._held.get(namespace, {}).items():
                held = held.plus(use) if quota.spec.counts(scopes) else held
            of_namespace = self._quotas.setdefault(namespace, {})
            of_namespace[metadata.name] = _Quota(quota.spec, limits, held)
            self._count(namespace)

    def remove(self, namespace: str, name: str) -> None:
        """Forget a quota."""
        self._versions.pop((namespace, name), None)
        self._drop(namespace, name)

    def _drop(self, namespace: str, name: str) -> None:
        quotas = self._quotas.get(namespace, {})
        if quotas.pop(name, None) is not None:
            self._count(namespace)
            if not quotas:
                del self._quotas[namespace]

    def version(self, namespace: str) -> int:
        """Return a number that grows whenever the namespace may take more than before."""
        return self._grown.get(namespace, 0)

    def move(
        self,
        namespace: str,
        *,
        before: ClaimShares,
        after: ClaimShares,
        scopes: PodScopes | None = None,
    ) -> None:
        """Replace `before` by `after` in the usage of a claim whose pod has these scopes."""
        uses = [self._held.setdefault(namespace, {}).setdefault(scopes, _QuotaUse())]
        for quota in self._quotas.get(namespace, {}).values():
            if quota.spec.counts(scopes):
                uses.append(quota.held)
        for use in uses:
            use.add(before, -1)
            use.add(after)

    def left(self, namespace: str, scopes: PodScopes | None = None) -> Budget:
        """Return the amounts that a pod, or a claim without a pod, may still take.

        An amount is negative if the usage exceeds the quota.

        Args:
            namespace: The namespace.
            scopes: The properties that scopes select by; None if there is no pod.
        """
        quotas = self._quotas.get(namespace)
        if quotas is None:
            return UNLIMITED
        left: dict[str, int] = {}
        for quota in quotas.values():
            if quota.spec.counts(scopes):
                for limit in quota.limits:
                    free = limit.hard - getattr(quota.held, limit.amount)
                    # Several quotas may limit the same amount; Kubernetes requires all of them to
                    # be met.
                    left[limit.amount] = min(left.get(limit.amount, free), free)
        return Budget(**left) if left else UNLIMITED

    def amounts(self) -> Iterator[QuotaAmount]:
        """Yield every limit and its usage; another thread may call this."""
        # Copied first, because metrics are read in another thread while the loop changes the
        # dictionaries.
        for namespace, quotas in list(self._quotas.items()):
            for name, quota in list(quotas.items()):
                for limit in quota.limits:
                    used = getattr(quota.held, limit.amount)
                    yield QuotaAmount(namespace, name, limit.resource, used, limit.hard)

    def exceeded(
        self, namespace: str, demand: Demand, scopes: PodScopes | None = None
    ) -> list[str]:
        """Return the limits that a claim refused by quota exceeds, in Kubernetes' format.

        If the request is for a whole device or a percentage, its memory depends on the device. Then
        any memory limit may be exceeded, so all are listed, without an amount.
        """
        return [line for line, _ in self._exceeded(namespace, demand, scopes)]

    def surely_exceeded(
        self, namespace: str, demand: Demand, scopes: PodScopes | None = None
    ) -> list[str]:
        """Return, in the same format, the limits that a claim exceeds regardless of its devices."""
        return [line for line, is_sure in self._exceeded(namespace, demand, scopes) if is_sure]

    def _exceeded(
        self, namespace: str, demand: Demand, scopes: PodScopes | None
    ) -> Iterator[tuple[str, bool]]:
        """Yield each exceeded limit as text, and True if every device would exceed it."""
        requested = {
            "devices": together(demand, lambda _: 1),
            "memory_mib": _memory_of(demand),
            "cores": together(demand, lambda request: request.cores),
        }
        for name, quota in sorted(self._quotas.get(namespace, {}).items()):
            for limit in quota.limits if quota.spec.counts(scopes) else ():
                used, more = getattr(quota.held, limit.amount), requested[limit.amount]
                if more is None or used + more > limit.hard:
                    addition = "" if more is None else f"requested: {limit.resource}={more}, "
                    line = (
                        f"exceeded quota: {name}, {addition}used: {limit.resource}={used}, "
                        f"limited: {limit.resource}={limit.hard}"
                    )
                    yield line, more is not None

    def may_take_more(self, namespace: str) -> None:
        """Record that the namespace has released capacity."""
        if namespace in self._quotas:
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
        """Return the MiB in one unit of a quantity of memory."""
        if quantity.has_binary_suffix(written):
            return Fraction(1, quantity.MIB)
        return Fraction(self._nvidia.memory_factor)


def _memory_of(demand: Demand) -> int | None:
    """Return a claim's memory in MiB; None if it depends on the devices that the claim gets."""
    for request in demand.requests:
        if request.mode == "Exclusive" or request.part is not None or request.memory_mib is None:
            return None
    return together(demand, lambda request: request.memory_mib or 0)


def _number(text: str | int) -> Fraction:
    """Parse a number; 0 if it is invalid, so that the quota lets nothing through."""
    try:
        return quantity.parse(text)
    except QuantityError:
        return Fraction(0)
