"""HTTP/1.1 over asyncio's streams, for programs that make a few requests and end.

Only what an API server and proxies in front of it use is implemented: bodies with a length, in
chunks or until the end; connections that are used again; `http://` proxies. Responses are never
compressed, because none is asked for. A connection that was idle for long is not used again: the
server may have closed it, and the outcome of a write on it would be unknown.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from vgpu_client.exchange import (
    DIAL_S,
    READ_BUFFER,
    USER_AGENT,
    ExchangeError,
    HttpRequest,
    TimeLimits,
    keep_alive,
)

_REUSED_WITHIN_S = 5.0
_PORTS = {"http": 80, "https": 443}
_CHUNK = 2**16
_NO_BODY = (204, 304)


class NotSent(ExchangeError):
    """There is no connection, so the request was not sent."""


class BadAnswer(ExchangeError):
    """The response ended too early, or is not HTTP."""


class _FarEnd(NamedTuple):
    """The far end of a connection. Requests to the same one may share a connection."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str | None
    proxy: str | None

    @property
    def authority(self) -> str:
        """Return `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Head(NamedTuple):
    """What precedes the body of a response; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]


@dataclass(slots=True, eq=False)
class _Stream:
    """A connection to a peer, in use or idle."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: _FarEnd
    idle_since: float = 0.0


@asynccontextmanager
async def open_plain_http() -> AsyncIterator[PlainHttp]:
    """Send requests for the duration of the block; no connection is open afterwards."""
    http = PlainHttp()
    try:
        yield http
    finally:
        await http.close()


class PlainHttp:
    """Sends each request over a connection of its own, or over one that has become free."""

    unsent: tuple[type[Exception], ...] = (NotSent,)
    failures: tuple[type[Exception], ...] = (OSError, TimeoutError)

    def __init__(self) -> None:
        self._open: list[_Stream] = []
        self._idle: list[_Stream] = []

    async def send(self, request: HttpRequest, limits: TimeLimits) -> _PlainAnswer:
        """Send a request, and return the response once its headers are there."""
        now = asyncio.get_running_loop().time()
        deadline = None if limits.total_s is None else now + limits.total_s
        peer = _peer(request)
        async with asyncio.timeout_at(deadline):
            connection = self._free(peer, now) or await self._connect(peer, limits.connect_s)
            try:
                connection.writer.write(_text(request, peer))
                async with asyncio.timeout(limits.silence_s):
                    await connection.writer.drain()
                    head = await _head(connection.reader)
            except BaseException:
                await self.drop(connection)
                raise
        return _PlainAnswer(self, connection, head, deadline, limits.silence_s)

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            await self.drop(connection)

    def keep(self, connection: _Stream) -> None:
        """Let a connection be used again, whose response was read to its end."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    async def drop(self, connection: _Stream) -> None:
        """Close a connection, without waiting for a server that may keep talking."""
        if connection in self._open:
            self._open.remove(connection)
            connection.writer.transport.abort()
            with suppress(OSError):
                await connection.writer.wait_closed()

    def _free(self, peer: _FarEnd, now: float) -> _Stream | None:
        for connection in self._idle:
            is_fresh = now - connection.idle_since < _REUSED_WITHIN_S
            if connection.peer == peer and is_fresh and not connection.reader.at_eof():
                self._idle.remove(connection)
                return connection
        return None

    async def _connect(self, peer: _FarEnd, limit_s: float | None) -> _Stream:
        try:
            async with asyncio.timeout(DIAL_S if limit_s is None else min(DIAL_S, limit_s)):
                reader, writer = await (_dial(peer) if peer.proxy is None else _tunnel(peer))
        except TimeoutError as error:
            raise NotSent(f"no connection to {peer.authority} in time") from error
        except ExchangeError as error:
            raise NotSent(f"cannot connect to {peer.authority}: {error}") from error
        except OSError as error:  # ssl.SSLError included
            text = error.strerror or str(error)
            raise NotSent(f"cannot connect to {peer.authority}: {text}") from error
        keep_alive(writer.get_extra_info("socket"))
        connection = _Stream(reader, writer, peer)
        self._open.append(connection)
        return connection


class _PlainAnswer:
    """A response whose headers have arrived."""

    def __init__(
        self,
        http: PlainHttp,
        connection: _Stream,
        head: _Head,
        deadline: float | None,
        silence_s: float | None,
    ) -> None:
        self.status = head.status
        self._http = http
        self._connection: _Stream | None = connection
        self._headers = head.headers
        self._body = _body(connection.reader, head)
        self._deadline = deadline
        self._silence_s = silence_s

    def header(self, name: str) -> str:
        """Return a header; empty if there is none."""
        return self._headers.get(name.lower(), "")

    async def read(self) -> bytes:
        """Return the whole body; the connection may then be used again."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        try:
            while (chunk := await self._next()) is not None:
                yield chunk
        except BaseException:
            await self.hang_up()
            raise
        if self._connection is not None and _may_stay(self._headers):
            self._http.keep(self._connection)
            self._connection = None
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection in the middle of the response; after its end, do nothing."""
        if self._connection is not None:
            await self._http.drop(self._connection)
            self._connection = None

    async def _next(self) -> bytes | None:
        async with asyncio.timeout_at(self._deadline), asyncio.timeout(self._silence_s):
            return await anext(self._body, None)


