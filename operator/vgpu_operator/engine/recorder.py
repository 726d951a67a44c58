"""Events for people: said once per change, never in the way of a decision.

An event is a courtesy: it is queued, written by one task, and dropped when the queue is full or
the API server does not take it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.event import create_event

logger = logging.getLogger(__name__)

_QUEUED = 1000
_REMEMBERED = 10_000
COMPONENT = "vgpu-operator"


@dataclass(frozen=True, slots=True)
class _Said:
    regarding: dict[str, Any]
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    at: float


class Recorder:
    """Says things about objects.

    Args:
        api: Where to.
        now: Unix time.
    """

    def __init__(self, api: Api, *, now: Callable[[], float]) -> None:
        self._api = api
        self._now = now
        self._queue: asyncio.Queue[_Said] = asyncio.Queue(_QUEUED)
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def say(
        self,
        *,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        uid: str,
        warning: bool = False,
        reason: str,
        message: str,
    ) -> None:
        """Queue an event about an object, unless the same was the last thing said of it."""
        if self._last.get(uid) == (reason, message):
            return
        self._last[uid] = (reason, message)
        self._last.move_to_end(uid)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        regarding = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
        }
        said = _Said(regarding, "Warning" if warning else "Normal", reason, message, self._now())
        try:
            self._queue.put_nowait(said)
        except asyncio.QueueFull:
            logger.warning("too many events; not said of %s %s: %s", kind, name, message)

    async def run(self) -> None:
        """Write what was queued, for ever."""
        while True:
            said = await self._queue.get()
            try:
                await create_event(
                    self._api,
                    said.regarding,
                    type=said.type,
                    reason=said.reason,
                    message=said.message,
                    component=COMPONENT,
                    now=datetime.fromtimestamp(said.at, UTC),
                )
            except ClientError as error:
                logger.warning("event not written: %s", error)
