"""Electors in virtual time, each with a clock of its own, on a network with delays and losses."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_client.clock import Clock
from vgpu_client.errors import Conflict, NotFound, Unknown, Unreachable
from vgpu_client.lease import Elector, LeaseLost, LeaseTimes

TERMS = LeaseTimes(duration_s=15, renew_s=4, retry_s=1, write_s=5)
CLIENT_PATIENCE_S = 7.0


class Time:
    """Virtual seconds; `run` advances them and calls a check after each moment with activity."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self.now + max(0.0, seconds), next(self._order), woken))
        await woken

    async def run(self, *, until: float, look: Callable[[], None]) -> None:
        while True:
            for _ in range(12):  # the longest chain between two timers
                await asyncio.sleep(0)
            look()
            if not self._timers or self._timers[0][0] > until:
                break
            self.now, _, woken = heapq.heappop(self._timers)
            if not woken.done():
                woken.set_result(None)
        self.now = until


class Server:
    """Holds the lease and refuses stale versions, as the API server does."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def get(self) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound("no lease", status=404)
        return copy.deepcopy(self.lease)

    def put(self, lease: dict[str, Any], *, create: bool) -> dict[str, Any]:
        known = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if lease["metadata"].get("resourceVersion") != known or create != (known is None):
            raise Conflict("stale", status=409)
        self.version += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


class Line:
    """One elector's connection to the server.

    Each request takes the next trip of the script: (seconds there, seconds back, "" | "refused" |
    "lost answer").
    """

    def __init__(self, server: Server, time: Time, trips: list[tuple[float, float, str]]) -> None:
        self.server = server
        self.time = time
        self.trips = trips
        self.underway: set[asyncio.Task[None]] = set()

    async def get(self, resource: object, name: str, **where: object) -> dict[str, Any]:
        return await self._request(self.server.get, failure=Unreachable)

    async def create(self, resource: object, obj: dict[str, Any], **how: object) -> dict[str, Any]:
        return await self._request(lambda: self.server.put(obj, create=True), failure=Unknown)

    async def replace(self, resource: object, obj: dict[str, Any], **how: object) -> dict[str, Any]:
        return await self._request(lambda: self.server.put(obj, create=False), failure=Unknown)

    async def _request(
        self, act: Callable[[], dict[str, Any]], *, failure: type[Exception]
    ) -> dict[str, Any]:
        there, back, fate = self.trips.pop(0) if self.trips else (0.01, 0.01, "")
        if fate == "refused":
            await self.time.sleep(there)
            raise Unreachable("model")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def travel() -> None:
            await self.time.sleep(there)
            try:
                result: dict[str, Any] | Exception = act()
            except Exception as error:  # carried to the caller
                result = error
            await self.time.sleep(back)
            if fate != "lost answer" and not answer.done():
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

        async def give_up() -> None:
            await self.time.sleep(CLIENT_PATIENCE_S)
            if not answer.done():
                answer.set_exception(failure("model: no answer"))

        for task in (asyncio.ensure_future(travel()), asyncio.ensure_future(give_up())):
            self.underway.add(task)
            task.add_done_callback(self.underway.discard)
        return await answer


class ClockAhead(Clock):
    """A process's clock, ahead of the others'; sleeps end late if the process was not running."""

    def __init__(self, time: Time, ahead_s: float, pauses: list[float]) -> None:
        super().__init__()
        self._time = time
        self._ahead_s = ahead_s
        self._pauses = pauses

    def monotonic(self) -> float:
        return self._time.now + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        pause_s = self._pauses.pop(0) if self._pauses else 0.0
        await self._time.sleep(seconds + pause_s)

    def jitter(self) -> float:
        return 0.5


class Candidate:
    """A process that leads when it can, until it loses the lease, and then tries again."""

    def __init__(
        self,
        server: Server,
        time: Time,
        *,
        name: str,
        ahead_s: float,
        trips: list[tuple[float, float, str]],
        pauses: list[float],
    ) -> None:
        self.line = Line(server, time, trips)
        self.pauses = pauses
        self.elector = Elector(
            self.line,
            namespace="ns",
            name="lease",
            identity=name,
            times=TERMS,
            clock=ClockAhead(time, ahead_s, pauses),
        )
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self.elector.acquire()
            with pytest.raises(LeaseLost):
                await self.elector.keep()

    def crash(self) -> None:
        """End at once; requests that were already sent still reach the server."""
        if self.running is not None:
            self.running.cancel()
            self.running = None

    async def stop(self) -> None:
        for task in (self.running, *self.line.underway):
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)
