"""The API server's time of day, which replicas share independently of their own clocks.

The current leader compares times in the API that a former leader or the API server wrote. By its
own machine's clock, a leader that is an hour ahead would take everything for an hour older than it
is. A response without a `Date` header changes nothing. Until the first one arrives, this is the
machine's own clock, because nothing else is known.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from vgpu_client.clock import Clock

_DATE_S = 1.0
"""The header's resolution: whole seconds, rounded down."""


class ServerTime:
    """A clock that follows the `Date` header of responses.

    A server makes the header between the sending of a request and the arrival of its response, so
    each response bounds the server's time from both sides. The clock advances by monotonic time and
    is corrected only as far as these bounds require. After a few responses it is right to within a
    round trip, and not only to within the second that a single header leaves open.

    Args:
        machine: This machine's clock.
    """

    def __init__(self, machine: Clock | None = None) -> None:
        self._machine = machine or Clock()
        self._offset: float | None = None  # the server's Unix time minus our monotonic time

    def unix(self) -> float:
        """Return the server's Unix time in seconds."""
        if self._offset is None:
            return self._machine.unix()
        return self._machine.monotonic() + self._offset

    def observe(self, date: str, *, sent: float) -> None:
        """Take a response into account, at the moment when its headers have arrived.

        Args:
            date: The `Date` header; ignored if it is empty or malformed.
            sent: The time when the request was sent, in monotonic seconds.
        """
        try:
            shown = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        earliest, latest = shown - self._machine.monotonic(), shown + _DATE_S - sent
        offset = earliest if self._offset is None else self._offset
        self._offset = min(max(offset, earliest), latest)
