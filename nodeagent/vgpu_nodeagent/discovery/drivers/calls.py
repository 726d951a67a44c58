"""Calls into a library that may hang, in one thread and with a deadline for the caller.

A hung call cannot be interrupted. Its thread is left alone, later calls fail at once until it
returns, and the process can still end because the thread is a daemon.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from vgpu_nodeagent.errors import DriverUnavailable

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class CallThread:
    """Runs calls one after the other in a thread of its own.

    Args:
        name: The name of the library, for messages.
        deadline_s: How long a caller waits.
    """

    def __init__(self, name: str, *, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._hanging = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T], *, deadline_s: float | None = None) -> T:
        """Call the function in the thread and return its result.

        Raises:
            DriverUnavailable: This call or an earlier one did not return in time.
        """
        if self._hanging:
            raise DriverUnavailable(f"{self._name} does not answer: an earlier call still hangs")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, future, loop))
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(future)
        except TimeoutError as error:
            self._hanging = True
            future.add_done_callback(self._came_back)
            raise DriverUnavailable(f"{self._name} did not answer within {limit_s} s") from error

    def close(self) -> None:
        """End the thread after the calls in progress, without waiting for them."""
        self._jobs.put(None)

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._hanging = False
        if not future.cancelled():
            future.exception()  # its caller has given up

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future, loop = job
            try:
                result, error = function(), None
            except Exception as raised:  # the caller gets any exception
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_resolve, future, result, error)
            except RuntimeError:
                return  # the loop is closed because the process ends


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
