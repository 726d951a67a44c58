"""HTTP over aiohttp: a session makes the sockets, and ends with none of them open."""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from vgpu_client.exchange import (
    DIAL_S,
    READ_BUFFER,
    USER_AGENT,
    HttpRequest,
    TimeLimits,
    keep_alive,
)

_CONNECTIONS = 256


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
        keep_alive(made)
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
    always = {"User-Agent": USER_AGENT, **(headers or {})}
    try:
        async with aiohttp.ClientSession(
            connector=connector, headers=always, read_bufsize=READ_BUFFER
        ) as session:
            yield session
    finally:
        await sockets.closed()


@asynccontextmanager
async def open_pooled_http() -> AsyncIterator[PooledHttp]:
    """Send requests for the duration of the block; no connection is open afterwards."""
    async with open_session() as session:
        yield PooledHttp(session)


class PooledHttp:
    """Sends requests over the connections of a session.

    Args:
        session: The session.
    """

    unsent: tuple[type[Exception], ...] = (
        aiohttp.ClientConnectorError,
        aiohttp.ConnectionTimeoutError,
    )
    failures: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, TimeoutError)

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, request: HttpRequest, limits: TimeLimits) -> _PooledAnswer:
        """Send a request, and return the response once its headers are there."""
        connect_s = limits.connect_s
        timeout = aiohttp.ClientTimeout(
            total=limits.total_s,
            connect=connect_s,
            sock_connect=DIAL_S if connect_s is None else min(DIAL_S, connect_s),
            sock_read=limits.silence_s,
        )
        found = await self._session.request(
            request.method,
            URL(request.url).with_query(request.params),
            data=request.body,
            headers=request.headers,
            timeout=timeout,
            ssl=request.tls or True,
            server_hostname=request.server_name,
            proxy=request.proxy,
            allow_redirects=False,
        )
        return _PooledAnswer(found)


class _PooledAnswer:
    """A response whose headers have arrived."""

    def __init__(self, found: aiohttp.ClientResponse) -> None:
        self.status = found.status
        self._found = found

    def header(self, name: str) -> str:
        """Return a header; empty if there is none."""
        return self._found.headers.get(name, "")

    async def read(self) -> bytes:
        """Return the whole body; the connection may then be used again."""
        return await self._found.read()

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        return self._found.content.iter_any().__aiter__()

    async def hang_up(self) -> None:
        """Close the connection in the middle of the response; after its end, do nothing."""
        connection = self._found.connection
        # Do not wait for TLS shutdown: the server may keep talking.
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._found.close()
        await asyncio.sleep(0)  # the socket closes in the loop's next iteration
