"""Serves the web page over HTTP: static files, and JSON documents for visitors with a token.

    GET  /api/v1/me  /fleet  /nodes  /nodes/NAME  /claims  /claims/NAMESPACE/NAME  /idle  /search
    GET  /api/v1/history/fleet  /nodes/NAME  /namespaces/NAME  /claims/NAMESPACE/NAME
    POST /api/v1/what-if

A GET that accepts `text/event-stream` stays open and receives the document again whenever it
changes, as server-sent events. The page reads them with `fetch`, because an EventSource cannot send
an Authorization header. Permissions are reviewed for every event, so a stream ends when they are
revoked. No cookies are used, so other sites cannot make requests on a visitor's behalf.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import resources
from itertools import chain
from socket import socket
from typing import TypeAlias

import orjson
from aiohttp import web

from vgpu_api.errors import BadInput, VgpuError
from vgpu_client.reviews import User
from vgpu_operator.engine.scheduling.gate import is_on
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web import views, what_if
from vgpu_operator.web.history import History
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused, Visitors

logger = logging.getLogger(__name__)

CONNECTIONS = 512
STREAMS = 256
STREAMS_OF_A_USER = 16
QUESTIONS = 2
"""The number of what-if questions that are parsed at the same time."""
LARGEST_TEXT = 64 << 10
"""The largest what-if question in bytes: more than any pod needs, and parsed within a second."""
FIRST_REQUEST_S = 10.0
"""A connection that sends no request for this long is closed."""
_KEPT = 128
"""The number of cached documents."""
_KEPT_OF_A_USER = 16
_SILENCE_S = 15.0
"""After this long without a change, a comment is sent so that proxies keep the stream open."""
_SHORTEST_PAUSE_S = 1.0
_PART_OF_THE_TIME = 0.05
"""The largest share of the process's time that one stream may use."""
_EVENTS = "text/event-stream"
_JSON = "application/json"
_PAGE = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...], Sight]
"""The path and parameters of a document, and what its visitor may see."""
_Document: TypeAlias = Mapping[str, object]
_View: TypeAlias = Callable[[web.Request, Sight], _Document]


