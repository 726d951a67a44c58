"""Watch streams: every change of a kind is filtered for each watcher and sent as a line of JSON.

The store hands each change to each watcher, which keeps the lines that its client has not read yet.
Faults end, silence or expire a stream, at its beginning or while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.faults import Fault
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.selectors import Match
from vgpu_local.apiserver.storage import Change, Store, Stored

Render = Callable[[Stored], bytes]
"""Return an object in the requested form: as it is, or as a Table of one row."""

Break = Literal["drop", "freeze", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """A client's request to watch.

    `since` is the resourceVersion to start after; None to get the current state first.
    """

    resource: Resource
    namespace: str | None
    match: Match
    since: int | None
    initial: bool
    """Send the present state as ADDED events first."""
    initial_end: bool
    """Mark its end with an annotated bookmark (`sendInitialEvents`)."""
    bookmarks: bool
    timeout: float
    render: Render


class Watches:
    """All streams that are open.

    Args:
        bookmark_every: The seconds of silence after which clients that want bookmarks get one.
    """

    def __init__(self, store: Store, *, bookmark_every: float) -> None:
        self.store = store
        self._bookmark_every = bookmark_every
        self._open: set[_Stream] = set()

    def break_open(self, resource: str, how: Break) -> int:
        """Break every open stream of a resource (`*` for all); return the number of streams."""
        chosen = [s for s in self._open if resource in ("*", s.request.resource.qualified)]
        for stream in chosen:
            stream.break_off(how)
        return len(chosen)

    def count(self, resource: str) -> int:
        """Return the number of open streams of a resource (`*` for all)."""
        return sum(resource in ("*", s.request.resource.qualified) for s in self._open)

    async def lines(self, request: WatchRequest, faults: list[Fault]) -> AsyncIterator[bytes]:
        """Yield the stream's lines until the client's time is up or a fault ends it.

        Raises:
            Dropped: a fault cuts the connection.
        """
        stream = _Stream(self.store, request)
        for fault in faults:
            if fault.action in ("drop", "freeze", "gone"):
                stream.break_after(fault.after, fault.action)
        self._open.add(stream)
        try:
            async for line in stream.run(self._bookmark_every):
                yield line
        finally:
            self._open.discard(stream)
            stream.close()


class Dropped(Exception):
    """The connection must be cut without a proper end."""


class _Stream:
    def __init__(self, store: Store, request: WatchRequest) -> None:
        self.request = request
        self._store = store
        self._lines: list[bytes] = []
        self._news = asyncio.Event()
        self._broken: Break | None = None
        self._left: int | None = None
        self._at_end: Break | None = None
        self._table = store.table(request.resource)

    def break_off(self, how: Break) -> None:
        """Break the stream now."""
        self._broken = how
        self._news.set()

    def break_after(self, events: int, how: Break) -> None:
        """Break the stream after this many more events."""
        self._left, self._at_end = events, how
        if not events:
            self._broken = how

    def close(self) -> None:
        self._table.listeners.discard(self._hear)

    async def run(self, bookmark_every: float) -> AsyncIterator[bytes]:
        request = self.request
        loop = asyncio.get_running_loop()
        end = loop.time() + request.timeout
        try:
            self._begin()
        except errors.StatusError as error:
            yield _line("ERROR", orjson.dumps(error.status()))
            return
        while True:
            lines, self._lines = self._lines, []
            for line in lines if self._broken is None else ():
                if self._left == 0:
                    self._broken = self._at_end
                    break
                if self._left is not None:
                    self._left -= 1
                yield line
            if self._broken == "drop":
                raise Dropped
            if self._broken == "gone":
                expired = errors.expired(request.since or 0, self._store.revision)
                yield _line("ERROR", orjson.dumps(expired.status()))
                return
            if self._broken == "freeze":
                self._news.clear()
                await self._news.wait()  # until the client closes it, or it is broken otherwise
                continue
            left = end - loop.time()
            if left <= 0:
                if request.bookmarks and not self._lines:
                    yield self._bookmark()
                return
            try:
                async with asyncio.timeout(min(left, bookmark_every)):
                    await self._news.wait()
            except TimeoutError:
                if request.bookmarks and not self._lines and left > bookmark_every:
                    yield self._bookmark()
            self._news.clear()

    def _begin(self) -> None:
        """Queue the first events and listen from here on, so that no change is missed."""
        request = self.request
        if request.since is not None:
            for change in self._store.since(self._table, request.since):
                self._hear(change)
        elif request.initial:
            for stored in self._table.listed(request.namespace):
                if request.match(stored.obj):
                    self._lines.append(_line("ADDED", request.render(stored)))
            if request.initial_end:
                self._lines.append(self._bookmark({"k8s.io/initial-events-end": "true"}))
        self._table.listeners.add(self._hear)

    def _hear(self, change: Change) -> None:
        request = self.request
        if request.since is not None and change.after.revision <= request.since:
            return  # the client claims to have seen it, so its version is from before a restore
        namespace = change.after.obj["metadata"].get("namespace", "")
        if request.namespace not in (None, namespace):
            return
        now = change.type != "DELETED" and request.match(change.after.obj)
        was = change.before is not None and request.match(change.before.obj)
        if now:
            kind = "MODIFIED" if was else "ADDED"
        elif was:
            kind = "DELETED"  # gone, or no longer selected
        else:
            return
        self._lines.append(_line(kind, request.render(change.after)))
        self._news.set()

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        resource = self.request.resource
        metadata: Obj = {"resourceVersion": str(self._store.revision)}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": metadata,
        }
        return _line("BOOKMARK", orjson.dumps(bookmark))


def _line(kind: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)
