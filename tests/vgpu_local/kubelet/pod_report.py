"""What is written of one pod: its status whenever it changed, again until it is taken.

Apart from the loop that runs the pod (`worker.py`): containers start and end whether or not
it can be written, and what is written is always how things are by then.
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
    """Reports on a pod.

    Args:
        raw: the pod's object.
        writer: writes to the API server.
        retry_s: before something is written again that was not taken.
        status: the pod's status as it is now, made from the conditions that stand.

    Attributes:
        raw: the newest version of the object.
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
        """There is something to write."""
        self._changed.set()

    async def run(self, *, over: Callable[[], bool]) -> None:
        """Write every change, but for the end: that is written once, when nothing runs any more."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not over():
                await self.tell()

    async def tell(self) -> None:
        """Write the status as it is now."""
        await self._persist(self._write)

    async def remove(self) -> None:
        """Remove the pod from the API server."""
        await self._persist(lambda: self._writer.remove(self.raw))

    async def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An event on the pod; one that is not taken is lost."""
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
