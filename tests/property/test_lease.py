"""Two electors with separate clocks, on a network that delays, loses and reorders messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lease_model import TERMS, Candidate, Server, Time


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


async def a_holder_and_who_waits(server: Server, time: Time) -> tuple[Candidate, Candidate]:
    """Return two candidates at second 1: one that leads, and one that has just started."""
    a, b = a_candidate(server, time, "a"), a_candidate(server, time, "b")
    a.start()
    await time.run(until=1.0, look=nothing)
    b.start()
    return a, b


def test_a_released_lease_is_taken_at_the_next_look() -> None:
    async def story(time: Time, server: Server) -> None:
        a, b = await a_holder_and_who_waits(server, time)
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
        # The renewal at second 4 arrives; its answer is still in transit when the holder leaves.
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
        a, b = await a_holder_and_who_waits(server, time)
        await time.run(until=2.0, look=nothing)
        await a.stop()  # without releasing the lease
        until = 1.0 + TERMS.duration_s + TERMS.write_s
        await time.run(until=until, look=nothing)
        assert not b.elector.is_leading()
        # It saw the record just after second 1, and looks again when that record runs out.
        await time.run(until=until + 0.1, look=nothing)
        assert b.elector.is_leading()
        assert server.get()["spec"]["leaseTransitions"] == 1
        await b.stop()

    in_virtual_time(story)


def test_the_budget_of_a_write_ends_with_the_lease() -> None:
    async def story(time: Time, server: Server) -> None:
        a = a_candidate(server, time, "a", trips=[(0.0, 0.0, ""), (0.5, 0.5, "")])
        a.start()
        await time.run(until=1.0, look=nothing)
        # The lease runs from the start of the request, not from its answer.
        assert a.elector.remaining_s() <= TERMS.duration_s - 1.0
        assert a.elector.is_leading(margin_s=TERMS.write_s)
        assert not a.elector.is_leading(margin_s=TERMS.duration_s)
        await a.stop()

    in_virtual_time(story)


def test_a_lease_deleted_under_its_holder_is_not_taken_before_it_would_have_run_out() -> None:
    async def story(time: Time, server: Server) -> None:
        a, b = await a_holder_and_who_waits(server, time)
        await time.run(until=6.0, look=nothing)
        server.lease = None

        def at_most_one() -> None:
            assert not (a.elector.is_leading() and b.elector.is_leading())

        await time.run(until=60.0, look=at_most_one)
        assert a.elector.is_leading() != b.elector.is_leading()
        await a.stop()
        await b.stop()

    in_virtual_time(story)


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
        # All scripts have ended by then: 12 requests and 4 pauses for each candidate.
        await time.run(until=500.0, look=at_most_one)
        assert a.elector.is_leading() != b.elector.is_leading()
        await a.stop()
        await b.stop()

    in_virtual_time(story)
