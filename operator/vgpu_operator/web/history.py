"""The use of the last 24 hours, asked from Prometheus when somebody looks at it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from vgpu_api.quantity import MIB
from vgpu_client.clock import Clock
from vgpu_operator.web.prometheus import Prometheus
from vgpu_operator.web.usage import (
    CLAIM_CORES,
    CLAIM_MEMORY,
    DEVICE_CORES,
    DEVICE_MEMORY,
    UsageUnread,
    WantedSeries,
)

STEP_S = 900
POINTS = 96
KEPT_S = 300.0
"""Seconds for which an answer is kept: a new point comes every 15 minutes."""
REFUSED_S = 15.0
_KEPT = 256
_AT_ONCE = 2
"""Questions to Prometheus at the same time: each reads a day of series."""
_NO_PROMETHEUS = "a Prometheus is needed: set web.prometheus in the configuration"

Document: TypeAlias = dict[str, Any]
Points: TypeAlias = Sequence[float | None]


class History:
    """Returns the last 24 hours of a use.

    Args:
        prometheus: Where to ask; None: nothing is configured, and every history is unknown.
        clock: The time.
    """

    def __init__(self, prometheus: Prometheus | None, clock: Clock) -> None:
        self._prometheus = prometheus
        self._clock = clock
        self._kept: OrderedDict[WantedSeries, tuple[float, Document]] = OrderedDict()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def of(self, wanted: WantedSeries) -> Document:
        """Return the points, or the problem because of which there are none."""
        if self._prometheus is None:
            return {"problem": _NO_PROMETHEUS}
        kept = self._kept.get(wanted)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        try:
            async with self._room:
                document = await self._asked(self._prometheus, wanted)
            good_for = KEPT_S
        except UsageUnread as error:
            document, good_for = {"problem": str(error)}, REFUSED_S
        self._kept[wanted] = self._clock.monotonic() + good_for, document
        self._kept.move_to_end(wanted)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return document

    async def _asked(self, prometheus: Prometheus, wanted: WantedSeries) -> Document:
        end = int(self._clock.unix()) // STEP_S * STEP_S
        start = end - STEP_S * POINTS
        names = (CLAIM_MEMORY, CLAIM_CORES) if wanted.of_claims else (DEVICE_MEMORY, DEVICE_CORES)
        memory, cores = [
            await prometheus.query_range(
                prometheus.summed(name, **dict(wanted.labels)), start=start, end=end, step_s=STEP_S
            )
            for name in names
        ]
        return {
            "problem": "",
            "start": start,
            "stepS": STEP_S,
            "memoryMiB": _points(memory, start, 1 / MIB),
            "cores": _points(cores, start, 100.0),
        }


def _points(values: Mapping[int, float], start: int, factor: float) -> Points:
    """Return the value at each step; None where there is none."""
    times = range(start, start + STEP_S * POINTS + 1, STEP_S)
    return [round(values[at] * factor, 1) if at in values else None for at in times]
