"""An HTTP server on loopback, as the stand-ins open it; after a restart at the same port."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

_CLOSE_S = 0.1
_BACKLOG = 1024


async def listen(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    *,
    port: int,
    tls: ssl.SSLContext | None,
) -> tuple[web.ServerRunner, int]:
    """Serve; a client that hangs up ends its handler.

    Args:
        handle: answers requests.
        port: 0 takes a free one.
        tls: None: plain HTTP.

    Returns:
        What ends the server (`cleanup`), and its port.

    Raises:
        OSError: the port is taken.
    """
    runner = web.ServerRunner(
        web.Server(handle, access_log=None, handler_cancellation=True),
        handle_signals=False,
        shutdown_timeout=_CLOSE_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, backlog=_BACKLOG)
    await site.start()
    return runner, runner.addresses[0][1]