class WebServer:
    """The HTTP server. `async with` starts and stops it.

    Args:
        mirror: The cluster to show.
        visitors: Reviews tokens and permissions.
        history: Returns the use of the last day.
        listening: The listening socket; the server closes it.
        tls: The server's certificate; None: plain HTTP.
        synced: Set once the mirror is complete; until then the response is 503.
    """

    def __init__(
        self,
        mirror: Mirror,
        visitors: Visitors,
        history: History,
        listening: socket,
        *,
        tls: ssl.SSLContext | None,
        synced: asyncio.Event,
    ) -> None:
        self._mirror = mirror
        self._visitors = visitors
        self._history = history
        self._listening = listening
        self._tls = tls
        self._synced = synced
        self._kept: OrderedDict[_Key, tuple[int, bytes]] = OrderedDict()
        self._streams: dict[str, list[asyncio.Task[object]]] = {}  # by visitor, oldest first
        self._questions = asyncio.Semaphore(QUESTIONS)
        # connections that have not sent a request yet
        self._silent: set[asyncio.BaseProtocol] = set()
        self._server: asyncio.Server | None = None
        app = web.Application(client_max_size=LARGEST_TEXT, middlewares=[self._answered])
        folder = resources.files("vgpu_operator.web") / "page"
        for path, (name, type_) in _PAGE.items():
            # Load all files at start, so that a request path never reaches the file system.
            body = (folder / name).read_bytes()
            app.router.add_get(path, _static(body, type_))
        app.router.add_get("/livez", _static(b"ok", "text/plain"))
        app.router.add_get("/readyz", self._readyz)
        views_by_path: Mapping[str, _View] = {
            "/me": self._me,
            "/fleet": lambda _, sight: views.fleet(mirror, sight),
            "/nodes": self._nodes,
            "/nodes/{name}": lambda request, sight: views.node(
                mirror, sight, request.match_info["name"]
            ),
            "/claims": self._claims,
            "/claims/{namespace}/{name}": self._claim,
            "/idle": lambda request, sight: views.idle(
                mirror, sight, views.Query.read(request.query, views.IDLE_ORDERS)
            ),
            "/search": lambda request, sight: views.search(
                mirror, sight, views.Query.read(request.query, ())
            ),
        }
        orders: Mapping[str, Collection[str]] = {
            "/nodes": views.NODE_ORDERS,
            "/claims": views.CLAIM_ORDERS,
            "/idle": views.IDLE_ORDERS,
            "/search": (),
        }
        for path, view in views_by_path.items():
            handle = self._document(view, orders.get(path))
            app.router.add_get(f"/api/v1{path}", handle)
        for path in (
            *("/fleet", "/nodes/{name}", "/namespaces/{namespace}"),
            "/claims/{namespace}/{name}",
        ):
            app.router.add_get(f"/api/v1/history{path}", self._last_day)
        app.router.add_post("/api/v1/what-if", self._what_if)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, keepalive_timeout=30, shutdown_timeout=1
        )

    async def __aenter__(self) -> WebServer:
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connected, sock=self._listening, ssl=self._tls
        )
        logger.info("the page is served on port %d", self._listening.getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in chain.from_iterable(self._streams.values()):
            task.cancel()
        await self._runner.cleanup()
        self._listening.close()

    def _connected(self) -> asyncio.BaseProtocol:
        """Return the protocol for a new connection; beyond the limit, one that closes it."""
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= CONNECTIONS:
            return _Closing()
        protocol = server()
        self._silent.add(protocol)

        def close_if_silent() -> None:
            if protocol in self._silent:
                self._silent.discard(protocol)
                if protocol.transport is not None:
                    protocol.transport.close()

        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, close_if_silent)
        return protocol

    # Answers.

    @web.middleware
    async def _answered(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        try:
            answer = await handler(request)
        except VisitorRefused as error:
            answer = _error(error.status, str(error))
        except BadInput as error:
            answer = _error(400, str(error))
        except VgpuError as error:
            answer = _error(422, str(error))
        except web.HTTPRequestEntityTooLarge:
            answer = _error(413, f"the text is larger than {LARGEST_TEXT >> 10} KiB")
        except web.HTTPException as error:
            answer = _error(error.status, error.reason)
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._synced.is_set()
        return web.Response(
            status=200 if ready else 503, text="ok" if ready else "reading the cluster"
        )

    def _document(
        self, view: _View, orders: Collection[str] | None
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            user = await self._visitor(request)
            # reject bad parameters before they get into the cache
            views.Query.read(request.query, orders)
            sight = await self._sight(user, request)
            version, body = self._mirror.version, self._rendered(view, request, sight)
            if _EVENTS in request.headers.get("Accept", ""):
                return await self._stream(user, request, self._events(view, request, version, body))
            return web.Response(body=body, content_type=_JSON)

        return handle

    async def _last_day(self, request: web.Request) -> web.StreamResponse:
        user = await self._visitor(request)
        views.Query.read(request.query, None)
        sight = await self._sight(user, request)
        found = await self._history.of(views.last_day(self._mirror, sight, request.match_info))
        return web.Response(body=orjson.dumps(found), content_type=_JSON)

    async def _visitor(self, request: web.Request) -> User:
        user = await self._visitors.user(request.headers.get("Authorization", ""))
        if not self._synced.is_set():
            raise VisitorRefused(503, "the cluster is still being read; try again in a moment")
        return user

    async def _sight(self, user: User, request: web.Request) -> Sight:
        named = (request.match_info.get("namespace"), request.query.get("namespace"))
        known = {key.namespace for key in self._mirror.claims}
        return await self._visitors.sight(user, known | set(filter(None, named)))

    def _rendered(self, view: _View, request: web.Request, sight: Sight) -> bytes:
        """Return the document, from the cache if nothing has changed."""
        self._mirror.note_look()
        key = request.path, tuple(sorted(request.query.items())), sight
        version = self._mirror.version
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version:
            return kept[1]
        body = orjson.dumps(view(request, sight), option=orjson.OPT_NON_STR_KEYS)
        self._kept[key] = version, body
        self._kept.move_to_end(key)
        # Evict a document of the user who has most, so that no user can crowd out the others.
        of_users = Counter(sight.user for _, _, sight in self._kept)
        most, documents = of_users.most_common(1)[0]
        if documents > _KEPT_OF_A_USER or len(self._kept) > _KEPT:
            del self._kept[next(key for key in self._kept if key[2].user == most)]
        return body

    # Streams.

    async def _stream(
        self, user: User, request: web.Request, events: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        async with self._counted(user.name):
            answer = web.StreamResponse(headers={**_HEADERS, "Content-Type": _EVENTS})
            await answer.prepare(request)
            try:
                async for event in events:
                    await answer.write(event)
            except ConnectionResetError:
                pass  # the visitor closed the page
            return answer

    @asynccontextmanager
    async def _counted(self, user: str) -> AsyncIterator[None]:
        visitor = _visitor_of(user)
        own = len(self._streams.get(visitor, ()))
        if own >= STREAMS_OF_A_USER or not self._has_room(own):
            raise VisitorRefused(429, "too many pages are open; close one and try again")
        task = asyncio.current_task()
        assert task is not None
        self._streams.setdefault(visitor, []).append(task)
        try:
            yield
        finally:
            self._end_stream(visitor, task)

    def _has_room(self, own: int) -> bool:
        """Return True if a visitor with this many streams may open another one.

        At the limit, the visitor with the most streams loses the oldest one to a visitor with
        fewer. Otherwise, a few accounts could lock out everyone else.
        """
        if sum(map(len, self._streams.values())) < STREAMS:
            return True
        most = max(self._streams, key=lambda visitor: len(self._streams[visitor]))
        if len(self._streams[most]) <= own + 1:
            return False
        oldest = self._streams[most][0]
        self._end_stream(most, oldest)
        oldest.cancel()
        return True

    def _end_stream(self, visitor: str, task: asyncio.Task[object]) -> None:
        streams = self._streams.get(visitor, [])
        if task in streams:
            streams.remove(task)
            if not streams:
                del self._streams[visitor]

    async def _events(
        self, view: _View, request: web.Request, version: int, body: bytes
    ) -> AsyncIterator[bytes]:
        """Yield the document now and after each change. Ends with an error once access is refused.

        Args:
            view: Computes the document.
            request: The request; its token and permissions are reviewed each time.
            version: The version of the mirror from which the first document was computed.
            body: The first document.
        """
        mirror = self._mirror
        yield b"data: " + body + b"\n\n"
        while True:
            await mirror.changed(version, within_s=_SILENCE_S)
            version, began = mirror.version, time.perf_counter()
            try:
                # Review again, because the token or a permission may have been revoked since.
                user = await self._visitor(request)
                sight = await self._sight(user, request)
                began = time.perf_counter()
                now = self._rendered(view, request, sight)
            except VgpuError as error:
                status = error.status if isinstance(error, VisitorRefused) else 422
                text = orjson.dumps({"status": status, "error": str(error)})
                yield b"event: refused\ndata: " + text + b"\n\n"
                return
            took = time.perf_counter() - began
            if now != body:
                body = now
                yield b"data: " + body + b"\n\n"
            else:
                yield b":\n\n"
            # Recompute expensive documents less often.
            await asyncio.sleep(max(_SHORTEST_PAUSE_S, took / _PART_OF_THE_TIME))

    # Views.

    def _me(self, _: web.Request, sight: Sight) -> _Document:
        return {
            "user": sight.user,
            "devices": sight.devices,
            "nodes": sight.nodes,
            "everyNamespace": sight.everywhere,
            "namespaces": sorted(sight.namespaces),
        }

    def _nodes(self, request: web.Request, sight: Sight) -> _Document:
        return views.nodes(self._mirror, sight, views.Query.read(request.query, views.NODE_ORDERS))

    def _claims(self, request: web.Request, sight: Sight) -> _Document:
        return views.claims(
            self._mirror, sight, views.Query.read(request.query, views.CLAIM_ORDERS)
        )

    def _claim(self, request: web.Request, sight: Sight) -> _Document:
        key = ClaimKey(request.match_info["namespace"], request.match_info["name"])
        return views.claim(self._mirror, sight, key, now=datetime.now(UTC))

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        user = await self._visitor(request)
        try:
            text = (await request.read()).decode()
        except UnicodeDecodeError as error:
            raise VisitorRefused(400, f"the text is not UTF-8: {error}") from error
        if self._questions.locked():
            raise VisitorRefused(429, "too many questions at once; try again")
        async with self._questions:
            # Parse in a thread, because YAML of this size may take most of a second.
            found = await asyncio.to_thread(what_if.documents, text)
            namespaces = what_if.namespaces(found)
            sight = await self._visitors.sight(user, namespaces)
            if is_on(self._mirror.state):
                sight = await self._visitors.sight_of_volumes(user, sight, namespaces)
            priorities = await self._visitors.priorities()
            answer = what_if.what_if(self._mirror, sight, found, priorities)
        return web.Response(body=orjson.dumps(answer), content_type=_JSON)


def _visitor_of(user: str) -> str:
    """Return the name under which streams are counted: one for all ServiceAccounts of a namespace.

    Otherwise, anyone who may create ServiceAccounts could open any number of streams.
    """
    return user.rpartition(":")[0] if user.startswith("system:serviceaccount:") else user


class _Closing(asyncio.Protocol):
    """A protocol that closes connections beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection."""
        transport.close()


def _static(body: bytes, type_: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=type_, charset="utf-8")

    return handle


def _error(status: int, text: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return web.Response(
        status=status, body=orjson.dumps({"error": text}), content_type=_JSON, headers=headers
    )
