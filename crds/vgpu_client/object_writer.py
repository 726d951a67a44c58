"""Writes objects: in order per object, side by side up to a limit, each with a definite outcome.

Every writer of the project uses this one class: claims, devices, pods and bindings, in the operator
and in the agent. A write is data: where it goes, which version it was decided on, and the requests
that carry it out, one after the other. Nothing here decides whether a write is still wanted; a
conflict is an outcome, and the caller reads the object and decides again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

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
class Target:
    """The object that a write is about.

    Attributes:
        resource: Its kind.
        namespace: None if the kind has none.
        name: Its name.
    """

    resource: Resource
    namespace: str | None
    name: str


class Request(Protocol):
    """One request of a write."""

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """Send it; returns the object as it stands afterwards.

        Args:
            api: Where to.
            target: The object.
            version: The resourceVersion that the object must still have; empty: any.
            timeout_s: The server's limit.
        """


@dataclass(frozen=True, slots=True)
class Create:
    """Creates the object."""

    obj: Object

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`."""
        return await api.create(target.resource, self.obj, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON patch of the object or of a subresource, refused where the version is another.

    A merge patch has no such test and replaces other writers' conditions; an update sends the
    whole object.
    """

    operations: Sequence[Operation]
    subresource: str | None = None

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`."""
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return await api.json_patch(
            target.resource,
            target.name,
            [test, *self.operations] if version else list(self.operations),
            namespace=target.namespace,
            subresource=self.subresource,
            timeout_s=timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge patch; for single fields of objects whose lists belong to others."""

    changes: Mapping[str, Any]
    subresource: str | None = None

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`."""
        return await api.merge_patch(
            target.resource,
            target.name,
            self.changes,
            namespace=target.namespace,
            subresource=self.subresource,
            timeout_s=timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Apply:
    """A server-side apply of all that one field manager has about the object."""

    obj: Object
    field_manager: str
    subresource: str | None = None

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`."""
        return await api.apply(
            target.resource,
            self.obj,
            field_manager=self.field_manager,
            force=True,
            subresource=self.subresource,
            timeout_s=timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion, refused where the object is another, or at another version."""

    uid: str

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`."""
        return await api.delete(
            target.resource,
            target.name,
            namespace=target.namespace,
            uid=self.uid,
            resource_version=version or None,
            timeout_s=timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Bind:
    """The Binding of a pod with this UID to a node."""

    uid: str
    node: str
    annotations: Mapping[str, str]

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`; returns an empty object, since the server answers with a Status."""
        await api.bind_pod(
            namespace=target.namespace or "",
            name=target.name,
            uid=self.uid,
            node=self.node,
            annotations=self.annotations,
            timeout_s=timeout_s,
        )
        return {}


@dataclass(frozen=True, slots=True)
class Write:
    """One write, decided on one version of one object.

    Attributes:
        target: The object.
        requests: What carries it out, one after the other; the first that fails ends it.
        version: The resourceVersion it was decided on; empty where the requests test none. After
            each request the version is that of the answer.
    """

    target: Target
    requests: Sequence[Request] = field(default=())
    version: str = ""


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
    """Not done: the server refuses (4xx), and would again."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Unsent:
    """Not done: no connection, no credentials, a busy server, or no time left to write in."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Perhaps done, or still to be: only reading the object again shows it.

    Attributes:
        error: What came instead of an answer.
        version: The version that the request tests: once the object has a later one, it has failed.
            Empty if it tests none.
    """

    error: ClientError
    version: str = ""


Outcome: TypeAlias = Written | Conflicted | Rejected | Unsent | Unresolved
"""Of a write of several requests, the outcome of the first that was not carried out."""


class ObjectWriter:
    """Carries out writes.

    Args:
        api: Where to.
        in_flight: How many requests at once.
        timeout_s: The server's limit for a request.
        budget_s: How many seconds from now a write may still take effect (what is left of the
            lease); asked before each request, which is not sent when that is too little.
        sleep: Waits when the server is busy (429); swapped in tests.
    """

    def __init__(
        self,
        api: Api,
        *,
        in_flight: int = 64,
        timeout_s: float = 10.0,
        budget_s: Callable[[], float] = lambda: float("inf"),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._budget_s = budget_s
        self._sleep = sleep
        self._in_flight = asyncio.Semaphore(in_flight)
        self._last: dict[Target, asyncio.Task[Outcome]] = {}

    def submit(self, write: Write) -> asyncio.Task[Outcome]:
        """Take a write on; returns at once. The task raises only when it is cancelled."""
        target = write.target
        task = asyncio.ensure_future(self._after(self._last.get(target), write))
        self._last[target] = task
        task.add_done_callback(lambda done: self._forget(target, done))
        return task

    @property
    def pending(self) -> int:
        """Objects with a write that has no outcome yet."""
        return len(self._last)

    async def drain(self) -> None:
        """Wait until every write that was taken on has its outcome."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def _forget(self, target: Target, done: asyncio.Task[Outcome]) -> None:
        if self._last.get(target) is done:
            del self._last[target]

    async def _after(self, previous: asyncio.Task[Outcome] | None, write: Write) -> Outcome:
        if previous is not None:
            await asyncio.wait({previous})
        async with self._in_flight:
            return await self._carry_out(write)

    async def _carry_out(self, write: Write) -> Outcome:
        version = write.version
        outcome: Outcome = Unsent("nothing to write")
        for request in write.requests:
            outcome = await self._send(write.target, request, version)
            if not isinstance(outcome, Written):
                return outcome
            version = outcome.obj.get("metadata", {}).get("resourceVersion", "")
        return outcome

    async def _send(self, target: Target, request: Request, version: str) -> Outcome:
        busy = ""
        for _ in range(_ATTEMPTS_WHEN_BUSY):
            timeout_s = min(self._timeout_s, self._budget_s())
            if timeout_s < _SHORTEST_S:
                return Unsent("no time left to write in")
            try:
                return Written(await request.send(self._api, target, version, timeout_s))
            except TooManyRequests as error:  # a definite no, whatever the request is
                busy = str(error)
                await self._sleep(error.retry_after)
            except Conflict as error:
                return Conflicted(error)
            except (Unreachable, LoginError) as error:
                return Unsent(str(error))
            except ApiError as error:
                # A server that fails may have written before it failed.
                failed = isinstance(error, ServerError)
                return Unresolved(error, version) if failed else Rejected(error)
            except ClientError as error:
                return Unresolved(error, version)
        return Unsent(busy)
