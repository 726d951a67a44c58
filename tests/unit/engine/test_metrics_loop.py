"""Metrics are served by an event loop of their own, not by the engine's or admission's."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request

import pytest

from vgpu_client.listen import listen
from vgpu_operator.config import OperatorConfig, parse
from vgpu_operator.exposition import serve_metrics


def a_config(port: int) -> OperatorConfig:
    return parse(["--metrics", f"127.0.0.1:{port}", "--metrics-access", "open"], {})


def a_free_port() -> int:
    with listen("127.0.0.1", 0) as listening:
        port: int = listening.getsockname()[1]
        return port


def scraped(port: int, timeout_s: float) -> int:
    """Return the metrics, and block the thread with its event loop until they arrive."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        answer.read()
        status: int = answer.status
        return status


async def test_metrics_are_served_while_the_loop_of_the_process_is_busy() -> None:
    port = a_free_port()
    serving = asyncio.ensure_future(serve_metrics(a_config(port), None))
    status = 0
    async with asyncio.timeout(20):
        while not status:
            await asyncio.sleep(0)
            try:
                status = scraped(port, 10.0)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):  # the server listens soon
                    raise
    assert status == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert "metrics" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


async def test_a_port_that_is_taken_ends_it() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        async with asyncio.timeout(10):
            await serve_metrics(a_config(taken.getsockname()[1]), None)
