"""The target workload of fragmentation: the typical mix of requests.

The requests of observed claims are counted, and the counts are halved from time to time. The mix
consists of the most frequent types that make up 95 % of them. It changes in steps, because each
change invalidates the fragmentation of all nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.placement.device_conditions import Findings

_SHARE = 0.95
_STEP = 1_000
"""The number of requests between two updates of an existing mix."""
_REQUESTS_KEPT = 64
_ALL_UNTIL = 1_000
_ONE_IN = 8
"""After `_ALL_UNTIL` claims, one in this many is sampled, which is enough for a mix."""
_STATES_KEPT = 65_536
_WINDOW = 16_000
"""The sum of all counts at which they are halved."""

DeviceState: TypeAlias = Hashable
"""A device's condition, with the level of its node's free CPU if that is not 0."""


class View(NamedTuple):
    """The idle share of a device and how typical requests can use it.

    Attributes:
        idle: The idle share, in thousandths of a device.
        useless: The part of it that typical requests cannot use, weighted by their frequency. Types
            with several devices count as unable to use it.
        several: The numbers of the types with several devices that fit on the device.
    """

    idle: float
    useless: float
    several: tuple[int, ...]


class Mix:
    """The types of requests and their frequencies.

    Attributes:
        version: Incremented with every change of the types.
        types: (frequency, request) by descending frequency, as fractions of everything seen.
        total: The sum of these frequencies and of the frequency of pods that request no device.
        cpu_levels: By type, the least level of a node's free CPU at which it can run.
        rises: By request and device state, how much F rises with the request on the device;
            infinite if it does not fit. Only for devices where the node's other devices do not
            matter.
    """

    def __init__(self) -> None:
        self.version = 0
        self.types: tuple[tuple[float, RequestDemand], ...] = ()
        self.total = 0.0
        self.cpu_levels: tuple[int, ...] = ()
        self._steps: tuple[int, ...] = ()
        self._views: dict[DeviceState, View] = {}
        self.rises: Findings[DeviceState, float] = Findings(
            questions=_REQUESTS_KEPT, answers=_STATES_KEPT
        )
        self._offered = 0
        self._counts: dict[RequestDemand | None, float] = {}
        self._seen = 0.0
        self._until_step = 1

    # Caches of `fragmentation`, valid until the types change.

    @property
    def views(self) -> dict[DeviceState, View]:
        """Return the views by device state; the caller adds new ones."""
        if len(self._views) > _STATES_KEPT:
            self._views.clear()
        return self._views

    def forget(self) -> None:
        """Drop all caches, because conditions are renumbered or the types have changed."""
        self._views.clear()
        self.rises.forget()

    # The types.

    @property
    def knows_cpu(self) -> bool:
        """True if any type requests CPU, so that a node's free CPU matters."""
        return bool(self._steps)

    def level(self, free_milli: int) -> int:
        """Return the number of CPU amounts, among those that types request, that are free."""
        return bisect_right(self._steps, free_milli) if self._steps else 0

    def wants_next(self) -> bool:
        """Return True if the next new claim should be passed to `observe`."""
        self._offered += 1
        early = self._offered <= _ALL_UNTIL
        return early or self._offered % _ONE_IN == 0

    def observe(self, demand: Demand | None) -> None:
        """Count a new claim, or a new pod that requests no device (None)."""
        for kind in [None] if demand is None else [type_of(request) for request in demand.requests]:
            self._counts[kind] = self._counts.get(kind, 0.0) + 1.0
            self._seen += 1.0
            self._until_step -= 1
        if self._seen >= _WINDOW:
            # Drop types below one request, so that rare ones do not accumulate.
            self._seen /= 2
            self._counts = {k: half for k, v in self._counts.items() if (half := v / 2) >= 1.0}
        if self._until_step <= 0:
            # Update often at first, when each request changes the mix a lot, and then in steps.
            self._until_step = min(_STEP, int(self._seen))
            self.set_types(*self._most_frequent())

    def _most_frequent(self) -> tuple[tuple[tuple[float, RequestDemand], ...], float]:
        """Return the types with their frequencies, and the frequency of pods without devices."""
        total = sum(self._counts.values())
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], _spelled(item[0])))
        chosen: list[tuple[float, RequestDemand]] = []
        covered = without_devices = 0.0
        for kind, count in ranked:
            if covered >= _SHARE * total:
                break
            covered += count
            if kind is None:
                without_devices = count / total
            else:
                chosen.append((count / total, kind))
        return tuple(chosen), without_devices

    def set_types(
        self, types: tuple[tuple[float, RequestDemand], ...], without_devices: float
    ) -> None:
        """Replace the mix. If it is unchanged, the caches stay valid.

        Args:
            types: Frequencies and requests from `type_of`, by descending frequency.
            without_devices: The frequency of pods that request no device. They cannot use any idle
                share.
        """
        total = sum(frequency for frequency, _ in types) + without_devices
        if (types, total) != (self.types, self.total):
            self.types = types
            self.total = total
            self._steps = tuple(sorted({kind.cpu_milli for _, kind in types} - {0}))
            self.cpu_levels = tuple(self.level(kind.cpu_milli) for _, kind in types)
            self.forget()
            self.version += 1


def type_of(request: RequestDemand) -> RequestDemand:
    """Return the request without the fields that do not affect where it fits."""
    return replace(
        request,
        name="",
        phase="App",
        core_policy="Default",
        priority=None,
        uuids=frozenset(),
        exclude_uuids=frozenset(),
    )


def _spelled(request: RequestDemand | None) -> str:
    """Return a sort key for a type that is the same in every process."""
    return repr(request)
