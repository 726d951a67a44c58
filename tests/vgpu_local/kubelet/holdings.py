"""Which container holds which devices: the kubelet's own bookkeeping, without any I/O.

The rules are the kubelet's. Devices of one resource are interchangeable. What an ordinary init
container held goes to the later containers of its pod first; a sidecar keeps its own. What a pod
held is given up lazily, at the next request, and only if the pod is no longer active.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

NO_NUMA = -1
"""NUMA node under which the kubelet files a device that has none."""


class AdmissionError(Exception):
    """The pod cannot run on this node; the text is what the kubelet puts into its status."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device a plugin offers."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container got of one resource.

    Attributes:
        device_ids: sorted.
        numa: the NUMA nodes of each device, in the order of `device_ids`.
        response: the plugin's ContainerAllocateResponse, serialised.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    numa: tuple[tuple[int, ...], ...]
    response: bytes


@dataclass(slots=True)
class Holdings:
    """All holdings of a node. Only the admission of a pod adds to it."""

    _entries: dict[tuple[str, str, str], Holding] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._entries.values()))

    def add(self, holding: Holding) -> None:
        """Record one container's devices."""
        self._entries[holding.pod_uid, holding.container, holding.resource] = holding

    def find(self, pod_uid: str, container: str, resource: str) -> Holding | None:
        """Return what a container holds of a resource, if anything."""
        return self._entries.get((pod_uid, container, resource))

    def of_container(self, pod_uid: str, container: str) -> list[Holding]:
        """Return what a container holds of all resources, by resource name."""
        mine = (h for h in self if h.pod_uid == pod_uid and h.container == container)
        return sorted(mine, key=lambda holding: holding.resource)

    def in_use(self, resource: str) -> set[str]:
        """Return the ids that are held."""
        return {i for h in self if h.resource == resource for i in h.device_ids}

    def clear(self) -> None:
        """Forget everything, as a kubelet that starts without its checkpoint."""
        self._entries.clear()

    def keep_only(self, active: Collection[str]) -> bool:
        """Forget the pods (by UID) that are no longer active; return whether there were any."""
        gone = [key for key in self._entries if key[0] not in active]
        for key in gone:
            del self._entries[key]
        return bool(gone)


def pick(
    *,
    resource: str,
    needed: int,
    healthy: Collection[str],
    in_use: Collection[str],
    reusable: Collection[str],
    order: random.Random,
) -> tuple[str, ...]:
    """Choose the devices of one container: those of earlier init containers first, then any free.

    Args:
        resource: its name, for the texts.
        needed: how many devices.
        healthy: ids that the plugin reports as healthy.
        in_use: ids held by anybody, this pod included.
        reusable: ids that ordinary init containers of this pod hold.
        order: the kubelet picks in no order at all, and a plugin must not rely on any.

    Raises:
        AdmissionError: there are too few.
    """
    if not healthy:
        raise AdmissionError(
            f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        )
    again = sorted(set(reusable) & set(healthy))[:needed]
    free = sorted(set(healthy) - set(in_use))
    missing = needed - len(again)
    if len(free) < missing:
        raise AdmissionError(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {missing}, Available: {len(free)}"
        )
    return tuple(sorted(again + order.sample(free, missing)))
