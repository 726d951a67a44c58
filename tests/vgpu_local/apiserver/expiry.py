"""Removes events some time after they were last written, as kube-apiserver does.

A real server gives each a lease in etcd (`--event-ttl`, an hour by default); a watch sees the
deletion of an expired event.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from vgpu_local.apiserver.kinds import Resource
from vgpu_local.apiserver.storage import Change, Store

EVENTS = "events"
_LOOKS_IN_TTL = 20
"""An event may stay for a twentieth of the time longer."""


class Expiry:
    """Removes events.

    Args:
        store: The store of the events.
        ttl_s: The seconds that an event stays after its last write.
        clock: Returns the seconds since the epoch.
    """

    def __init__(self, store: Store, *, ttl_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._written: OrderedDict[tuple[str, str], tuple[float, Resource]] = OrderedDict()

    def observe(self, resource: Resource, change: Change) -> None:
        """Record when an event was written."""
        if resource.qualified != EVENTS:
            return
        metadata = change.after.obj["metadata"]
        key = metadata["namespace"], metadata["name"]
        self._written.pop(key, None)
        if change.type != "DELETED":
            self._written[key] = self._clock(), resource

    def expire(self) -> None:
        """Remove the events that are old enough."""
        while self._written:
            (namespace, name), (at, resource) = next(iter(self._written.items()))
            if self._clock() - at < self._ttl_s:
                return
            stored = self._store.table(resource).get(namespace, name)
            assert stored is not None, "its deletion would have been observed"
            self._store.remove(resource, stored)

    async def run(self) -> None:
        """Remove expired events until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / _LOOKS_IN_TTL)
            self.expire()
