"""A proxy that injects the stand-in's faults in front of any API server.

A real API server cannot be told to lose an answer or freeze a stream. A proxy between it and its
clients can do both, from the same `Fault` descriptions. It keeps no state of the cluster, and runs
in a thread with its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.faults import Fault, Faults
from vgpu_local.apiserver.watches import Break
from vgpu_local.background import BackgroundLoop
from vgpu_local.broken_stream import BrokenStream, Dropped
from vgpu_local.listener import listen
from vgpu_local.pki import Authority
from vgpu_local.request_words import Words, words_of
from vgpu_local.started import Started

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "host",
        "keep-alive",
        "accept-encoding",
        "transfer-encoding",
        "upgrade",
    }
)
_START_LIMIT_S = 10.0
_WRITES = ("create", "update", "patch", "delete")


class FaultProxy(Started):
    """A proxy with faults; use it as a context manager, or call `start` and `stop`.

    Args:
        upstream: The URL of the API server.
        trust: A client's TLS context for the API server; None for plain HTTP.
        authority: The authority for the proxy's certificate; None for a new one.
        seed: The seed that decides which requests a fault with a share affects.

    Attributes:
        faults: The faults to inject.
    """

    def __init__(
        self,
        upstream: str,
        *,
        trust: ssl.SSLContext | None,
        authority: Authority | None = None,
        seed: int = 0,
    ) -> None:
        self.faults = Faults(seed=seed)
        self.authority = authority or Authority(name="vgpu-fault-proxy")
        self._upstream = URL(upstream)
        self._trust = trust
        self._context = self.authority.leaf().server_context()
        self._streams: set[BrokenStream] = set()
        self._tokens: dict[str, str] = {}  # what the bearer shows here → what it is upstream
        self._acts_as: dict[str, str] = {}  # likewise → the account that it impersonates
        self._landing: set[asyncio.Task[web.StreamResponse]] = set()
        self._port = 0
        self._loop: BackgroundLoop | None = None
        self._runner: web.ServerRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Return the URL for clients, which stays the same after a restart."""
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, of_upstream: Path, path: Path, *, user: str, acts_as: str = "") -> Path:
        """Write a kubeconfig that leads through the proxy.

        Args:
            of_upstream: The kubeconfig with the token for the API server.
            path: The file to write.
            user: The user as the proxy sees it; faults may be limited to one user.
            acts_as: The account that the API server sees, with all rights.
        """
        config = yaml.safe_load(of_upstream.read_text())
        (credentials,) = (entry["user"] for entry in config["users"])
        self._tokens[f"Bearer {user}"] = f"Bearer {credentials['token']}"
        if acts_as:
            self._acts_as[f"Bearer {user}"] = acts_as
        credentials["token"] = user
        authority = path.with_suffix(".ca.crt")
        authority.write_bytes(self.authority.certificate)
        for cluster in config["clusters"]:
            cluster["cluster"] = {"server": self.url, "certificate-authority": str(authority)}
        path.write_text(yaml.safe_dump(config))
        return path

    def start(self) -> None:
        """Start to serve, and return when connections are accepted.

        Raises:
            OSError: The port is taken.
        """
        self._loop = BackgroundLoop("fault-proxy")
        try:
            self._loop.run(self._open(), limit=_START_LIMIT_S)
        except BaseException:
            self._loop.stop()
            self._loop = None
            raise

    def stop(self) -> None:
        """Cut every connection and end the thread; may be called again."""
        if self._loop is not None:
            self._loop.run(self._close())
            self._loop.stop()
            self._loop = None

    def restart(self, *, down_for: float = 0.0) -> None:
        """Cut all connections and serve again, after `down_for` seconds, at the same URL."""
        assert self._loop is not None, "the proxy is not started"
        self._loop.run(self._close())
        time.sleep(down_for)
        self._loop.run(self._open(), limit=_START_LIMIT_S)

    def break_watches(self, resource: str = "*", how: Break = "drop") -> int:
        """Break all open streams; return how many there were.

        They are cut (`drop`), silenced (`freeze`) or expired (`gone`).
        """
        assert self._loop is not None, "the proxy is not started"

        async def broken() -> int:
            chosen = [s for s in self._streams if resource in ("*", s.resource)]
            for stream in chosen:
                stream.break_off(how)
            return len(chosen)

        return self._loop.run(broken())

    async def _open(self) -> None:
        # The proxy freezes streams on purpose, so none of these may time out.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
            read_bufsize=2**22,
        )
        self._runner, self._port = await listen(self._handle, port=self._port, tls=self._context)

    async def _close(self) -> None:
        for stream in self._streams:
            stream.break_off("drop")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for landing in tuple(self._landing):
            landing.cancel()
        await asyncio.gather(*self._landing, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        words = words_of(request.method, request.path, request.query)
        user = request.headers.get("Authorization", "").removeprefix("Bearer ")
        sent = await request.content.read() if request.can_read_body else None
        faults: list[Fault] = []
        if words is not None:
            faults = self.faults.take(words.verb, words.resource, words.name, user)
        if words is None or words.verb not in _WRITES:
            return await self._answer(request, sent, words, faults)
        # A write that was sent lands, although its client may be gone by then.
        landing = asyncio.create_task(self._answer(request, sent, words, faults))
        self._landing.add(landing)
        landing.add_done_callback(self._landing.discard)
        return await asyncio.shield(landing)

    async def _answer(
        self,
        request: web.BaseRequest,
        sent: bytes | None,
        words: Words | None,
        faults: list[Fault],
    ) -> web.StreamResponse:
        try:
            is_refused = await _befalls(faults, words)
            if is_refused or self._session is None:  # it came while everything was being cut
                return _cut(request)
            is_late = request.transport is None or request.transport.is_closing()
            if is_late and words is not None and words.verb in _WRITES:
                self.faults.landed_late += 1
            async with self._forward(self._session, request, sent) as answer:
                if words is not None and words.verb == "watch" and answer.status == 200:
                    return await self._watch(request, answer, words, faults)
                body = await answer.read()
        except StatusError as error:
            return _refusal(error)
        except (aiohttp.ClientError, RuntimeError):  # the latter: the session was just closed
            return _cut(request)  # the API server went away: so does this
        if any(fault.action == "lost" for fault in faults):
            return _cut(request)
        if answered := next((fault for fault in faults if fault.action == "answered"), None):
            return _refusal(answered.error())
        return web.Response(body=body, status=answer.status, headers=_end_to_end(answer.headers))

    @contextlib.asynccontextmanager
    async def _forward(
        self, session: aiohttp.ClientSession, request: web.BaseRequest, sent: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _end_to_end(request.headers)
        headers["Accept-Encoding"] = "identity"
        shown = headers.get("Authorization", "")
        headers["Authorization"] = self._tokens.get(shown, shown)
        if shown in self._acts_as:
            headers["Impersonate-User"] = self._acts_as[shown]
            headers["Impersonate-Group"] = "system:masters"
        async with session.request(
            request.method,
            self._upstream.join(URL(request.raw_path, encoded=True)),
            headers=headers,
            data=sent,
            ssl=self._trust if self._trust is not None else True,
            allow_redirects=False,
        ) as answer:
            yield answer

    async def _watch(
        self,
        request: web.BaseRequest,
        answer: aiohttp.ClientResponse,
        words: Words,
        faults: list[Fault],
    ) -> web.StreamResponse:
        stream = BrokenStream(words.resource, answer.content)
        for fault in faults:
            if fault.action in ("drop", "freeze", "gone"):
                stream.break_after(fault.after, fault.action)
        response = web.StreamResponse(headers=_end_to_end(answer.headers))
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._streams.add(stream)
        try:
            async for line in stream.lines():
                await response.write(line)
        except (Dropped, aiohttp.ClientError):
            return _cut(request)
        except ConnectionResetError:
            pass  # the client went away
        finally:
            self._streams.discard(stream)
        return response


async def _befalls(faults: list[Fault], words: Words | None) -> bool:
    """Let faults befall a request before it is passed on; return True if it is refused.

    Raises:
        StatusError: It is answered with this, and not passed on.
    """
    for fault in faults:
        if fault.action == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.action == "status":
            raise fault.error()
        elif fault.action == "refuse":
            return True
        elif fault.action == "gone" and words is not None and words.verb != "watch":
            raise StatusError(410, "Expired", "injected fault")
    return False


def _end_to_end(headers: Any) -> CIMultiDict[str]:
    kept = ((key, value) for key, value in headers.items() if key.lower() not in _HOP_BY_HOP)
    return CIMultiDict(kept)


def _refusal(error: StatusError) -> web.Response:
    wait = (error.details or {}).get("retryAfterSeconds")
    headers = {"Retry-After": str(wait)} if wait else {}
    return web.Response(
        body=orjson.dumps(error.status()),
        status=error.code,
        content_type="application/json",
        headers=headers,
    )


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
