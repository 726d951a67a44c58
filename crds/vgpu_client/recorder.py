"""Events for people: aggregated, rate-limited, and never in the way of the work they report.

Repetitions of a reason for an object become one event; its count and newest message are written
again after a minute at the earliest. client-go's correlator does the same but keeps the first
message. The message of a core/v1 event may change, so we use those. Events are best effort: if too
many are waiting, the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from vgpu_api.resources import EVENTS
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, NotFound

if TYPE_CHECKING:  # the engine names the subjects of events without connecting to a server
    from vgpu_client.api import Api
    from vgpu_client.transport import Object

logger = logging.getLogger(__name__)

AGAIN_S = 60.0
"""The shortest time before the same event is written again."""
RATE = 20.0
"""Events written per second, once the burst is used up."""
BURST = 100
_LOOK_S = 1.0
_QUEUED = 1_000
_REMEMBERED = 10_000
_NOTE_KEPT = 1_024  # the server's limit
_NAME_KEPT = 230


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str | None
    name: str
    uid: str


@dataclass(slots=True)
class _Series:
    """All repetitions of one reason for one object."""

    regarding: Regarding
    type: str
    reason: str
    action: str
    note: str
    first: float
    last: float
    count: int = 1
    name: str = ""  # the event object's name, once it exists
    written: float = float("-inf")
    is_lost: bool = False  # its newest message was dropped, or the server refused it


class Recorder:
    """Records events.

    Args:
        api: The API server to write to.
        component: The reporting component.
        clock: The time of day, and the waits between writes.
        on_drop: Called for each event that is dropped; for a metric.
    """

    def __init__(
        self,
        api: Api,
        component: str,
        *,
        clock: Clock,
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._component = component
        self._clock = clock
        self._on_drop = on_drop
        self._series: OrderedDict[tuple[str, str], _Series] = OrderedDict()
        self._queue: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._due = asyncio.Event()
        self._tokens = float(BURST)
        self._counted = clock.unix()

    def record(
        self,
        regarding: Regarding,
        *,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        action: str,
        note: str,
    ) -> None:
        """Queue an event, unless it equals the last one for the same reason and object.

        Args:
            regarding: The object.
            type: Normal or Warning.
            reason: One CamelCase word.
            action: The attempted action, one CamelCase word.
            note: A sentence.
        """
        key, now = (regarding.uid, reason), self._clock.unix()
        series = self._series.get(key)
        if series is None:
            series = _Series(regarding, type, reason, action, note[:_NOTE_KEPT], now, now)
            self._series[key] = series
            if len(self._series) > _REMEMBERED:
                forgotten, _ = self._series.popitem(last=False)
                self._queue.pop(forgotten, None)
        elif series.note == note[:_NOTE_KEPT] and not series.is_lost:
            return
        elif series.is_lost:
            series.note, series.last, series.is_lost = note[:_NOTE_KEPT], now, False
        else:
            series.note, series.last, series.count = note[:_NOTE_KEPT], now, series.count + 1
        self._series.move_to_end(key)
        self._queue[key] = None
        if len(self._queue) > _QUEUED:
            dropped, _ = self._queue.popitem(last=False)
            if dropped in self._series:
                self._series[dropped].is_lost = True
            self._on_drop()
        self._due.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            wait_s = await self._write_due()
            if self._queue:
                self._due.set()
                # Not longer, so that the first event of another object need not wait for this one.
                await self._clock.sleep(min(wait_s, _LOOK_S))

    async def _write_due(self) -> float:
        """Write the events that are due; return the seconds until the next one is."""
        soonest = AGAIN_S
        for key in list(self._queue):
            series = self._series.get(key)
            if series is None:
                self._queue.pop(key, None)
                continue
            wait_s = series.written + AGAIN_S - self._clock.unix()
            if wait_s > 0:
                soonest = min(soonest, wait_s)
                continue
            if not self._take_token():
                return 1.0 / RATE
            self._queue.pop(key, None)
            await self._write(series)
        return soonest

    def _take_token(self) -> bool:
        now = self._clock.unix()
        gained = max(0.0, now - self._counted) * RATE
        self._tokens, self._counted = min(self._tokens + gained, float(BURST)), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _write(self, series: _Series) -> None:
        series.written = self._clock.unix()
        namespace = series.regarding.namespace or "default"
        try:
            if series.name:
                changes = {
                    "count": series.count,
                    "message": series.note,
                    "lastTimestamp": _stamp(series.last),
                }
                try:
                    await self._api.merge_patch(EVENTS, series.name, changes, namespace=namespace)
                    return
                except NotFound:  # events are kept for an hour
                    series.count, series.first = 1, series.last
            event = self._event(series)
            await self._api.create(EVENTS, event)
            series.name = event["metadata"]["name"]
        except ClientError as error:
            series.is_lost = True
            logger.info("event of %s not written: %s", series.regarding.name, error)
            self._on_drop()

    def _event(self, series: _Series) -> Object:
        regarding = series.regarding
        involved = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "uid": regarding.uid,
        }
        if regarding.namespace:
            involved["namespace"] = regarding.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "namespace": regarding.namespace or "default",
                "name": f"{regarding.name[:_NAME_KEPT]}.{secrets.token_hex(8)}",
            },
            "involvedObject": involved,
            "type": series.type,
            "reason": series.reason,
            "action": series.action,
            "message": series.note,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": _stamp(series.first),
            "lastTimestamp": _stamp(series.last),
            "count": series.count,
        }


def _stamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
