"""Writes of status that cannot overwrite anybody, many at a time, each with a definite outcome.

Every write is a JSON patch that first tests the resourceVersion on which its content was
decided. A merge patch would carry no such test and would replace other writers' conditions;
an update would send the whole object. Writes to one object go one after the other, writes to
different objects side by side up to a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.errors import (
    ApiError,
    ClientError,
    Conflict,
    LoginError,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from vgpu_client.transport import Object

Operation: TypeAlias = Mapping[str, Any]
"""One operation of a JSON patch: `op`, `path`, `value`."""

_SHORTEST_S = 0.5
_ATTEMPTS_WHEN_BUSY = 5


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """One write, decided on one version of one object.

    Attributes:
        namespace: The object's namespace; None if the kind has none.
        name: The object's name.
        resource_version: The version that the content was decided on.
        status: Operations on the status subresource; paths begin with `/status`.
        before: Operations on the object itself (finalizers, labels) that must hold first.
        after: Operations on the object itself once the status stands.
    """

    namespace: str | None
    name: str
    resource_version: str
    status: Sequence[Operation] = ()
    before: Sequence[Operation] = ()
    after: Sequence[Operation] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Done; `obj` is the object as it stands now."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Not done: the object has changed since. Read it again and decide anew."""

    error: Conflict


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not done: the server says no (4xx), and will say it again."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Unsent:
    """Not done: no connection, no credentials, or no time left in which it may be written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Perhaps done: only reading the object again tells."""

    error: ClientError


Outcome: TypeAlias = Written | Conflicted | Rejected | Unsent | Unresolved
"""Of a write in several parts, the outcome of the first part that was not written."""


class StatusWriter:
    """Writes the status of objects of one kind.

    Args:
        api: Where to.
        resource: The kind.
        in_flight: How many requests at once.
        timeout_s: The server's limit for a request.
        budget_s: How many seconds from now a write may still take effect (what is left of the
            lease); asked before each request, which is not sent when that is too little.
        sleep: Waits when the server is busy (429); swapped in tests.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        *,
        in_flight: int = 64,
        timeout_s: float = 10.0,
        budget_s: Callable[[], float] = lambda: float("inf"),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._resource = resource
        self._timeout_s = timeout_s
        self._budget_s = budget_s
        self._sleep = sleep
        self._in_flight = asyncio.Semaphore(in_flight)
        self._last: dict[tuple[str | None, str], asyncio.Task[Outcome]] = {}
        self._closed = False

    def submit(self, write: StatusWrite) -> asyncio.Task[Outcome]:
        """Take a write on; returns at once. Await the task, or add a callback to it.

        Raises:
            RuntimeError: The writer was closed.
        """
        if self._closed:
            raise RuntimeError("the status writer is closed")
        place = (write.namespace, write.name)
        task = asyncio.ensure_future(self._after(self._last.get(place), write))
        self._last[place] = task
        task.add_done_callback(lambda done: self._tidy(place, done))
        return task

    @property
    def pending(self) -> int:
        """Objects with a write that has no outcome yet."""
        return len(self._last)

    async def close(self) -> None:
        """Take nothing more on, and wait until every write has its outcome."""
        self._closed = True
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _tidy(self, place: tuple[str | None, str], done: asyncio.Task[Outcome]) -> None:
        if self._last.get(place) is done:
            del self._last[place]

    async def _after(self, previous: asyncio.Task[Outcome] | None, write: StatusWrite) -> Outcome:
        if previous is not None:
            await asyncio.wait({previous})
        async with self._in_flight:
            return await self._write(write)

    async def _write(self, write: StatusWrite) -> Outcome:
        version = write.resource_version
        outcome: Outcome = Unsent("nothing to write")
        for operations, subresource in (
            (write.before, None),
            (write.status, "status"),
            (write.after, None),
        ):
            if not operations:
                continue
            outcome = await self._part(write, operations, subresource, version)
            if not isinstance(outcome, Written):
                return outcome
            version = outcome.obj["metadata"]["resourceVersion"]
        return outcome

    async def _part(
        self,
        write: StatusWrite,
        operations: Sequence[Operation],
        subresource: str | None,
        version: str,
    ) -> Outcome:
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        for _ in range(_ATTEMPTS_WHEN_BUSY):
            timeout_s = min(self._timeout_s, self._budget_s())
            if timeout_s < _SHORTEST_S:
                return Unsent("no time left to write in")
            try:
                obj = await self._api.json_patch(
                    self._resource,
                    write.name,
                    [test, *operations],
                    namespace=write.namespace,
                    subresource=subresource,
                    timeout_s=timeout_s,
                )
            except TooManyRequests as error:
                busy = error
                await self._sleep(error.retry_after)
                continue
            except Conflict as error:
                return Conflicted(error)
            except (Unreachable, LoginError) as error:
                return Unsent(str(error))
            except ApiError as error:
                # A server that fails may have written before it failed.
                return Unresolved(error) if isinstance(error, ServerError) else Rejected(error)
            except ClientError as error:
                return Unresolved(error)
            return Written(obj)
        return Rejected(busy)
