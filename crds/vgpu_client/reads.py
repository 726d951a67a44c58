"""What is read of the API server: one object, whole lists, and streams of events.

Kept from the verbs (`api.py`) because reads are what may be repeated: nothing is done twice by
asking twice. So they bear a server that is busy, gone for a moment, or too slow for the pages of
its own list; writes bear nothing of the kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from vgpu_api.resources import Resource
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
"""What is made of each object of a list as its page comes."""

_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_LIST_ATTEMPTS = 3
_ITEMS_A_TURN = 50
"""Of a list, before others have their turn: the lease is renewed in the same loop."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list: what was made of its objects, and the resourceVersion to watch from."""

    items: Sequence[Any]
    resource_version: str


class Reads:
    """Reads over a transport, repeated where that may help.

    Args:
        transport: Sends the requests.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def document(self, path: str, params: Params) -> Object:
        """GET a document, again and again while the server is away or busy.

        Raises:
            Unreachable: No answer, the last time either.
            ApiError: The server's no.
        """
        for attempt in range(1, _ATTEMPTS):
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
        """All objects under a path, page by page; begun again if the continuation expired.

        Of a page only what `each` makes of its objects outlives it.

        With `not_older_than` at once, from the server's cache: a server before 1.34 reads every
        list with a limit from etcd, whole, and only then applies the selectors.
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
        return await self._pages(resource, path, params, each)  # all at once cannot expire

    async def events(
        self, path: str, params: Params, *, inactivity_s: float
    ) -> AsyncGenerator[Object, None]:
        """The events of a stream; one with an error is raised as that error.

        Raises:
            StreamBroken: Broken, or silent for `inactivity_s`.
            Unreachable, ApiError: It could not be opened.
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
    """The query that narrows a list or a watch; None narrows nothing."""
    given = {"labelSelector": label, "fieldSelector": field}
    return {key: value for key, value in given.items() if value}


def _event(line: bytes) -> Object:
    try:
        event: Object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise StreamBroken(f"an event is not JSON: {error}") from error
    return event
