"""The kubelet's bookkeeping of the devices that containers hold, without any I/O.

The rules are the kubelet's. Devices of one resource are interchangeable. The devices of an ordinary
init container go first to later containers of its pod, while a sidecar keeps its own. The devices
of a pod that is no longer active are freed at the next request.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

NO_NUMA = -1
"""The number that the kubelet uses for devices without a NUMA node."""


class AdmissionError(Exception):
    """The pod cannot run on this node; the text is the message in its status."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a plugin offers."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices of one resource that a container holds.

    Attributes:
        device_ids: The ids, sorted.
        numa: The NUMA nodes of each device, in the order of `device_ids`.
        response: The plugin's ContainerAllocateResponse, serialised.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    numa: tuple[tuple[int, ...], ...]
    response: bytes


@dataclass(slots=True)
class Holdings:
    """All holdings of a node; only the admission of a pod adds to them."""

    _entries: dict[tuple[str, str, str], Holding] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._entries.values()))

    def add(self, holding: Holding) -> None:
        """Record one container's devices."""
        self._entries[holding.pod_uid, holding.container, holding.resource] = holding

    def find(self, pod_uid: str, container: str, resource: str) -> Holding | None:
        """Return a container's holding of a resource, or None."""
        return self._entries.get((pod_uid, container, resource))

    def of_container(self, pod_uid: str, container: str) -> list[Holding]:
        """Return all holdings of a container, ordered by resource name."""
        mine = (h for h in self if h.pod_uid == pod_uid and h.container == container)
        return sorted(mine, key=lambda holding: holding.resource)

    def in_use(self, resource: str) -> set[str]:
        """Return the ids of the devices that are held."""
        return {i for h in self if h.resource == resource for i in h.device_ids}

    def clear(self) -> None:
        """Forget everything, as a kubelet that starts without its checkpoint."""
        self._entries.clear()

    def keep_only(self, active: Collection[str]) -> bool:
        """Forget the pods that are no longer active; return True if there were any."""
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
        resource: The name of the resource, for messages.
        needed: The number of devices.
        healthy: The ids that the plugin reports as healthy.
        in_use: The ids held by any pod, including this one.
        reusable: The ids held by ordinary init containers of this pod.
        order: Shuffles the devices, since the kubelet picks them in no particular order.

    Raises:
        AdmissionError: There are too few devices.
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
