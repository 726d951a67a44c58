"""A watch stream of another API server that can be cut, silenced or expired at any event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import orjson

from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.watches import Break, Dropped

__all__ = ["BrokenStream", "Dropped"]

_BOOKMARK = b'{"type":"BOOKMARK"'
_EXPIRED = StatusError(410, "Expired", "injected fault: the resourceVersion is too old")


class BrokenStream:
    """A stream that forwards the lines of another one until it is broken.

    Args:
        resource: The watched kind.
        source: The stream with one event in JSON per line.
    """

    def __init__(self, resource: str, source: aiohttp.StreamReader) -> None:
        self.resource = resource
        self._source = source
        self._left: int | None = None
        self._at_end: Break = "drop"
        self._how: Break | None = None
        self._broken = asyncio.Event()

    def break_off(self, how: Break) -> None:
        """Break the stream now."""
        self._how = how
        self._broken.set()

    def break_after(self, events: int, how: Break) -> None:
        """Break the stream after this many events, not counting bookmarks."""
        self._left, self._at_end = events, how
        if not events:
            self.break_off(how)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines until the source ends.

        Raises:
            Dropped: The stream must be cut without a proper end.
        """
        broken = asyncio.create_task(self._broken.wait())
        try:
            while not self._broken.is_set():
                reading = asyncio.create_task(self._source.readline())
                try:
                    await asyncio.wait({reading, broken}, return_when="FIRST_COMPLETED")
                    if self._broken.is_set():
                        break
                    line = reading.result()
                finally:
                    if not reading.done():
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
                if not line:
                    return
                if self._left is not None and not line.startswith(_BOOKMARK):
                    if self._left == 0:
                        self.break_off(self._at_end)
                        break
                    self._left -= 1
                yield line
        finally:
            broken.cancel()
        if self._how == "freeze":
            await self._thaw()
        if self._how == "gone":
            yield orjson.dumps({"type": "ERROR", "object": _EXPIRED.status()}) + b"\n"
            return
        raise Dropped

    async def _thaw(self) -> None:
        """Wait until the stream is broken in another way. A client that hangs up cancels this."""
        while self._how == "freeze":
            self._broken.clear()
            await self._broken.wait()
