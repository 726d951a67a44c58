"""Quotas: what namespaces may hold of all cards together, and what they hold.

`limits.<memory>` and `limits.<cores>` of a ResourceQuota are legal in Kubernetes but enforced by
nobody there; HAMi gives them their meaning. Of several quotas each must be kept, so the least
counts; a limit of 0 lets nothing through.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from vgpu_api import quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import ResourceQuota
from vgpu_api.errors import QuantityError
from vgpu_operator.ledger.holdings import Holding
from vgpu_operator.placement.bounds import UNLIMITED, Budget


@dataclass(slots=True)
class _Held:
    memory_mib: int = 0
    cores: int = 0


class Quotas:
    """Limits by quota object, and use by namespace.

    Args:
        config: The names of the resources.
    """

    def __init__(self, *, config: ClusterConfig) -> None:
        self._nvidia = config.nvidia
        self._limits: dict[str, dict[str, Budget]] = {}  # namespace → quota → its limits
        self._versions: dict[tuple[str, str], int] = {}
        self._held: dict[str, _Held] = {}
        self._grown: dict[str, int] = {}  # namespace → how often it could take more

    def apply(self, quota: ResourceQuota) -> None:
        """A quota was added or changed."""
        metadata = quota.metadata
        namespace, version = metadata.namespace or "", int(metadata.resource_version)
        if version <= self._versions.get((namespace, metadata.name), -1):
            return
        self._versions[namespace, metadata.name] = version
        limits = self._limits.setdefault(namespace, {})
        before = limits.get(metadata.name, UNLIMITED)
        limits[metadata.name] = self._read(quota)
        if limits[metadata.name] != before:
            self._grow(namespace)

    def remove(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        self._versions.pop((namespace, name), None)
        limits = self._limits.get(namespace, {})
        if limits.pop(name, UNLIMITED).is_limited:
            self._grow(namespace)
        if not limits:
            self._limits.pop(namespace, None)

    def version(self, namespace: str) -> int:
        """Grows whenever the namespace may take more than before; its limits may have changed."""
        return self._grown.get(namespace, 0)

    def move(self, namespace: str, *, before: Holding, after: Holding) -> None:
        """A claim of the namespace holds `after` where it held `before`."""
        held = self._held.setdefault(namespace, _Held())
        for hold in before.cards.values():
            held.memory_mib -= hold.use.memory_mib
            held.cores -= hold.use.cores
        for hold in after.cards.values():
            held.memory_mib += hold.use.memory_mib
            held.cores += hold.use.cores

    def left(self, namespace: str) -> Budget:
        """What the namespace may still take; below 0 where it holds more than it may."""
        limits = self._limits.get(namespace)
        if not limits:
            return UNLIMITED
        held = self._held.get(namespace, _Held())
        memory = [limit.memory_mib for limit in limits.values() if limit.memory_mib is not None]
        cores = [limit.cores for limit in limits.values() if limit.cores is not None]
        return Budget(
            min(memory) - held.memory_mib if memory else None,
            min(cores) - held.cores if cores else None,
        )

    def may_take_more(self, namespace: str) -> None:
        """Something that the namespace held has become free."""
        if namespace in self._limits:
            self._grow(namespace)

    def _grow(self, namespace: str) -> None:
        self._grown[namespace] = self._grown.get(namespace, 0) + 1

    def _read(self, quota: ResourceQuota) -> Budget:
        hard, nvidia = quota.spec.hard, self._nvidia
        memory = hard.get(f"limits.{nvidia.resource_memory_name}")
        cores = hard.get(f"limits.{nvidia.resource_core_name}")
        if memory is None:
            return Budget(None, None if cores is None else int(_number(cores)))
        bytes_ = quantity.has_binary_suffix(memory)
        factor = Fraction(1, quantity.MIB) if bytes_ else Fraction(nvidia.memory_factor)
        mib = int(_number(memory) * factor)
        return Budget(mib, None if cores is None else int(_number(cores)))


def _number(text: str | int) -> Fraction:
    """The number; what cannot be read lets nothing through."""
    try:
        return quantity.parse(text)
    except QuantityError:
        return Fraction(0)
