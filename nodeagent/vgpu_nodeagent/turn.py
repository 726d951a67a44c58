"""Whose turn it is to serve the node: one agent at a time, the next one ready behind it.

During an update two agents are on a node. The new one reads what it needs, reports itself ready and
waits; the old one is ended then, and the new one serves within a moment. Both at once would write
one state, and the kubelet takes a plugin out of service whenever an earlier one of its resource
ends (seen in 1.36: `runClient` disconnects whichever client has the name), so the new one registers
after the old one has ended, not before.

The turn is a lock on a file in the state folder: the kernel gives it up with the process that has
it, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_LOOK_S = 0.02
_FILE = "serving.lock"


class Turn:
    """The right to serve, of one process at a time.

    Args:
        state: The state folder, which all agents of the node share.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / _FILE
        self._descriptor: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this agent serves."""
        return self._descriptor is not None

    async def wait(self) -> None:
        """Return when it is ours.

        Raises:
            OSError: The file cannot be made or locked.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        has_waited = False
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not has_waited:
                        logger.info("another agent serves this node; waiting for it to end")
                        has_waited = True
                    await asyncio.sleep(_LOOK_S)
                else:
                    break
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def end(self) -> None:
        """Let the next one serve. May be repeated."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