def _peer(request: HttpRequest) -> _FarEnd:
    url = urlsplit(request.url)
    port = url.port or _PORTS[url.scheme]
    host = url.hostname or ""
    return _FarEnd(host, port, request.tls, request.server_name, request.proxy)


async def _dial(peer: _FarEnd) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = (peer.name or peer.host) if peer.tls else None
    return await asyncio.open_connection(
        peer.host, peer.port, ssl=peer.tls, server_hostname=name, limit=READ_BUFFER
    )


async def _tunnel(peer: _FarEnd) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the proxy; have it connect to a server with TLS."""
    assert peer.proxy is not None
    proxy = urlsplit(peer.proxy)
    if proxy.scheme != "http" or not proxy.hostname:
        raise NotSent(f"proxy-url: Unsupported value: {peer.proxy!r}: must be http://HOST:PORT")
    reader, writer = await asyncio.open_connection(
        proxy.hostname, proxy.port or _PORTS["http"], limit=READ_BUFFER
    )
    if peer.tls is None:
        return reader, writer
    try:
        lines = [f"CONNECT {peer.authority} HTTP/1.1", f"Host: {peer.authority}"]
        lines += [f"{name}: {value}" for name, value in _proxy_headers(peer)]
        writer.write(_lines(lines))
        head = await _head(reader)
        if head.status != 200:
            raise NotSent(f"the proxy {proxy.hostname} answers {head.status}")
        await writer.start_tls(peer.tls, server_hostname=peer.name or peer.host)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def _proxy_headers(peer: _FarEnd) -> list[tuple[str, str]]:
    proxy = urlsplit(peer.proxy or "")
    if not proxy.username:
        return []
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return [("Proxy-Authorization", f"Basic {b64encode(pair.encode()).decode()}")]


def _text(request: HttpRequest, peer: _FarEnd) -> bytes:
    """Return a request as it is sent."""
    url = urlsplit(request.url)
    target = quote(url.path, safe="/%:@!$&'()*+,;=") or "/"
    if request.params:
        target += f"?{urlencode(request.params)}"
    headers = [("Host", peer.authority), ("User-Agent", USER_AGENT), *request.headers]
    if request.body is not None:
        headers.append(("Content-Length", str(len(request.body))))
    if peer.proxy is not None and peer.tls is None:
        target = f"http://{peer.authority}{target}"
        headers += _proxy_headers(peer)
    lines = [f"{request.method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    return _lines(lines) + (request.body or b"")


def _lines(lines: list[str]) -> bytes:
    if any("\r" in line or "\n" in line for line in lines):
        raise NotSent("a header has a line break")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


async def _head(reader: asyncio.StreamReader) -> _Head:
    """Return the status and the headers of a response."""
    while True:
        try:
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.rstrip("\r\n").split("\r\n")
            version, status = first.split(" ", 2)[:2]
            code = int(status)
        except asyncio.IncompleteReadError as error:
            raise BadAnswer("the server closed the connection") from error
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise BadAnswer("the response is not HTTP") from error
        if not version.startswith("HTTP/1."):
            raise BadAnswer("the response is not HTTP/1")
        if code >= 200:
            fields = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in fields}
            return _Head(code, headers)


async def _body(reader: asyncio.StreamReader, head: _Head) -> AsyncIterator[bytes]:
    """Yield a body as it arrives.

    Raises:
        BadAnswer: It ends too early.
    """
    if head.status in _NO_BODY:
        return
    headers = head.headers
    try:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                async for part in _exactly(reader, size):
                    yield part
                await reader.readexactly(2)
            while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                pass
        elif "content-length" in headers:
            async for part in _exactly(reader, int(headers["content-length"])):
                yield part
        else:
            while part := await reader.read(_CHUNK):
                yield part
    except asyncio.IncompleteReadError as error:
        raise BadAnswer("the response ended too early") from error
    except (asyncio.LimitOverrunError, ValueError) as error:
        raise BadAnswer("the response is not HTTP") from error


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        part = await reader.read(min(size, _CHUNK))
        if not part:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(part)
        yield part


def _may_stay(headers: Mapping[str, str]) -> bool:
    has_end = "content-length" in headers or "transfer-encoding" in headers
    return has_end and headers.get("connection", "").lower() != "close"
