"""The lock of the agent that serves the node; the next agent waits for it, ready to take over.

During an update two agents are on a node. The new one reads what it needs, reports itself ready and
waits; then the old one is ended, and the new one serves within a moment. Two agents at once would
write one state. And the kubelet takes a plugin out of service whenever an earlier one of its
resource ends (seen in 1.36: `runClient` disconnects whichever client has the name), so the new one
registers after the old one has ended, not before.

The lock is on a file in the state folder: the kernel releases it with the process that holds it,
however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_FILE = "serving.lock"


class ServingLock:
    """The lock that the serving agent of a node holds.

    Args:
        state: The state folder, which all agents of the node share.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / _FILE
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """True while this process holds the lock."""
        return self._descriptor is not None

    async def acquire(self) -> None:
        """Wait until no other process holds the lock, and take it.

        Raises:
            OSError: The file cannot be made or locked.
        """
        # Not inherited by child processes, which would keep the lock beyond this process's end.
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
                    await asyncio.sleep(_POLL_S)
                else:
                    break
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the next agent serve. Does nothing without the lock."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
