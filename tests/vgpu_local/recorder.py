"""Records every write of some kinds on a real API server in order, as the stand-in does.

Clients cannot read a real server's history, but watches that start before anything happens see
every version of every object.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing

import orjson

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.errors import Gone, NotFound, StreamBroken, TooManyRequests, Unreachable
from vgpu_client.reads import Listing
from vgpu_client.transport import Object
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.readiness import plural


class Recorder:
    """A recorder of writes; `history` may be called from any thread.

    Args:
        api: A client that is connected to the server without any proxy.
        resources: The kinds to record.
        keeps: False to tell listeners of each write, and to keep none.
    """

    def __init__(self, api: Api, resources: Sequence[Resource], *, keeps: bool = True) -> None:
        self._api = api
        self._keeps = keeps
        self._resources = resources
        self._events: list[WriteEvent] = []
        self._listeners: list[Callable[[WriteEvent], None]] = []
        self._lock = threading.Lock()

    async def start(self) -> list[asyncio.Task[None]]:
        """Start to record; objects that exist already are recorded as if they were just created.

        Returns:
            The tasks that record until they are cancelled. An error in one is a gap in the record.
        """
        tasks = []
        for resource in self._resources:
            listing = await self._listed(resource)
            for found in listing.items:
                self._note(resource, "ADDED", found)
            work = self._follow(resource, listing.resource_version)
            tasks.append(asyncio.create_task(work))
        return tasks

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        """Call `listener` after each write, in the recording loop's thread: be quick."""
        with self._lock:
            self._listeners.append(listener)

    def history(self) -> list[WriteEvent]:
        """Return the writes so far, ordered by resourceVersion."""
        with self._lock:
            return sorted(self._events, key=lambda event: event.resource_version)

    async def _follow(self, resource: Resource, listed_at: str) -> None:
        version = listed_at
        while True:
            watch = self._api.watch(resource, resource_version=version)
            try:
                async with aclosing(watch) as events:
                    async for event in events:
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._note(resource, event["type"], event["object"])
            except (StreamBroken, Unreachable, TooManyRequests):
                await asyncio.sleep(0.1)  # it continues where it ended, or is refused
            except Gone:
                if version != listed_at:
                    raise  # a gap
                # The server's own watch of a kind just defined begins after our list.
                listing = await self._listed(resource)
                self._note_new(resource, listing.items)
                version = listed_at = listing.resource_version

    async def _listed(self, resource: Resource) -> Listing:
        """Return the first list; try again while a new kind is not served yet."""
        while True:
            try:
                return await self._api.list(resource)
            except NotFound:
                await asyncio.sleep(0.05)

    def _note_new(self, resource: Resource, items: Sequence[Object]) -> None:
        with self._lock:
            noted = {event.resource_version for event in self._events}
        for found in items:
            if int(found["metadata"]["resourceVersion"]) not in noted:
                self._note(resource, "ADDED", found)

    def _note(self, resource: Resource, what: str, obj: Object) -> None:
        version = int(obj["metadata"]["resourceVersion"])
        event = WriteEvent(what, plural(resource), version, orjson.dumps(obj))
        with self._lock:
            if self._keeps:
                self._events.append(event)
            listeners = list(self._listeners)
        for listener in listeners:
            listener(event)
