"""Answers get and list requests, and the start of a watch, in the form the client accepts."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import orjson

from vgpu_local.apiserver import errors, selectors, tables
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.requests import Asked
from vgpu_local.apiserver.storage import Store, Stored
from vgpu_local.apiserver.watches import Render, WatchRequest

_DEFAULT_WATCH_S = 3600.0
_TOKEN = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]+")


class Reader:
    """The reader that answers requests from the store."""

    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def get(self, asked: Asked) -> bytes:
        """Return an object.

        Raises:
            StatusError: 404.
        """
        found = asked.target
        stored = self._store.table(found.resource).get(found.space, found.name)
        if stored is None:
            raise errors.not_found(found.resource, found.name)
        return self.shown(asked, stored)

    def shown(self, asked: Asked, stored: Stored) -> bytes:
        """Return an object in the form that the client accepts."""
        return self._render(asked)(stored)

    def listed(self, asked: Asked) -> bytes:
        """Return a list, or one chunk of it.

        Raises:
            StatusError: 400 for a bad selector, 410 for an old continue token, 504 for a
                resourceVersion from the future.
        """
        resource = asked.target.resource
        token = asked.query.get("continue")
        if token:
            revision, chosen = self._store.snapshot(_decoded(token))
        else:
            self._check_version(asked)
            revision = self._store.revision
            chosen = self._chosen(asked)
        metadata: Obj = {"resourceVersion": str(revision)}
        limit = _number(asked, "limit")
        if limit and len(chosen) > limit:
            chosen, rest = chosen[:limit], chosen[limit:]
            key = self._store.keep_snapshot(rest, revision)
            metadata["continue"] = base64.urlsafe_b64encode(key.encode()).decode()
            metadata["remainingItemCount"] = len(rest)
        include = _table_of(asked)
        if include is not None:
            return tables.table(
                resource, chosen, now=self._clock(), include=include, metadata=metadata
            )
        head = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
        }
        items = b",".join([stored.raw for stored in chosen])
        return orjson.dumps(head)[:-1] + b',"items":[' + items + b"]}"

    def watch(self, asked: Asked) -> WatchRequest:
        """Return the watch that a client requests.

        Raises:
            StatusError: 400 for a bad selector or number.
        """
        version = asked.query.get("resourceVersion", "")
        initial_end = asked.flag("sendInitialEvents")
        from_start = version in ("", "0") or initial_end
        found = asked.target
        return WatchRequest(
            resource=found.resource,
            namespace=found.namespace,
            match=self._match(asked),
            since=None if from_start else _number(asked, "resourceVersion"),
            initial=from_start and asked.query.get("sendInitialEvents") != "false",
            initial_end=initial_end,
            bookmarks=asked.flag("allowWatchBookmarks"),
            timeout=float(_number(asked, "timeoutSeconds") or _DEFAULT_WATCH_S),
            render=self._render(asked),
        )

    def match(self, asked: Asked) -> selectors.Match:
        """Return the selector of a deletecollection."""
        return self._match(asked)

    def _match(self, asked: Asked) -> selectors.Match:
        query = asked.query
        return selectors.of_request(
            asked.target.resource, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )

    def _chosen(self, asked: Asked) -> list[Stored]:
        match = self._match(asked)
        rows = self._store.table(asked.target.resource).listed(asked.target.namespace)
        if match is selectors.everything:
            return rows
        return [stored for stored in rows if match(stored.obj)]

    def _check_version(self, asked: Asked) -> None:
        version = _number(asked, "resourceVersion")
        if version and version > self._store.revision:
            raise errors.too_large(version, self._store.revision)

    def _render(self, asked: Asked) -> Render:
        include = _table_of(asked)
        if include is None:
            return _as_stored
        resource: Resource = asked.target.resource

        def row(stored: Stored) -> bytes:
            version = stored.obj["metadata"].get("resourceVersion", "")
            return tables.table(
                resource,
                [stored],
                now=self._clock(),
                include=include,
                metadata={"resourceVersion": version},
            )

        return row


def _as_stored(stored: Stored) -> bytes:
    return stored.raw


def _table_of(asked: Asked) -> str | None:
    """Return what a Table's rows must include, or None if the client does not prefer a Table."""
    first = asked.request.headers.get("Accept", "").partition(",")[0]
    if "as=Table" not in first:
        return None
    return asked.query.get("includeObject", "Metadata")


def _number(asked: Asked, name: str) -> int:
    text = asked.query.get(name, "")
    try:
        return int(text) if text else 0
    except ValueError:
        raise errors.bad_request(f'invalid {name}: "{text}"') from None


def _decoded(token: str) -> str:
    try:
        decoded = base64.urlsafe_b64decode(token).decode()
    except ValueError:
        decoded = ""
    if not _TOKEN.fullmatch(decoded):
        raise errors.bad_request("continue key is not valid")
    return decoded
