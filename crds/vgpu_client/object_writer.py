"""Write objects: in order per object, concurrently up to a limit, each with a definite outcome.

Every writer of the project uses this class: claims, devices, pods and bindings, in the operator and
in the agent. A write is data: its target, the version it was decided on, and the requests that
carry it out one after the other. Nothing here decides if a write is still wanted. A conflict is an
outcome; the caller reads the object and decides again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import (
    ApiError,
    ClientError,
    Conflict,
    LoginError,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from vgpu_client.transport import NoLimit, Object, WriteBudget

Operation: TypeAlias = Mapping[str, Any]
"""One operation of a JSON patch: `op`, `path`, `value`."""

_SHORTEST_S = 0.5
_ATTEMPTS_WHEN_BUSY = 5


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a write changes.

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
        """Send it and return the object as it is afterwards.

        Args:
            api: The API server to send it to.
            target: The object.
            version: The resourceVersion that the object must still have; empty: any.
            timeout_s: The server's time limit.
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
    """A JSON patch of the object or a subresource, refused if the object's version differs.

    A merge patch cannot test the version and replaces the conditions of other writers; an update
    sends the whole object.
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
    """A merge patch, for single fields of objects whose lists belong to other writers."""

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
    """A server-side apply of every field that one field manager sets on the object."""

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
    """A deletion, refused if the object's uid or version differs."""

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
    """A Binding of the pod with this UID to a node."""

    uid: str
    node: str
    annotations: Mapping[str, str]

    async def send(self, api: Api, target: Target, version: str, timeout_s: float) -> Object:
        """See `Request`. Return an empty object, because the server answers with a Status."""
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
    """A write, decided on one version of one object.

    Attributes:
        target: The object.
        requests: The requests to send, one after the other; the first failure ends the write.
        version: The resourceVersion it was decided on; empty if the requests do not test it. After
            each request, the version of the response is used.
    """

    target: Target
    requests: Sequence[Request] = field(default=())
    version: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """Done; `obj` is the object as it is now."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Not done: the object has changed since. Read it again and decide again."""

    error: Conflict


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not done: the server refuses it (4xx) and would refuse it again."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Unsent:
    """Not done: no connection, no credentials, a busy server, or no time left to write."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Perhaps done, or still to come: only reading the object again can tell.

    Attributes:
        error: The error that came instead of a response.
        version: The version that the request tests; once the object has a later one, the write
            has failed. Empty if it tests none.
    """

    error: ClientError
    version: str = ""


Outcome: TypeAlias = Written | Conflicted | Rejected | Unsent | Unresolved
"""For a write of several requests, the outcome of the first that was not carried out."""


class ObjectWriter:
    """Carries out writes.

    Args:
        api: The API server to write to.
        in_flight: The number of concurrent requests.
        timeout_s: The server's time limit for a request.
        budget: How long a write may still take effect (the rest of the lease). It is asked before
            each request, which is not sent if too little is left.
        clock: Waits while the server is busy (429).
    """

    def __init__(
        self,
        api: Api,
        *,
        in_flight: int = 64,
        timeout_s: float = 10.0,
        budget: WriteBudget = NoLimit(),  # noqa: B008 - has no state
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._budget = budget
        self._clock = clock or Clock()
        self._in_flight = asyncio.Semaphore(in_flight)
        self._last: dict[Target, asyncio.Task[Outcome]] = {}

    def submit(self, write: Write) -> asyncio.Task[Outcome]:
        """Queue a write and return at once. The task raises only if it is cancelled."""
        target = write.target
        task = asyncio.ensure_future(self._after(self._last.get(target), write))
        self._last[target] = task
        task.add_done_callback(lambda done: self._forget(target, done))
        return task

    @property
    def pending(self) -> int:
        """Return the number of objects with a write that has no outcome yet."""
        return len(self._last)

    async def drain(self) -> None:
        """Wait until every queued write has its outcome."""
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
            timeout_s = min(self._timeout_s, self._budget.remaining_s())
            if timeout_s < _SHORTEST_S:
                return Unsent("no time left to write")
            try:
                return Written(await request.send(self._api, target, version, timeout_s))
            except TooManyRequests as error:  # certainly not carried out, for any kind of request
                busy = str(error)
                await self._clock.sleep(error.retry_after)
            except Conflict as error:
                return Conflicted(error)
            except (Unreachable, LoginError) as error:
                return Unsent(str(error))
            except ApiError as error:
                # A server that fails may have carried out the write before.
                failed = isinstance(error, ServerError)
                return Unresolved(error, version) if failed else Rejected(error)
            except ClientError as error:
                return Unresolved(error, version)
        return Unsent(busy)
