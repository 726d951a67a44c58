"""A replica decides only after it has seen all objects and closed the fence, and while it leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from vgpu_client.lease import LeaseLost
from vgpu_operator.engine.leader.leadership import Leadership


class Election:
    """An elector that the test controls."""

    def __init__(self, story: list[str]) -> None:
        self._story = story
        self.won = asyncio.Event()
        self.lost = asyncio.Event()
        self.remaining_s = 10.0
        self.identity = "operator-0_5eed"

    def is_leading(self, *, margin_s: float = 0.0) -> bool:
        return self.won.is_set() and self.remaining_s > margin_s

    async def acquire(self) -> None:
        await self.won.wait()
        self._story.append("elected")

    async def keep(self) -> None:
        await self.lost.wait()
        self.won.clear()
        self.lost.clear()
        self.identity += "."
        raise LeaseLost("held by another")

    async def release(self) -> None:
        self._story.append("released")


class Informer:
    """A reflector that follows its watch unless the test changes that."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.follows = asyncio.Event()
        self.follows.set()


class Candidate:
    """A replica's leadership, with a record of its steps in order."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.election: Any = Election(self.story)
        self.informer = Informer()
        self.fence_may_close = asyncio.Event()
        self.fence_may_close.set()
        self.begun = asyncio.Event()
        self.has_outcomes = asyncio.Event()
        self.has_outcomes.set()
        self.leadership = Leadership(self.election, [self.informer], self)

    async def close_fence(self, decider: str) -> int:
        self.story.append("fencing")
        self.decider = decider
        await self.fence_may_close.wait()
        self.story.append("fenced")
        return 0

    def begin(self) -> None:
        self.story.append("begun" if self.leadership.leads() else "begun without the right to")

    async def publish(self) -> None:
        self.story.append("published")
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.begun.clear()
            self.story.append("withdrawn")

    async def follow(self) -> None:
        self.story.append("ending")
        await self.has_outcomes.wait()
        self.story.append("following")


@asynccontextmanager
async def running(candidate: Candidate) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.ensure_future(candidate.leadership.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_fence_is_closed_before_the_first_decision() -> None:
    candidate = Candidate()
    async with running(candidate):
        await turns()
        assert candidate.story == []  # it is not even a candidate before it has seen all objects
        candidate.informer.synced.set()
        candidate.election.won.set()
        await candidate.begun.wait()
        assert candidate.story == ["elected", "fencing", "fenced", "begun", "published"]


async def test_a_replica_that_has_to_list_anew_waits_for_that_before_the_fence() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.informer.follows.clear()
    candidate.election.won.set()
    async with running(candidate):
        await turns()
        assert candidate.story == ["elected"]
        candidate.informer.follows.set()
        await candidate.begun.wait()
        assert candidate.story[1:3] == ["fencing", "fenced"]


async def test_nothing_is_decided_while_the_fence_is_open() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()
    candidate.fence_may_close.clear()
    async with running(candidate):
        await turns()
        assert candidate.story[-1] == "fencing"
        assert not candidate.leadership.leads()


async def test_a_leader_whose_lease_is_about_to_end_does_not_lead() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()
    async with running(candidate):
        await candidate.begun.wait()
        assert candidate.leadership.leads()
        candidate.election.remaining_s = 0.4
        assert not candidate.leadership.leads()


@pytest.mark.parametrize("when", ["leading", "fencing"])
async def test_a_leader_that_loses_the_lease_follows_and_may_be_elected_again(when: str) -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()
    if when == "fencing":
        candidate.fence_may_close.clear()
    async with running(candidate) as task:
        await turns()
        first = candidate.decider
        candidate.election.lost.set()
        await turns()
        assert not candidate.leadership.leads()
        assert ("begun" in candidate.story) is (when == "leading")
        assert ("withdrawn" in candidate.story) is (when == "leading")
        assert candidate.story[-2:] == ["ending", "following"]
        assert not task.done()
        candidate.fence_may_close.set()
        candidate.story.clear()
        candidate.election.won.set()
        await candidate.begun.wait()
        assert candidate.story == ["elected", "fencing", "fenced", "begun", "published"]
        assert candidate.decider != first


async def test_a_former_leader_stands_for_election_only_when_its_writes_have_outcomes() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()
    candidate.has_outcomes.clear()
    async with running(candidate):
        await candidate.begun.wait()
        candidate.election.lost.set()
        await turns()
        candidate.election.won.set()
        await turns()
        assert candidate.story[-1] == "ending"
        candidate.has_outcomes.set()
        await candidate.begun.wait()
        assert candidate.leadership.leads()


async def test_a_part_that_fails_while_leading_ends_the_replica() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()

    async def fails() -> None:
        raise RuntimeError("broken")

    candidate.publish = fails  # type: ignore[method-assign]
    async with running(candidate) as task:
        with pytest.raises(RuntimeError, match="broken"):
            await task
        assert not candidate.leadership.leads()


async def test_a_leader_that_resigns_decides_nothing_and_gives_the_lease_up_last() -> None:
    candidate = Candidate()
    candidate.informer.synced.set()
    candidate.election.won.set()
    async with running(candidate):
        await candidate.begun.wait()
        candidate.leadership.resign()
        assert not candidate.leadership.leads()
        assert "released" not in candidate.story
    await candidate.leadership.give_up()
    assert candidate.story[-1] == "released"
