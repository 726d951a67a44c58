"""The HTTP session of a client: it makes the sockets, and ends with none of them open.

It is separate from the exchanges (`transport.py`), which only use connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

_CONNECTIONS = 256
_READ_BUFFER = 2**20
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A watch whose server is gone without a word ends after 25 s; a bookmark is missed after 90 s.
Linux has these options, macOS not all of them.
"""


class Sockets:
    """Creates the session's sockets, and tracks which of them are open.

    A TLS connection is closed in the background. A loop that ends before that is done leaves the
    socket to the garbage collector, so the caller that closes a session waits.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def __call__(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Make a socket for an address, as the connector asks for one."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._made.add(made)
        return made

    async def closed(self, *, within_s: float = 1.0) -> None:
        """Return once none is open any more, or after `within_s` seconds."""
        deadline = asyncio.get_running_loop().time() + within_s
        while any(made.fileno() >= 0 for made in self._made):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.002)


@asynccontextmanager
async def open_session(
    *, tls: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session for the duration of the block; no socket is open afterwards.

    Args:
        tls: Trust and client certificate for requests that bring none.
        headers: The headers of every request.
    """
    sockets = Sockets()
    connector = aiohttp.TCPConnector(
        limit=_CONNECTIONS, socket_factory=sockets, ssl=True if tls is None else tls
    )
    always = {"User-Agent": "vgpu", **(headers or {})}  # the field manager of writes that name none
    try:
        async with aiohttp.ClientSession(
            connector=connector, headers=always, read_bufsize=_READ_BUFFER
        ) as session:
            yield session
    finally:
        await sockets.closed()
