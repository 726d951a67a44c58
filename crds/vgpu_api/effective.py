"""Computes the peak use of each device by a claim.

Kubernetes starts init containers one after the other, then all app containers. A sidecar is an init
container that keeps running, so it runs beside every container that starts after it. The peak of
memory, cores and slots on a device is the larger of two amounts: the sum over app containers and
sidecars, and the most that an ordinary init container uses together with the sidecars before it.

The claim's requests follow the order in which the pod starts its containers. Sidecars and app
containers both have phase App, so an App request before an Init request belongs to a sidecar.
Source: Kubernetes, Sidecar containers, Resource sharing within containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from vgpu_api.v1alpha1.vgpuclaim import AllocatedDevice, VGPUClaimSpec

if TYPE_CHECKING:
    from vgpu_api.core.pod import Pod  # slow to load, and `kubectl vgpu get` needs none


@dataclass(frozen=True, slots=True)
class Use:
    """An amount of a device: MiB of memory, percent of compute, slots."""

    memory_mib: int = 0
    cores: int = 0
    slots: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.memory_mib + other.memory_mib, self.cores + other.cores, self.slots + other.slots
        )

    def __sub__(self, other: Use) -> Use:
        return Use(
            self.memory_mib - other.memory_mib, self.cores - other.cores, self.slots - other.slots
        )

    def peak(self, other: Use) -> Use:
        """Return the larger of two amounts for each field."""
        return Use(
            max(self.memory_mib, other.memory_mib),
            max(self.cores, other.cores),
            max(self.slots, other.slots),
        )


def effective_use(spec: VGPUClaimSpec, devices: Iterable[AllocatedDevice]) -> Mapping[str, Use]:
    """Return the peak use of each device, by UUID, for an allocation made for `spec`.

    A device whose request the spec does not name counts as if a sidecar used it beside all other
    containers, so the result is never too low.
    """
    turns = {request.name: (turn, request.phase) for turn, request in enumerate(spec.requests)}
    unknown = -1, "App"
    running: dict[str, Use] = {}
    peak: dict[str, Use] = {}
    # Devices are stored in the order of their requests, but no rule forces writers to keep it.
    for device in sorted(devices, key=lambda device: turns.get(device.request, unknown)[0]):
        uuid = device.uuid
        started = running.get(uuid, Use()) + Use(device.memory_mib, device.cores, 1)
        peak[uuid] = peak.get(uuid, Use()).peak(started)
        if turns.get(device.request, unknown)[1] == "App":
            running[uuid] = started
    return peak


def out_of_order(
    spec: VGPUClaimSpec, containers: Sequence[str], pod: Pod
) -> tuple[str, str] | None:
    """Return two containers that start in the opposite order of their requests, first one first.

    Only the order between init containers and other containers matters, because it decides which of
    them run at the same time.

    Args:
        spec: The claim's spec.
        containers: The container for each of its requests, in the order of the requests.
        pod: The pod with these containers.
    """
    starts = (*pod.spec.init_containers, *pod.spec.containers)
    turns = {container.name: turn for turn, container in enumerate(starts)}
    phases = (request.phase for request in spec.requests)
    asking = [each for each in zip(containers, phases, strict=True) if each[0] in turns]
    for (earlier, its_phase), (later, phase) in combinations(asking, 2):
        if phase != its_phase and turns[earlier] > turns[later]:
            return later, earlier
    return None
