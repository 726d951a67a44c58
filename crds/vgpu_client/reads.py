"""Reads from the API server: single objects, whole lists, and streams of events.

They are separate from the verbs (`api.py`) because only reads may be retried: asking twice does
nothing twice. So they tolerate a server that is busy, briefly unreachable, or too slow for the
pages of its own list. Writes tolerate none of these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vgpu_api.resources import Resource
from vgpu_client import json_text
from vgpu_client.errors import (
    Gone,
    ServerError,
    StreamBroken,
    TooManyRequests,
    Unreachable,
    error_from_status,
)
from vgpu_client.transport import Object, Params, Transport

Each: TypeAlias = Callable[[Object], Any]
"""Called with each object of a list as its page arrives; returns the item to keep."""

_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_LIST_ATTEMPTS = 3
_ITEMS_A_TURN = 50
"""Items of a list to process before yielding to the loop, which also renews the lease."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list: the items made from its objects, and the resourceVersion to watch from."""

    items: Sequence[Any]
    resource_version: str


class Reads:
    """Reads over a transport, retried where that may help.

    Args:
        transport: Sends the requests.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def document(self, path: str, params: Params) -> Object:
        """GET a document; retry while the server is unreachable or busy.

        Where the user limits the time, there is one attempt.

        Raises:
            Unreachable: There was no response, even at the last attempt.
            ApiError: The server refused.
        """
        for attempt in range(1, 1 if self._transport.is_limited else _ATTEMPTS):
            try:
                return await self._transport.read(path, params, timeout_s=_TIMEOUT_S)
            except TooManyRequests as error:
                wait_s = error.retry_after
            except (Unreachable, ServerError):
                wait_s = 0.1 * 2**attempt
            await asyncio.sleep(wait_s * (0.5 + random.random()))
        return await self._transport.read(path, params, timeout_s=_TIMEOUT_S)

    async def listing(
        self,
        resource: Resource,
        path: str,
        params: Params,
        *,
        page_size: int,
        not_older_than: str | None = None,
        each: Each = lambda item: item,
    ) -> Listing:
        """List all objects under a path, page by page; start again if the continuation expires.

        Of each page, only the results of `each` are kept.

        With `not_older_than` the list is read at once from the server's cache. It must not have a
        limit: a server before 1.34 reads every list with a limit from etcd, whole, and only then
        filters it.
        """
        if not_older_than is not None:
            version = {"resourceVersion": not_older_than, "resourceVersionMatch": "NotOlderThan"}
            return await self._pages(resource, path, {**params, **version}, each)
        for _ in range(_LIST_ATTEMPTS):
            try:
                paged = {**params, "limit": str(page_size)}
                return await self._pages(resource, path, paged, each)
            except Gone:
                continue
        return await self._pages(resource, path, params, each)  # a single page cannot expire

    async def events(
        self, path: str, params: Params, *, inactivity_s: float
    ) -> AsyncGenerator[Object, None]:
        """Yield the events of a stream; raise an event that contains an error.

        Raises:
            StreamBroken: The stream broke, or was silent for `inactivity_s`.
            Unreachable, ApiError: The stream could not be opened.
        """
        async with self._transport.stream(path, params, inactivity_s=inactivity_s) as lines:
            async for line in lines:
                event = _event(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise error_from_status(int(status.get("code", 500)), status)
                yield event

    async def _pages(self, resource: Resource, path: str, params: Params, each: Each) -> Listing:
        found: MutableSequence[Any] = []
        page = await self.document(path, params)
        while True:
            items = page.pop("items", None) or ()
            for number, item in enumerate(items, start=1):
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
                found.append(each(item))
                if number % _ITEMS_A_TURN == 0:
                    await asyncio.sleep(0)
            del items
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return Listing(found, metadata["resourceVersion"])
            page = await self.document(path, {**params, "continue": metadata["continue"]})


def selectors(*, label: str | None, field: str | None) -> Mapping[str, str]:
    """Return the query parameters that filter a list or a watch; None filters nothing."""
    given = {"labelSelector": label, "fieldSelector": field}
    return {key: value for key, value in given.items() if value}


def _event(line: bytes) -> Object:
    try:
        event: Object = json_text.loads(line)
    except ValueError as error:
        raise StreamBroken(f"an event is not JSON: {error}") from error
    return event
