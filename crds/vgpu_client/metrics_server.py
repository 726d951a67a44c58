"""Serves a process's metrics to Prometheus, over TLS and to those who may read them."""

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
    """Who may read metrics, and how."""

    REVIEWED = "reviewed"
    """Over HTTPS, to clients with a token that the API server lets get `/metrics`."""
    OPEN = "open"
    """Over HTTP, to every client that reaches the port. They have tenants' namespaces."""


ACCESS_HELP = (
    "reviewed: over HTTPS, to those whom the API server lets get /metrics; open: over HTTP, to "
    "whoever reaches the port"
)
"""Of the option `--metrics-access` of each process."""


class MetricsServer:
    """Serves until closed; `async with` starts and closes it.

    Args:
        registry: What is served.
        listening: Where; closed at the end.
        scrapers: Reviews clients; None: every client that reaches the port may read.
        tls: What to show of ourselves; None: plain HTTP.
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
            "to whoever reaches it" if self._scrapers is None else "to reviewed scrapers",
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
        # In a thread: a registry of a full node takes milliseconds, and the loop has better to do.
        body = await asyncio.to_thread(encoder, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})
