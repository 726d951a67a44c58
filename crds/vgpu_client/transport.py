"""One HTTP exchange with the API server: send, receive, and classify failures.

It is separate from the verbs (`api.py`) because its one subject is hard enough: to find out, for
every way in which an exchange can fail, if a write was done, was not done, or may have been done.
aiohttp itself resends a PUT or DELETE if a kept-alive connection turns out to be dead, and then
reports the outcome of the second attempt. So writes that must be exact are PATCH and POST.
The exchange itself is made by an `Http` (`exchange.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from vgpu_client import json_text
from vgpu_client.connection import Connection
from vgpu_client.errors import ServerError, StreamBroken, Unknown, Unreachable, error_from_status
from vgpu_client.exchange import ExchangeError, Http, HttpAnswer, HttpRequest, TimeLimits

Object: TypeAlias = dict[str, Any]
"""An object of the API as it is on the wire."""

Params: TypeAlias = Mapping[str, str]

# A response may arrive this much later than the server's own limit.
_GRACE_S = 2.0
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
    """Sends requests, and reports their outcomes; owned by `Api`.

    Args:
        http: Makes the exchanges.
        connection: The server's address and our credentials.
        budget: The time within which every write must land.
        manner: In whose name and for how long requests are made.
    """

    def __init__(
        self,
        http: Http,
        connection: Connection,
        *,
        budget: WriteBudget = NoLimit(),  # noqa: B008 - has no state
        manner: Manner | None = None,
    ) -> None:
        self._http = http
        self._connection = connection
        self._budget = budget
        self._manner = manner or Manner()

    def within(self, budget: WriteBudget) -> Transport:
        """Return the same transport for writes that must land within the budget."""
        return Transport(self._http, self._connection, budget=budget, manner=self._manner)

    def acting_as(self, user: str) -> Transport:
        """Return the same transport with requests in another user's name."""
        manner = Manner(user=user, limit_s=self._manner.limit_s)
        return Transport(self._http, self._connection, budget=self._budget, manner=manner)

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
        except self._http.failures as error:
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
        data = json_text.dumps(body)
        try:
            return await self._exchange(
                method, path, params, data, content_type, timeout_s + _GRACE_S, connect_s=half_s
            )
        except self._http.unsent as error:
            raise Unreachable(f"{method} {path}: {_why(error)}") from error
        except self._http.failures as error:
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
        limits = TimeLimits(silence_s=inactivity_s)
        opened = False
        try:
            answer = await self._request("GET", path, params, None, "", limits)
            try:
                await _raise_refusal(answer)
                opened = True
                yield _lines(answer.chunks())
            finally:
                await answer.hang_up()
        except self._http.failures as error:
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
        limits = TimeLimits(connect_s=min(connect_s, timeout_s), total_s=timeout_s)
        answer = await self._request(method, path, params, data, content_type, limits)
        if answer.status == 401:
            await answer.read()
            await self._connection.credentials.renew()
            answer = await self._request(method, path, params, data, content_type, limits)
        await _raise_refusal(answer)
        text = await answer.read()
        try:
            decoded: Object = json_text.loads(text)
        except ValueError as error:  # a proxy in between answered
            raise ServerError(f"not JSON: {text[:80]!r}", status=answer.status) from error
        return decoded

    async def _request(
        self,
        method: str,
        path: str,
        params: Params,
        data: bytes | None,
        content_type: str,
        limits: TimeLimits,
    ) -> HttpAnswer:
        ours = await self._connection.credentials.headers()
        headers = [("Accept", "application/json"), *ours.items(), *self._manner.headers()]
        if content_type:
            headers.append(("Content-Type", content_type))
        request = HttpRequest(
            method=method,
            url=self._connection.server + path,
            params=params,
            headers=headers,
            body=data,
            tls=self._connection.tls,
            server_name=self._connection.server_name,
            proxy=self._connection.proxy,
        )
        sent = time.monotonic()
        answer = await self._http.send(request, limits)
        self._connection.time.observe(answer.header("Date"), sent=sent)
        if REQUESTS.isEnabledFor(REQUESTS_LEVEL):
            taken_ms = 1000 * (time.monotonic() - sent)
            text = "%s %s %d in %.0f ms"
            REQUESTS.log(REQUESTS_LEVEL, text, method, request.full_url, answer.status, taken_ms)
        return answer


async def _raise_refusal(answer: HttpAnswer) -> None:
    if answer.status < 300:
        return
    text = await answer.read()
    try:
        body = json_text.loads(text)
    except ValueError:
        body = {"message": text[:200].decode(errors="replace").strip()}
    seconds = answer.header("Retry-After")
    raise error_from_status(
        answer.status,
        body if isinstance(body, dict) else {},
        retry_after=float(seconds) if seconds.isdecimal() else None,
    )


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    # Readers of lines limit the length of a line, but an event may be a megabyte long.
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _why(error: BaseException) -> str:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, ExchangeError):
        return str(error)
    return f"{type(error).__name__}: {error}"
