"""The API server's time of day, whatever this machine's clock shows."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from vgpu_client.clock import Clock
from vgpu_client.server_time import ServerTime

HOUR_S = 3600.0
SLACK_S = 1e-3
"""The precision of floating point at 1.7e9."""


class World(Clock):
    """A server's clock, this machine's two, and replies that take their time."""

    def __init__(self, *, server: float = 1.7e9, ahead_s: float = 0.0) -> None:
        super().__init__()
        self.server = server
        self.passed = 500.0
        self._ahead_s = ahead_s
        self.time = ServerTime(self)

    def unix(self) -> float:
        return self.server + self._ahead_s

    def monotonic(self) -> float:
        return self.passed

    def wait(self, seconds: float) -> None:
        self.server += seconds
        self.passed += seconds

    def reply(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        """Send a request; its reply has the header that Go's HTTP server makes."""
        sent = self.passed
        self.wait(there_s)
        date = formatdate(int(self.server), usegmt=True)
        self.wait(back_s)
        self.time.observe(date, sent=sent)

    @property
    def error_s(self) -> float:
        """Return how many seconds the clock is ahead of the server's."""
        return self.time.unix() - self.server


def test_before_the_first_reply_it_is_this_machines_clock() -> None:
    assert World(ahead_s=HOUR_S).error_s == HOUR_S


@given(
    ahead_s=st.sampled_from([-HOUR_S, HOUR_S, 25 * HOUR_S]),
    replies=st.lists(
        st.tuples(st.floats(0, 10), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20
    ),
)
def test_after_a_reply_it_is_right_to_within_a_second_and_a_round_trip(
    ahead_s: float, replies: list[tuple[float, float, float]]
) -> None:
    world = World(ahead_s=ahead_s)
    for pause_s, there_s, back_s in replies:
        world.wait(pause_s)
        world.reply(there_s, back_s)
        assert -1.0 - back_s - SLACK_S <= world.error_s <= 1.0 + there_s + SLACK_S


def test_replies_bring_it_to_within_a_round_trip() -> None:
    world = World(server=1.7e9 + 0.9, ahead_s=-HOUR_S)
    for _ in range(200):
        world.wait(0.0137)
        world.reply(0.005, 0.005)
    assert abs(world.error_s) < 0.03


def test_it_follows_a_server_whose_clock_is_set() -> None:
    world = World()
    world.reply()
    for jump_s in (HOUR_S, -2 * HOUR_S):
        world.server += jump_s
        world.reply()
        assert abs(world.error_s) <= 1.0


def test_this_machines_clock_that_is_set_later_changes_nothing() -> None:
    world = World()
    world.reply()
    world._ahead_s = HOUR_S
    assert abs(world.error_s) <= 1.0


def test_a_reply_without_a_date_changes_nothing() -> None:
    world = World(ahead_s=HOUR_S)
    world.reply()
    before = world.error_s
    for date in ("", "yesterday", "Wed, 99 Nov 2026 25:00:00 GMT"):
        world.time.observe(date, sent=world.passed)
    assert world.error_s == before
