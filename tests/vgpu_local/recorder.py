"""Every write of some kinds on a real API server, in order, as the stand-in remembers its own.

A real server keeps no history that a client could read; watches that start before anything
happens see every version of every object.
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
    """Remembers writes; `history` may be read from any thread.

    Args:
        api: straight to the server, past any proxy.
        resources: which kinds.
    """

    def __init__(self, api: Api, resources: Sequence[Resource]) -> None:
        self._api = api
        self._resources = resources
        self._events: list[WriteEvent] = []
        self._listeners: list[Callable[[WriteEvent], None]] = []
        self._lock = threading.Lock()

    async def start(self) -> list[asyncio.Task[None]]:
        """Begin; what is there now is remembered as if it were just created.

        Returns:
            The tasks that record until they are cancelled; an error in one is a gap.
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
        """The writes so far, in order of their resourceVersions."""
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
                await asyncio.sleep(0.1)  # it goes on where it ended, or is refused
            except Gone:
                if version != listed_at:
                    raise  # a gap
                # The server's own watch of a kind just defined begins after our list.
                listing = await self._listed(resource)
                self._note_new(resource, listing.items)
                version = listed_at = listing.resource_version

    async def _listed(self, resource: Resource) -> Listing:
        """The first list; a kind is served a moment after its definition was made."""
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
            self._events.append(event)
            listeners = list(self._listeners)
        for listener in listeners:
            listener(event)
