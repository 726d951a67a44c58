"""Kills this process when its event loop stands still: the kubelet cannot.

The kubelet calls Allocate without a time limit from the loop in which it also acts on liveness
probes. A plugin that accepts the call and never answers stops that loop: no pod of the node starts
or ends any more, and the probe that would have the plugin restarted is not looked at (Kubernetes
1.36, pkg/kubelet/cm/devicemanager/endpoint.go; seen on a real node). When the process dies, the
call fails and the kubelet goes on.

A thread cannot do it: a process may be stopped as a whole, or be stuck in a call that keeps
Python's lock. So a forked process waits for a sign of life on a pipe, and kills its parent where
none comes.
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
    """Forks the process that waits; call it before there is any thread.

    Args:
        limit_s: Without a sign of life for so long this process is killed.
    """

    def __init__(self, limit_s: float) -> None:
        reader, self._writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _wait(reader, parent, limit_s)
        os.close(reader)
        os.set_blocking(self._writer, False)

    async def keep(self) -> None:
        """Give signs of life for as long as the event loop turns."""
        while True:
            try:
                os.write(self._writer, b".")
            except BlockingIOError:
                pass  # it has not read for hours: it is stopped itself, and kills nothing
            except BrokenPipeError:
                logger.warning("the process that would end this one when it hangs is gone")
                return
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        """Let the process that waits end."""
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _wait(reader: int, parent: int, limit_s: float) -> NoReturn:
    """Read signs of life until the parent ends; its death closes the pipe, however it dies."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while select.select([reader], [], [], limit_s)[0]:
        if not os.read(reader, 4096):
            os._exit(0)
    said = f"vgpu-nodeagent: its event loop has not turned for {limit_s:g} s: killed\n"
    os.write(2, said.encode())
    os.kill(parent, signal.SIGKILL)
    os._exit(1)
