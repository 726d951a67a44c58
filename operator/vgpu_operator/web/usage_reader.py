"""Keeps the usage that the page shows up to date while somebody looks at the page."""

from __future__ import annotations

from vgpu_client.clock import Clock
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.usage import FleetUsage, UsageSource, UsageUnread

EVERY_S = 15.0


class FleetUsageReader:
    """Reads the usage again and again, and rests while nobody looks.

    Args:
        mirror: Takes the usage.
        source: Where it is read.
        clock: The time.
    """

    def __init__(self, mirror: Mirror, source: UsageSource, clock: Clock) -> None:
        self._mirror = mirror
        self._source = source
        self._clock = clock

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._mirror.looked()
            try:
                usage = await self._source.usage()
            except UsageUnread as error:
                usage = FleetUsage(problem=str(error))
            self._mirror.take_usage(usage)
            await self._clock.sleep(EVERY_S)
