"""Kills this process if its event loop is stuck, because then the kubelet cannot.

The kubelet calls Allocate without a deadline, from the loop in which it also acts on liveness
probes. A plugin that accepts the call and never answers stops that loop: no pod of the node starts
or ends any more, and the probe that would restart the plugin is not evaluated (Kubernetes 1.36,
pkg/kubelet/cm/devicemanager/endpoint.go; seen on a real node). When the process dies, the call
fails and the kubelet continues.

A thread cannot do this: the whole process may be stopped, or stuck in a call that holds the GIL.
So a forked process waits for heartbeats on a pipe, and kills its parent if none comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
from typing import NoReturn

logger = logging.getLogger(__name__)

BEAT_S = 1.0


class HangGuard:
    """Forks the watching process; make it before any thread starts.

    Args:
        limit_s: Kill this process after so many seconds without a heartbeat.
    """

    def __init__(self, limit_s: float) -> None:
        reader, self._writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _wait(reader, parent, limit_s)
        os.close(reader)
        # A full pipe must not block the watched event loop.
        os.set_blocking(self._writer, False)

    async def keep(self) -> None:
        """Send heartbeats as long as the event loop runs."""
        while True:
            try:
                os.write(self._writer, b".")
            except BlockingIOError:
                pass  # the watching process has not read for hours, so it must be stopped
            except BrokenPipeError:
                logger.warning("the process that would kill this one if it hangs is gone")
                return
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        """End the watching process."""
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _wait(reader: int, parent: int, limit_s: float) -> NoReturn:
    """Read heartbeats until the parent ends; its death closes the pipe, however it dies."""
    # Signals to the process group are meant for the parent, which may need time to end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while select.select([reader], [], [], limit_s)[0]:
        if not os.read(reader, 4096):
            os._exit(0)
    said = f"vgpu-nodeagent: its event loop has not turned for {limit_s:g} s: killed\n"
    os.write(2, said.encode())
    os.kill(parent, signal.SIGKILL)
    os._exit(1)
