"""The API server's time of day, which replicas share whatever their own clocks show.

Times in the API are compared by whoever leads at the moment, with times that a former leader or the
API server wrote. By the machine's own clock a leader that is an hour ahead would find everything an
hour older than it is. A reply without a `Date` header leaves things as they are, and until the
first one this is the machine's own clock: nothing else is known then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_DATE_S = 1.0
"""The header has whole seconds, rounded down."""


class ServerTime:
    """A clock that follows the `Date` header of replies.

    A server makes the header between the moment a request is sent and the moment its reply is
    received, so each reply bounds the server's time from both sides. The clock goes on by monotonic
    time and moves only as far as these bounds make it: after a few replies it is right to within a
    round trip, not only within the second that one header leaves open.

    Args:
        wall: This machine's Unix time.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset: float | None = None  # the server's Unix time less our monotonic time

    def unix(self) -> float:
        """Return the server's Unix time, seconds."""
        return self._wall() if self._offset is None else self._monotonic() + self._offset

    def observe(self, date: str, *, sent: float) -> None:
        """Take a reply into account at the moment when its headers have come.

        Args:
            date: The `Date` header; empty or malformed, it shows nothing.
            sent: When the request was sent, monotonic seconds.
        """
        try:
            shown = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        earliest, latest = shown - self._monotonic(), shown + _DATE_S - sent
        offset = earliest if self._offset is None else self._offset
        self._offset = min(max(offset, earliest), latest)
