"""Serve a process's metrics to Prometheus, over TLS and only to clients that may read them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from enum import StrEnum

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from vgpu_client.scrapers import PATH, Scrapers

logger = logging.getLogger(__name__)


class MetricsAccess(StrEnum):
    """The clients that may read metrics, and the protocol."""

    REVIEWED = "reviewed"
    """Over HTTPS, to clients with a token that the API server allows to get `/metrics`."""
    OPEN = "open"
    """Over HTTP, to every client that can reach the port. Metrics name tenants' namespaces."""


ACCESS_HELP = (
    "reviewed: HTTPS, for clients that the API server allows to get /metrics; open: HTTP, for any "
    "client that can reach the port"
)
"""Help text of the option `--metrics-access`."""


class MetricsServer:
    """Serves metrics until closed; `async with` starts and closes it.

    Args:
        registry: The metrics to serve.
        listening: The socket to serve on; closed at the end.
        scrapers: Reviews clients; None: every client that can reach the port may read.
        tls: Our certificate; None: plain HTTP.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        listening: socket.socket,
        *,
        scrapers: Scrapers | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._registry = registry
        self._listening = listening
        self._scrapers = scrapers
        self._tls = tls
        app = web.Application()
        app.router.add_get(PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def __aenter__(self) -> MetricsServer:
        await self._runner.setup()
        await web.SockSite(self._runner, self._listening, ssl_context=self._tls).start()
        logger.info(
            "metrics are served on port %d, %s",
            self._listening.getsockname()[1],
            "to any client" if self._scrapers is None else "to reviewed scrapers",
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        self._listening.close()

    async def _serve(self, request: web.Request) -> web.Response:
        if self._scrapers is not None:
            answer = await self._scrapers.review(request.headers.get("Authorization", ""))
            if answer.status != 200:
                headers = {"WWW-Authenticate": "Bearer"} if answer.status == 401 else {}
                return web.Response(status=answer.status, text=answer.text, headers=headers)
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        # In a thread: encoding a full node's registry takes milliseconds and would block the loop.
        body = await asyncio.to_thread(encoder, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})
