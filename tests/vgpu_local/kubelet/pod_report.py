"""Writes the status of one pod whenever it changes, and repeats failed writes.

This is separate from the loop that runs the pod (`worker.py`), so that containers start and end
even if nothing can be written. Each write has the status as of that moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from vgpu_client.errors import ClientError
from vgpu_client.transport import Object
from vgpu_local.podwriter import PodWriter

log = logging.getLogger(__name__)


class PodReport:
    """The reports about a pod.

    Args:
        raw: The pod's object.
        writer: Writes to the API server.
        retry_s: The wait before a failed write is repeated.
        status: Returns the pod's current status, given its conditions.

    Attributes:
        raw: The newest version of the object.
    """

    def __init__(
        self,
        raw: Object,
        writer: PodWriter,
        *,
        retry_s: float,
        status: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]],
    ) -> None:
        self.raw = raw
        self._writer = writer
        self._retry_s = retry_s
        self._status = status
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Request that the status be written, because it has changed."""
        self._changed.set()

    async def run(self, *, over: Callable[[], bool]) -> None:
        """Write every change; the end is written only once, when nothing runs any more."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not over():
                await self.tell()

    async def tell(self) -> None:
        """Write the current status."""
        await self._persist(self._write)

    async def remove(self) -> None:
        """Remove the pod from the API server."""
        await self._persist(lambda: self._writer.remove(self.raw))

    async def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Write an event on the pod; it is lost if the API server does not accept it."""
        await self._writer.event(self.raw, kind, reason, message)

    async def _write(self) -> None:
        written = await self._writer.write_status(self.raw, self._status)
        if written is not None and _version(written) > _version(self.raw):
            self.raw = written

    async def _persist(self, write: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await write()
                return
            except ClientError as error:
                log.info("pod %s: %s", self.raw["metadata"]["name"], error)
                await asyncio.sleep(self._retry_s)


def _version(raw: Object) -> int:
    return int(raw["metadata"]["resourceVersion"])
