"""Electors start, crash, hand over, sleep and are cut off in any order."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lease_model import TERMS, Candidate, Server, Time

NAMES = ("a", "b", "c")
RUNNING = st.integers(0, len(NAMES) - 1)
EVER = 300.0
TRIPS = st.lists(
    st.tuples(
        st.sampled_from([0.01, 0.5, 4.0, 6.0, 14.0, 25.0]),
        st.sampled_from([0.01, 4.0, 6.0, 14.0]),
        st.sampled_from(["", "refused", "lost answer"]),
    ),
    min_size=1,
    max_size=4,
)


class Electors(RuleBasedStateMachine):
    """At most one leads at any moment, a successor only after its predecessor's writes, and once
    everything works, one does.

    The model has one value for each name: the true time until which it may lead. A process that
    lost the lease has another name when it stands again, and waits for its former self as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.time, self.server = Time(), Server()
        self.alive: dict[str, Candidate] = {}
        self.may_lead_until: dict[str, float] = {}  # of the processes that did not hand over
        self.leader = ""
        self.born = 0

    def _pass(self, seconds: float) -> None:
        work = self.time.run(until=self.time.now + seconds, look=self._look)
        self.loop.run_until_complete(work)

    def _look(self) -> None:
        """Check the invariants; called after every moment at which anything ran."""
        electors = [each.elector for each in self.alive.values()]
        leading = [elector for elector in electors if elector.is_leading()]
        assert len(leading) <= 1, [elector.identity for elector in leading]
        for elector in leading:
            name = elector.identity
            if name != self.leader:
                ends = (end for other, end in self.may_lead_until.items() if other != name)
                assert self.time.now >= max(ends, default=-1e9) + TERMS.write_s
                self.leader = name
            remaining_s = elector.remaining_s()
            assert remaining_s <= TERMS.duration_s
            self.may_lead_until[name] = self.time.now + remaining_s

    @initialize(ahead_s=st.floats(-1e6, 1e6))
    def one_is_there(self, ahead_s: float) -> None:
        self._start(ahead_s)
        self._pass(1.0)
        assert self.leader

    def _start(self, ahead_s: float) -> None:
        self.born += 1
        name = f"{NAMES[self.born % len(NAMES)]}-{self.born}"  # an identity is never used again
        each = Candidate(self.server, self.time, name=name, ahead_s=ahead_s, trips=[], pauses=[])
        self.alive[name] = each

        async def start() -> None:
            each.start()

        self.loop.run_until_complete(start())

    def _pick(self, pick: int) -> tuple[str, Candidate]:
        names = sorted(self.alive)
        name = names[pick % len(names)]
        return name, self.alive[name]

    @precondition(lambda self: len(self.alive) < len(NAMES))
    @rule(ahead_s=st.floats(-1e6, 1e6))
    def another_starts(self, ahead_s: float) -> None:
        self._start(ahead_s)

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 9.0, 16.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @precondition(lambda self: self.alive)
    @rule(pick=RUNNING)
    def one_crashes(self, pick: int) -> None:
        """Crash an elector: it does nothing more, but its requests are still in transit."""
        name, each = self._pick(pick)
        each.crash()
        del self.alive[name]
        self._pass(0.0)

    @precondition(lambda self: self.alive)
    @rule(pick=RUNNING)
    def one_hands_over(self, pick: int) -> None:
        name, each = self._pick(pick)
        each.crash()
        if each.elector.is_leading():
            self.may_lead_until.pop(each.elector.identity, None)
        work = self.loop.create_task(each.elector.release())
        self._pass(0.0)
        assert not each.elector.is_leading()
        del self.alive[name]
        self.releasing = work

    @precondition(lambda self: self.alive)
    @rule(pick=RUNNING, trips=TRIPS)
    def ones_network_is_bad(self, pick: int, trips: list[tuple[float, float, str]]) -> None:
        self._pick(pick)[1].line.trips.extend(trips)

    @precondition(lambda self: self.alive)
    @rule(pick=RUNNING, seconds=st.sampled_from([3.0, 16.0, 40.0]))
    def one_does_not_get_to_run(self, pick: int, seconds: float) -> None:
        self._pick(pick)[1].pauses.append(seconds)

    def teardown(self) -> None:
        """Let network and processes behave, and check that one elector leads."""
        try:
            for each in self.alive.values():
                each.line.trips.clear()
                each.pauses.clear()
            if not self.alive:
                self._start(0.0)
            self._pass(EVER)
            assert [name for name, each in self.alive.items() if each.elector.is_leading()]
        finally:
            self.loop.run_until_complete(_end_everything())
            self.loop.close()


async def _end_everything() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class TestElectors(Electors.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(stateful_step_count=30)
