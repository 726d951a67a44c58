"""The typical mix: which requests come most often, the measure of what is a fragment.

Counted in claims seen, with a window that decays by halves; the types that make up 95 % of it are
the mix. It changes in steps, since every step makes all nodes' fragmentation new.
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
"""Requests between two looks at the mix, once there is one."""
_REQUESTS_KEPT = 64
_ALL_UNTIL = 1_000
_ONE_IN = 8
"""Of more claims than that, one in so many is sampled: a mix needs no more."""
_STATES_KEPT = 65_536
_WINDOW = 16_000
"""Weight of everything seen, in requests, at which it is halved."""

DeviceState: TypeAlias = Hashable
"""A device's condition, and the level of its node's free CPU if that is not 0."""


class View(NamedTuple):
    """What fragmentation needs to know of a device.

    Attributes:
        idle: Its idle share, in thousandths of a device.
        useless: Of that, what typical requests cannot use; those for several devices cannot here.
        several: Those types for several devices that it has room for, by number.
    """

    idle: float
    useless: float
    several: tuple[int, ...]


class Mix:
    """The types and their frequencies.

    Attributes:
        version: Grows with every change of the types.
        types: (frequency, request) in falling frequency; frequencies as fractions of all seen.
        total: The sum of these frequencies, and of that of pods that ask for no device.
        needs: By type: the level that a node's free CPU must have at least.
        rises: By request and the state of a device, how much F rises with the request on it
            (infinitely: it does not fit), where the node's other devices do not matter.
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

    # What `fragmentation` remembers, for as long as the types hold.

    @property
    def views(self) -> dict[DeviceState, View]:
        """By the state of a device; to be filled."""
        if len(self._views) > _STATES_KEPT:
            self._views.clear()
        return self._views

    def forget(self) -> None:
        """Devices' conditions have other numbers from now on."""
        self._views.clear()
        self.rises.forget()

    # What the types are.

    @property
    def knows_cpu(self) -> bool:
        """Whether any type asks for CPU: then a node's free CPU matters."""
        return bool(self._steps)

    def level(self, free_milli: int) -> int:
        """How many of the amounts of CPU that types ask for are free, the least first."""
        return bisect_right(self._steps, free_milli) if self._steps else 0

    def wants_next(self) -> bool:
        """Whether the next new claim should be given to `observe`."""
        self._offered += 1
        early = self._offered <= _ALL_UNTIL
        return early or self._offered % _ONE_IN == 0

    def observe(self, demand: Demand | None) -> None:
        """A claim, or a pod that asks for no device (None), was seen for the first time."""
        for kind in [None] if demand is None else [type_of(request) for request in demand.requests]:
            self._counts[kind] = self._counts.get(kind, 0.0) + 1.0
            self._seen += 1.0
            self._until_step -= 1
        if self._seen >= _WINDOW:
            self._seen /= 2
            self._counts = {k: half for k, v in self._counts.items() if (half := v / 2) >= 1.0}
        if self._until_step <= 0:
            self._until_step = min(_STEP, int(self._seen))  # quick at first, then in steps
            self.set_types(*self._most_frequent())

    def _most_frequent(self) -> tuple[tuple[tuple[float, RequestDemand], ...], float]:
        """The types with their frequencies, and the frequency of no device at all."""
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
        """Replace the mix; types that are the same leave what is remembered of them.

        Args:
            types: Frequencies and requests as `type_of` makes them, in falling frequency.
            without_devices: The frequency of pods that ask for no device: nothing idle serves them.
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
    """The request without what does not decide where it fits."""
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
    """An order among types that is the same in every process."""
    return repr(request)
