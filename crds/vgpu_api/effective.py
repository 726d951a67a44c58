"""How much of each device a claim uses at its worst moment.

Kubernetes starts init containers one after the other, then all app containers. A sidecar is an init
container that goes on running, so it runs beside every container that starts after it. Per device,
memory, cores and slots are each the greater of two amounts: the sum of app containers and sidecars,
and the most that any ordinary init container uses with the sidecars before it.

The claim's requests follow the order in which the pod starts its containers, and both sidecars
and app containers have phase App; so an App request before an Init request is a sidecar's.
Source: Kubernetes, Sidecar containers, Resource sharing within containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1.vgpuclaim import AllocatedDevice, VGPUClaimSpec


@dataclass(frozen=True, slots=True)
class Use:
    """An amount of one device: MiB of memory, percent of compute, slots."""

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
        """The greater of each, field by field."""
        return Use(
            max(self.memory_mib, other.memory_mib),
            max(self.cores, other.cores),
            max(self.slots, other.slots),
        )


def effective_use(spec: VGPUClaimSpec, devices: Iterable[AllocatedDevice]) -> Mapping[str, Use]:
    """Use per device (by UUID) of an allocation made for `spec`.

    A device of a request that the spec does not name counts as a sidecar's that runs beside all
    others: never less than the truth.
    """
    turns = {request.name: (turn, request.phase) for turn, request in enumerate(spec.requests)}
    unknown = -1, "App"
    running: dict[str, Use] = {}
    peak: dict[str, Use] = {}
    # Stored devices follow the order of the requests, but no rule makes a writer keep to it.
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
    """Return two containers that start in the opposite order of their requests, the first first.

    Only the order between init containers and the others decides what runs at the same time.

    Args:
        spec: The claim's.
        containers: Which container each of its requests means, in the order of the requests.
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
