"""What a claim really uses of each device at its worst moment.

App containers run together, so they add up; ordinary init containers run alone and before, so
they count by their peak. Per device: max(init peak, app sum) of memory and cores; slots =
max(1 if any init container asks, number of app containers). Ledger, agent and the tests' checker
all count by this one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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

    A device of a request that the spec does not name counts as an app container's: never less
    than the truth.
    """
    init_requests = {request.name for request in spec.requests if request.phase == "Init"}
    app: dict[str, Use] = {}
    init: dict[str, Use] = {}
    for device in devices:
        use = Use(device.memory_mib, device.cores, 1)
        if device.request in init_requests:
            init[device.uuid] = init.get(device.uuid, Use()).peak(use)
        else:
            app[device.uuid] = app.get(device.uuid, Use()) + use
    return {uuid: app.get(uuid, Use()).peak(init.get(uuid, Use())) for uuid in {**init, **app}}
