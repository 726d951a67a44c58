"""Answers the kubelet's liveness and readiness probes.

They are served in a separate thread, so they get a response even if the event loop is stuck.
`/healthz` fails if the loop has not run for `STUCK_S`, and the kubelet restarts the agent.
`/readyz` fails with the cause until the agent is ready to serve, and if the loop has not run for
`UNREADY_S`: by the pod's readiness the operator sees that the agent lives.
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
"""Longer than any intended call in the loop; a probe adds its own periods."""
UNREADY_S = 12.0
"""With the periods of the probe and the operator's patience, a hanging agent is noticed in 40 s."""


class Readiness(Protocol):
    """Tells if the agent is ready."""

    def unready(self) -> str:
        """Return why it is not ready; empty when it is. Called from other threads."""


class Liveness:
    """The responses to probes.

    Args:
        agent: Knows if it is ready; None if it always is.
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
        """Record that the event loop runs, until cancelled."""
        while True:
            self._beat = self._clock.monotonic()
            await asyncio.sleep(BEAT_S)

    def fault(self, limit_s: float) -> str:
        """Return that the loop has not turned for longer than a limit; empty while it works."""
        silent = self._clock.monotonic() - self._beat
        return f"the event loop has not turned for {silent:.0f} s" if silent > limit_s else ""

    def answer(self, path: str) -> tuple[int, str]:
        """Return the HTTP status and text for a probe's path."""
        if path == "/healthz":
            fault = self.fault(STUCK_S)
        elif path == "/readyz":
            fault = self.fault(UNREADY_S) or (self._agent.unready() if self._agent else "")
        else:
            return 404, "try /healthz or /readyz"
        return (503, fault) if fault else (200, "ok")


class ProbeServer:
    """Answers probes until closed.

    Args:
        liveness: The responses.
        port: The port to listen on, on all IPv4 and IPv6 addresses; 0 for any free one.

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
                """Do not log probes."""

        # `listen` opens one socket for IPv4 and IPv6, which the server cannot do itself.
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
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
