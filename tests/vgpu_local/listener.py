"""An HTTP server on loopback for the stand-ins, which can restart at the same port."""

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
    """Start an HTTP server that cancels the handler when a client hangs up.

    Args:
        handle: Answers requests.
        port: The port; 0 for a free one.
        tls: The TLS context; None for plain HTTP.

    Returns:
        The runner, whose `cleanup` ends the server, and the port.

    Raises:
        OSError: The port is taken.
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
