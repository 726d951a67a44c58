"""Whether this agent still works, for the kubelet's probes.

Served from a thread of its own, so that it answers when the event loop does not: a loop that is
stuck in a call, or a process that is stopped, must look dead, not busy. `/healthz` fails when the
loop has not turned for `STUCK_S`. `/readyz` fails until the agent is ready to serve, with the
cause.
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from vgpu_client.clock import Clock
from vgpu_client.listen import listen

BEAT_S = 1.0
STUCK_S = 20.0
"""Longer than any call that the loop makes on purpose; a probe adds its own periods."""


class Readiness(Protocol):
    """Knows whether the agent is ready."""

    def unready(self) -> str:
        """Why it is not; empty when it is. Called from other threads."""


class Liveness:
    """What the probes are answered by.

    Args:
        agent: Knows whether it is ready; None: it always is.
        clock: The time.
    """

    def __init__(
        self,
        agent: Readiness | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._agent = agent
        self._clock = clock or Clock()
        self._beat = self._clock.monotonic()

    async def run(self) -> None:
        """Note that the loop turns, for ever."""
        while True:
            self._beat = self._clock.monotonic()
            await asyncio.sleep(BEAT_S)

    def fault(self) -> str:
        """Why the agent must be started anew; empty while it works."""
        silent = self._clock.monotonic() - self._beat
        return f"the event loop has not turned for {silent:.0f} s" if silent > STUCK_S else ""

    def answer(self, path: str) -> tuple[int, str]:
        """The status and text for a probe's path."""
        if path == "/healthz":
            fault = self.fault()
        elif path == "/readyz":
            fault = self.fault() or (self._agent.unready() if self._agent else "")
        else:
            return 404, "try /healthz or /readyz"
        return (503, fault) if fault else (200, "ok")


class ProbeServer:
    """Answers probes until closed.

    Args:
        liveness: The answers.
        port: To listen on, on every address of IPv4 and IPv6; 0: one that is free.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, liveness: Liveness, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                status, text = liveness.answer(self.path)
                body = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """A probe is no news."""

        listening = listen("", port)
        self._server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket, self._server.server_address = listening, listening.getsockname()
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="probes", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
