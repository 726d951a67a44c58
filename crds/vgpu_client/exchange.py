"""One HTTP exchange as values, so that the client does not depend on one HTTP library.

Servers send over aiohttp (`session.py`), which keeps many connections and parses fast. `kubectl
vgpu` sends over the standard library (`plain_http.py`), which loads in a third of the time and
needs no compiled package.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode

DIAL_S = 10.0
"""The longest time that the handshakes of a new connection may take."""
READ_BUFFER = 2**20
USER_AGENT = "vgpu"
"""The field manager of writes that name none."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A watch whose server is gone without a word ends after 25 s; a bookmark is missed after 90 s.
Linux has these options, macOS not all of them.
"""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request, and how to reach its server.

    Attributes:
        method: The HTTP method.
        url: The URL without a query.
        params: The query.
        headers: The headers; a name may occur several times.
        body: The body; None for none.
        tls: Trust and client certificate; None for plain HTTP.
        server_name: The name expected in the server's certificate, if it is not the host's.
        proxy: URL of an HTTP proxy to go through.
    """

    method: str
    url: str
    params: Mapping[str, str]
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    tls: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None

    @property
    def full_url(self) -> str:
        """Return the URL with its query."""
        return f"{self.url}?{urlencode(self.params)}" if self.params else self.url


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The seconds that an exchange may take. None is no limit.

    Attributes:
        connect_s: Until there is a connection; a new one never takes longer than `DIAL_S`.
        total_s: From the start to the last byte.
        silence_s: Between two parts of the response.
    """

    connect_s: float | None = None
    total_s: float | None = None
    silence_s: float | None = None


class ExchangeError(OSError):
    """An exchange failed; the text says how."""


class HttpAnswer(Protocol):
    """A response whose headers have arrived."""

    status: int

    def header(self, name: str) -> str:
        """Return a header; empty if there is none."""

    async def read(self) -> bytes:
        """Return the whole body; the connection may then be used again."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""

    async def hang_up(self) -> None:
        """Close the connection in the middle of the response; after its end, do nothing."""


class Http(Protocol):
    """Sends requests.

    Attributes:
        unsent: Errors after which the server has not received any of the request.
        failures: All errors of an exchange.
    """

    unsent: tuple[type[Exception], ...]
    failures: tuple[type[Exception], ...]

    async def send(self, request: HttpRequest, limits: TimeLimits) -> HttpAnswer:
        """Send a request, and return the response once its headers are there."""


def keep_alive(made: socket.socket) -> None:
    """Notice a peer that has silently gone away."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
