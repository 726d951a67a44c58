"""An event loop in a thread of its own, so that synchronous code can use asynchronous parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from typing import Any, TypeVar

T = TypeVar("T")

_ENTER_S = 60.0
_LEAVE_S = 10.0


class BackgroundLoop:
    """An event loop that runs coroutines for other threads until it is stopped."""

    def __init__(self, name: str) -> None:
        """Start the thread with this name."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, limit: float | None = None) -> T:
        """Run a coroutine to its end and return its result.

        Raises:
            TimeoutError: It took longer than `limit` seconds, and was cancelled.
            Exception: Any error that it raises.
        """

        async def limited() -> T:
            async with asyncio.timeout(limit):
                return await work

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    def enter(self, context: AbstractAsyncContextManager[T], undo: ExitStack) -> T:
        """Enter a context that lives in the loop, until `undo` leaves it."""
        stack = AsyncExitStack()
        entered = self.run(stack.enter_async_context(context), limit=_ENTER_S)
        undo.callback(lambda: self.run(stack.aclose(), limit=_LEAVE_S))
        return entered

    def start(self, work: Coroutine[Any, Any, None], undo: ExitStack) -> None:
        """Start a coroutine that runs until `undo` cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        undo.callback(future.cancel)

    def stop(self) -> None:
        """Cancel what still runs and end the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
