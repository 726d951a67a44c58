"""The objects, their global resourceVersion, and the log of every write.

Stored objects are shared, never copied and never changed in place: a write makes a new one and
its JSON once, and every answer, list and watch sends those bytes. Used from the server's loop only;
`history` may be read from any thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.kinds import Obj, Resource
from vgpu_local.apiserver.ownership import Owners

_SNAPSHOTS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """An object at one resourceVersion, with its JSON and the owners of its fields."""

    obj: Obj
    raw: bytes
    revision: int
    owners: Owners


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """One write, in order, for checkers that replay what happened.

    `resource` is `pods` or `vgpuclaims.vgpu.dev`, `type` is ADDED, MODIFIED or DELETED.
    """

    type: str
    resource: str
    resource_version: int
    raw: bytes

    @property
    def object(self) -> Obj:
        """Return a copy of the object after the write, or as last seen if it was deleted."""
        decoded: Obj = orjson.loads(self.raw)
        return decoded


@dataclass(frozen=True, slots=True)
class Change:
    """A write as watches see it; `before` shows whether an object entered or left a selection."""

    type: str
    after: Stored
    before: Stored | None


@dataclass(slots=True)
class Table:
    """All objects of one kind, and the recent changes a watch can start from."""

    floor: int
    """Changes up to and including this resourceVersion are forgotten."""
    changes: deque[Change]
    objects: dict[str, dict[str, Stored]] = field(default_factory=dict)
    listeners: set[Callable[[Change], None]] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> Stored | None:
        """Return the object, or None. Cluster-scoped kinds have the namespace ""."""
        return self.objects.get(namespace, {}).get(name)

    def listed(self, namespace: str | None) -> list[Stored]:
        """Return every object of a namespace, or of all (None), ordered by namespace and name."""
        spaces = sorted(self.objects) if namespace is None else [namespace]
        found = (self.objects.get(space, {}) for space in spaces)
        return [objects[name] for objects in found for name in sorted(objects)]

    def __len__(self) -> int:
        return sum(len(objects) for objects in self.objects.values())


class Store:
    """Stores everything that the cluster remembers.

    Args:
        remembered: How many changes per kind are kept for watches that start from an older version.
        history_kept: How many of the latest writes `history` keeps; None for all.
        revision: The start of the global counter.
    """

    def __init__(
        self, *, remembered: int = 10_000, history_kept: int | None = None, revision: int = 0
    ) -> None:
        self.revision = revision
        self.history: deque[WriteEvent] = deque(maxlen=history_kept)
        self.subscribers: list[Callable[[WriteEvent], None]] = []
        self.observers: list[Callable[[Resource, Change], None]] = []
        self._remembered = remembered
        self._tables: dict[str, Table] = {}
        self._snapshots: OrderedDict[str, tuple[int, list[Stored]]] = OrderedDict()

    def table(self, resource: Resource) -> Table:
        """Return the objects of a kind; empty for one never written."""
        table = self._tables.get(resource.qualified)
        if table is None:
            table = Table(floor=self.revision, changes=deque())
            self._tables[resource.qualified] = table
        return table

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Return every kind that was ever requested, by qualified name."""
        return iter(list(self._tables.items()))

    def put(self, resource: Resource, obj: Obj, owners: Owners) -> Stored:
        """Store a new or changed object under the next resourceVersion; `obj` is taken over."""
        table = self.table(resource)
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        space = table.objects.setdefault(namespace, {})
        before = space.get(name)
        after = self._stamped(obj, owners)
        space[name] = after
        self._announce(resource, table, Change("MODIFIED" if before else "ADDED", after, before))
        return after

    def remove(self, resource: Resource, stored: Stored, *, last: Obj | None = None) -> Stored:
        """Forget an object; the deletion has a resourceVersion of its own.

        `last` is the state to announce where it differs from the stored one.
        """
        table = self.table(resource)
        obj = stored.obj if last is None else last
        metadata = obj["metadata"]
        del table.objects[metadata.get("namespace", "")][metadata["name"]]
        last = {**obj, "metadata": dict(metadata)}
        after = self._stamped(last, stored.owners)
        self._announce(resource, table, Change("DELETED", after, stored))
        return after

    def forget_changes(self) -> None:
        """Forget the changes that watches could start from, as a restarted server does.

        Older versions then get 410.
        """
        for table in self._tables.values():
            table.changes.clear()
            table.floor = self.revision
        self._snapshots.clear()

    def since(self, table: Table, revision: int) -> list[Change]:
        """Return the changes after `revision`; none if it is in the future.

        Raises:
            StatusError: 410 when some of them are forgotten.
        """
        if revision < table.floor:
            raise errors.expired(revision, table.floor)
        return [change for change in table.changes if change.after.revision > revision]

    def keep_snapshot(self, rest: list[Stored], revision: int) -> str:
        """Remember the rest of a chunked list; returns its continue token."""
        token = f"{revision}-{len(rest)}-{id(rest):x}"
        self._snapshots[token] = (revision, rest)
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)
        return token

    def snapshot(self, token: str) -> tuple[int, list[Stored]]:
        """Return the rest of a chunked list, exactly as it was when the list began.

        Raises:
            StatusError: 410 when it was forgotten.
        """
        try:
            return self._snapshots[token]
        except KeyError:
            raise errors.StatusError(
                410,
                "Expired",
                "The provided continue parameter is too old to display a consistent list result.",
            ) from None

    def _stamped(self, obj: Obj, owners: Owners) -> Stored:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        return Stored(obj, dumps(obj), self.revision, owners)

    def _announce(self, resource: Resource, table: Table, change: Change) -> None:
        if len(table.changes) >= self._remembered:
            table.floor = table.changes.popleft().after.revision
        table.changes.append(change)
        event = WriteEvent(change.type, resource.qualified, change.after.revision, change.after.raw)
        self.history.append(event)
        for listener in list(table.listeners):
            listener(change)
        for observer in self.observers:
            observer(resource, change)
        for subscriber in self.subscribers:
            subscriber(event)


def dumps(value: Any) -> bytes:
    """Return compact JSON."""
    return orjson.dumps(value)
