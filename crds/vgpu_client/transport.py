"""One HTTP exchange with the API server: send, receive, and classify failures.

It is separate from the verbs (`api.py`) because its one subject is hard enough: to find out, for
every way in which an exchange can fail, if a write was done, was not done, or may have been done.
aiohttp itself resends a PUT or DELETE if a kept-alive connection turns out to be dead, and then
reports the outcome of the second attempt. So writes that must be exact are PATCH and POST.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import aiohttp
import orjson
from yarl import URL

from vgpu_client.connection import Connection
from vgpu_client.errors import ServerError, StreamBroken, Unknown, Unreachable, error_from_status

Object: TypeAlias = dict[str, Any]
"""An object of the API as it is on the wire."""

Params: TypeAlias = Mapping[str, str]

# A response may arrive this much later than the server's own limit.
_GRACE_S = 2.0
_CONNECT_S = 10.0
# A write with less time left than this is not started.
_SHORTEST_S = 0.25


REQUESTS = logging.getLogger("vgpu_client.requests")
"""Tells of each request."""
REQUESTS_LEVEL = logging.DEBUG - 5
"""Below DEBUG, at which a program would tell of nothing else."""


@dataclass(frozen=True, slots=True)
class Manner:
    """In whose name requests are made, and for how long.

    Attributes:
        user: The user to impersonate, if the credentials allow it; empty: ourselves.
        groups: The groups of that user; empty: those that the server gives.
        uid: The UID of that user; empty: none.
        limit_s: The longest time that a read or a write may take.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    limit_s: float = float("inf")

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that name the user; one name may occur several times."""
        named = [("Impersonate-User", self.user), ("Impersonate-Uid", self.uid)]
        named += [("Impersonate-Group", group) for group in self.groups]
        return [(name, value) for name, value in named if value]


class WriteBudget(Protocol):
    """A right to write that may end, such as a lease."""

    def remaining_s(self) -> float:
        """Return within how many seconds from now a write must have landed."""


class NoLimit:
    """The budget of writes that may land at any time."""

    def remaining_s(self) -> float:
        """Return infinity."""
        return float("inf")


class Transport:
    """Sends requests over one session; owned by `Api`.

    Args:
        session: The HTTP session.
        connection: The server's address and our credentials.
        budget: The time within which every write must land.
        manner: In whose name and for how long requests are made.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        connection: Connection,
        *,
        budget: WriteBudget = NoLimit(),  # noqa: B008 - has no state
        manner: Manner | None = None,
    ) -> None:
        self._session = session
        self._connection = connection
        self._budget = budget
        self._manner = manner or Manner()

    def within(self, budget: WriteBudget) -> Transport:
        """Return the same transport for writes that must land within the budget."""
        return Transport(self._session, self._connection, budget=budget, manner=self._manner)

    def acting_as(self, user: str) -> Transport:
        """Return the same transport with requests in another user's name."""
        manner = Manner(user=user, limit_s=self._manner.limit_s)
        return Transport(self._session, self._connection, budget=self._budget, manner=manner)

    @property
    def is_limited(self) -> bool:
        """True if the user limits the time of a request."""
        return self._manner.limit_s < float("inf")

    def unix(self) -> float:
        """Return the server's Unix time in seconds."""
        return self._connection.time.unix()

    async def read(self, path: str, params: Params, *, timeout_s: float) -> Object:
        """GET a document.

        Raises:
            Unreachable: There was no response; it is safe to retry.
            ApiError: The server refused.
        """
        try:
            limit_s = min(timeout_s, self._manner.limit_s)
            return await self._exchange("GET", path, params, None, "", limit_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"GET {path}: {_why(error)}") from error

    async def write(
        self,
        method: str,
        path: str,
        params: Params,
        body: object,
        *,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> Object:
        """Send a write without retries; the server abandons it after `timeout_s` seconds.

        If there is a budget, half of it is for reaching the server and half for the server's work.
        So the write takes effect within the budget or not at all, however long it takes to reach
        the server.

        Raises:
            Unreachable: The request was not sent.
            Unknown: The request was sent but no response came, or the server hit its time limit.
            ApiError: The server refused the request.
        """
        half_s = self._budget.remaining_s() / 2
        if half_s < _SHORTEST_S:
            raise Unreachable(f"{method} {path}: no time left to write")
        timeout_s = min(timeout_s, half_s, self._manner.limit_s)
        params = {**params, "timeout": f"{max(1, int(timeout_s * 1000))}ms"}
        data = orjson.dumps(body)
        try:
            return await self._exchange(
                method, path, params, data, content_type, timeout_s + _GRACE_S, connect_s=half_s
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"{method} {path}: {_why(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(f"{method} {path}: {_why(error)}") from error
        except ServerError as error:
            if error.status == 504:
                raise Unknown(f"{method} {path}: {error}") from error
            raise

    @asynccontextmanager
    async def stream(
        self, path: str, params: Params, *, inactivity_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET an endless response line by line; silence beyond `inactivity_s` breaks it.

        Raises:
            Unreachable: The stream could not be opened.
            StreamBroken: The stream broke or fell silent. Its proper end is not an error.
            ApiError: The server refused.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=inactivity_s)
        opened = False
        try:
            async with await self._request("GET", path, params, None, "", timeout) as answer:
                await _raise_refusal(answer)
                opened = True
                try:
                    yield _lines(answer.content)
                finally:
                    await _hang_up(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            kind = StreamBroken if opened else Unreachable
            raise kind(f"watch {path}: {_why(error)}") from error

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Params,
        data: bytes | None,
        content_type: str,
        timeout_s: float,
        *,
        connect_s: float = float("inf"),
    ) -> Object:
        timeout = aiohttp.ClientTimeout(
            total=timeout_s,
            connect=min(connect_s, timeout_s),
            sock_connect=min(_CONNECT_S, connect_s, timeout_s),
        )
        answer = await self._request(method, path, params, data, content_type, timeout)
        if answer.status == 401:
            answer.release()
            await self._connection.credentials.renew()
            answer = await self._request(method, path, params, data, content_type, timeout)
        async with answer:
            await _raise_refusal(answer)
            text = await answer.read()
            try:
                decoded: Object = orjson.loads(text)
            except orjson.JSONDecodeError as error:  # a proxy in between answered
                raise ServerError(f"not JSON: {text[:80]!r}", status=answer.status) from error
            return decoded

    async def _request(
        self,
        method: str,
        path: str,
        params: Params,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the session enforces it
    ) -> aiohttp.ClientResponse:
        ours = await self._connection.credentials.headers()
        headers = [("Accept", "application/json"), *ours.items(), *self._manner.headers()]
        if content_type:
            headers.append(("Content-Type", content_type))
        tls: ssl.SSLContext | bool = self._connection.tls or True
        sent = time.monotonic()
        answer = await self._session.request(
            method,
            URL(self._connection.server + path).with_query(params),
            data=data,
            headers=headers,
            timeout=timeout,
            ssl=tls,
            server_hostname=self._connection.server_name,
            proxy=self._connection.proxy,
            allow_redirects=False,
        )
        self._connection.time.observe(answer.headers.get("Date", ""), sent=sent)
        if REQUESTS.isEnabledFor(REQUESTS_LEVEL):
            taken_ms = 1000 * (time.monotonic() - sent)
            text = "%s %s %d in %.0f ms"
            REQUESTS.log(REQUESTS_LEVEL, text, method, answer.url, answer.status, taken_ms)
        return answer


async def _hang_up(answer: aiohttp.ClientResponse) -> None:
    # The stream was left in the middle. Do not wait for TLS shutdown: the server keeps talking.
    connection = answer.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
        await asyncio.sleep(0)  # the socket closes in the loop's next iteration


async def _raise_refusal(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 300:
        return
    text = await answer.read()
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        body = {"message": text[:200].decode(errors="replace").strip()}
    seconds = answer.headers.get("Retry-After", "")
    raise error_from_status(
        answer.status,
        body if isinstance(body, dict) else {},
        retry_after=float(seconds) if seconds.isdecimal() else None,
    )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # StreamReader.readline() limits the length of a line, but an event may be a megabyte long.
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _why(error: BaseException) -> str:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"
