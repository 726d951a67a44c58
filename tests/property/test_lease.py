"""Two electors, each with a clock of its own, on a network that delays, loses and reorders."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpu_client.errors import Conflict, NotFound, Unknown, Unreachable
from vgpu_client.lease import Elector, LeaseLost, Terms

TERMS = Terms(duration_s=15, renew_s=4, retry_s=1, write_s=5)
CLIENT_PATIENCE_S = 7.0


class Time:
    """Virtual seconds; `run` lets them pass, and looks after each moment at which anything ran."""

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
    """Holds the lease; refuses stale versions, as the API server does."""

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
    """One elector's way to the server. Each request takes the next trip of the script:
    (seconds there, seconds back, "" | "refused" | "lost answer")."""

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


class Candidate:
    """A process: leads when it can, until it loses the lease, and then tries again."""

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
        self._pauses = pauses
        self._time = time
        self.elector = Elector(
            self.line,
            namespace="ns",
            name="lease",
            identity=name,
            terms=TERMS,
            clock=lambda: time.now + ahead_s,
            sleep=self._sleep,
            jitter=lambda: 0.5,
        )
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.ensure_future(self._run())

    async def _sleep(self, seconds: float) -> None:
        pause_s = self._pauses.pop(0) if self._pauses else 0.0  # the process did not get to run
        await self._time.sleep(seconds + pause_s)

    async def _run(self) -> None:
        while True:
            await self.elector.acquire()
            with pytest.raises(LeaseLost):
                await self.elector.hold()

    async def stop(self) -> None:
        for task in (self.running, *self.line.underway):
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)


def in_virtual_time(story: Callable[[Time, Server], Awaitable[None]]) -> None:
    async def tell() -> None:
        await story(Time(), Server())

    asyncio.run(tell())


trips = st.lists(
    st.tuples(
        st.sampled_from([0.01, 0.5, 4.0, 6.0, 14.0, 25.0]),
        st.sampled_from([0.01, 0.5, 4.0, 6.0, 14.0]),
        st.sampled_from(["", "", "refused", "lost answer"]),
    ),
    max_size=12,
)
pauses = st.lists(st.sampled_from([0.0, 0.0, 3.0, 16.0, 40.0]), max_size=4)


def a_candidate(server: Server, time: Time, name: str, **more: Any) -> Candidate:
    return Candidate(server, time, name=name, **{"ahead_s": 0.0, "trips": [], "pauses": [], **more})


def nothing() -> None:
    pass


def test_a_released_lease_is_taken_at_the_next_look() -> None:
    async def story(time: Time, server: Server) -> None:
        a, b = a_candidate(server, time, "a"), a_candidate(server, time, "b")
        a.start()
        await time.run(until=1.0, look=nothing)
        b.start()
        await time.run(until=2.0, look=nothing)
        await a.stop()
        releasing = asyncio.ensure_future(a.elector.release())
        await time.run(until=8.0, look=nothing)
        assert releasing.done()
        assert not a.elector.is_leading()
        assert b.elector.is_leading()
        await b.stop()

    in_virtual_time(story)


def test_a_lease_is_released_even_if_a_renewal_was_under_way() -> None:
    async def story(time: Time, server: Server) -> None:
        # The renewal at second 4 arrives; its answer is still on its way when the holder goes.
        trips = [(0.01, 0.01, ""), (0.01, 0.01, ""), (0.1, 3.0, "")]
        a, b = a_candidate(server, time, "a", trips=trips), a_candidate(server, time, "b")
        a.start()
        await time.run(until=4.5, look=nothing)
        assert a.running is not None
        a.running.cancel()
        releasing = asyncio.ensure_future(a.elector.release())
        await time.run(until=8.0, look=nothing)
        assert releasing.done()
        assert server.get()["spec"]["holderIdentity"] == ""
        await a.stop()
        await b.stop()

    in_virtual_time(story)


def test_a_successor_waits_out_the_lease_and_the_writes_of_a_holder_that_vanished() -> None:
    async def story(time: Time, server: Server) -> None:
        a, b = a_candidate(server, time, "a"), a_candidate(server, time, "b")
        a.start()
        await time.run(until=1.0, look=nothing)
        b.start()
        await time.run(until=2.0, look=nothing)
        await a.stop()  # without a word
        until = 1.0 + TERMS.duration_s + TERMS.write_s
        await time.run(until=until, look=nothing)
        assert not b.elector.is_leading()
        await time.run(until=until + 2 * TERMS.renew_s, look=nothing)
        assert b.elector.is_leading()
        assert server.get()["spec"]["leaseTransitions"] == 1
        await b.stop()

    in_virtual_time(story)


def test_the_budget_of_a_write_ends_with_the_lease() -> None:
    async def story(time: Time, server: Server) -> None:
        a = a_candidate(server, time, "a", trips=[(0.0, 0.0, ""), (0.5, 0.5, "")])
        a.start()
        await time.run(until=1.0, look=nothing)
        # The lease counts from when the request was begun, not from its answer.
        assert a.elector.remaining_s() <= TERMS.duration_s - 1.0
        assert a.elector.is_leading(margin_s=TERMS.write_s)
        assert not a.elector.is_leading(margin_s=TERMS.duration_s)
        await a.stop()

    in_virtual_time(story)


def test_a_lease_deleted_under_its_holder_is_not_taken_before_it_would_have_run_out() -> None:
    async def story(time: Time, server: Server) -> None:
        a, b = a_candidate(server, time, "a"), a_candidate(server, time, "b")
        a.start()
        await time.run(until=1.0, look=nothing)
        b.start()
        await time.run(until=6.0, look=nothing)
        server.lease = None

        def at_most_one() -> None:
            assert not (a.elector.is_leading() and b.elector.is_leading())

        await time.run(until=60.0, look=at_most_one)
        assert a.elector.is_leading() != b.elector.is_leading()
        await a.stop()
        await b.stop()

    in_virtual_time(story)


@settings(max_examples=60, deadline=None)
@given(trips, trips, pauses, pauses, st.floats(-1e6, 1e6))
def test_two_never_lead_at_once_and_in_the_end_one_does(
    trips_a: list[tuple[float, float, str]],
    trips_b: list[tuple[float, float, str]],
    pauses_a: list[float],
    pauses_b: list[float],
    ahead_s: float,
) -> None:
    """At every moment at most one leads by its own clock, whatever the network and the scheduler of
    processes do; once they behave, exactly one does."""

    async def story(time: Time, server: Server) -> None:
        a = Candidate(server, time, name="a", ahead_s=0.0, trips=trips_a, pauses=pauses_a)
        b = Candidate(server, time, name="b", ahead_s=ahead_s, trips=trips_b, pauses=pauses_b)

        def at_most_one() -> None:
            assert not (a.elector.is_leading() and b.elector.is_leading())

        a.start()
        b.start()
        # Every script is over by then: 12 requests and 4 pauses a candidate.
        await time.run(until=500.0, look=at_most_one)
        assert a.elector.is_leading() != b.elector.is_leading()
        await a.stop()
        await b.stop()

    in_virtual_time(story)
