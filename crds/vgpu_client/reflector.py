"""A running copy of one kind that delivers every change, even deletions missed during a gap.

After a gap Kopf lists again and reports what exists, but not what was deleted meanwhile. An
allocator that misses a deletion loses a device until it restarts, so we have our own
list-and-watch. It remembers uid and version of everything that it has delivered, and after a gap
(410, a broken or silent stream) compares them with a fresh list. The list is decoded page by page
and delivered as a whole, deletions first, because new objects may need what deleted ones held. The
first list has no deletions, so it is delivered while its pages arrive; a start takes no more
memory than what the handler keeps.

Versions of a kind only grow. If they do not, a backup of etcd was restored while we ran: we know
objects that never existed, and ledgers and caches that ignore old versions would keep them for
ever. So this ends the reflector, and with it the process, which restarts from the server's data.
With the restore that etcd's guide describes (`etcdutl snapshot restore --bump-revision`), the
server's version grows and lists never go back; but objects keep their old versions, which shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from vgpu_api.resources import Resource
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, DataRestored, Gone, ServerError
from vgpu_client.reads import Each, Listing
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)

_Place: TypeAlias = tuple[str, str]  # namespace ("" if it has none), name

_ITEMS_A_TURN = 200

T = TypeVar("T")
TIn = TypeVar("TIn", contravariant=True)


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """An object's place, and the UID that distinguishes it from others of the same name.

    For a deleted object, `was_seen` means that the stream reported the deletion, so no change was
    missed. An object that a list found missing may have changed unseen before it was deleted.
    """

    namespace: str
    name: str
    uid: str
    was_seen: bool = field(default=True, compare=False)


class Source(Protocol):
    """The source that a reflector reads from: `Api`, or something that reads on its behalf."""

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        not_older_than: str | None = None,
        each: Each = lambda item: item,
    ) -> Listing:
        """List objects as `Api.list` does."""

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300.0,
        inactivity_s: float = 90.0,
    ) -> AsyncGenerator[Object, None]:
        """Yield events as `Api.watch` does."""


class EventHandler(Protocol[TIn]):
    """Receives the changes. Calls are synchronous and in order; an exception ends the reflector."""

    def added(self, obj: TIn) -> None:
        """Handle an object that was not known."""

    def modified(self, obj: TIn) -> None:
        """Handle a newer version of a known object (which may have been unreadable until now)."""

    def deleted(self, identity: ObjectIdentity) -> None:
        """Handle an object that was deleted or no longer matches the selectors."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Handle a new or newer object that cannot be decoded; its deletion is delivered too."""


class _Version(NamedTuple):
    """The uid and resourceVersion of an object.

    This has its own type for the sake of the garbage collector, which stops tracking a dictionary
    of plain tuples of strings in each pass and tracks it again, among its newest objects, as soon
    as another is added. So each pass went over everything known (6 ms with 30,000 pods).
    """

    uid: str
    resource_version: str


class _Item(NamedTuple):
    """A list item as it will be delivered; undecoded if its version is the known one."""

    place: _Place
    version: _Version
    read: bool = False
    obj: object = None
    raw: Object | None = None  # the object if it cannot be decoded, with the error below
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects to copy: a namespace (None for all) and selectors in the API server's syntax.

    Attributes:
        from_cache: Read lists from the API server's cache and not from etcd. The first list may be
            as old as that cache; later ones are never older than what was delivered. Meant for
            clients so numerous that etcd must not read all objects for each of them.
    """

    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class ReflectorTimes:
    """Times of a reflector, in seconds, and the clock by which it waits."""

    watch_s: float = 300.0
    """The server ends a stream properly after this long, and we continue from there."""
    inactivity_s: float = 90.0
    """A stream without event or bookmark (one a minute) for this long is considered dead."""
    first_retry_s: float = 0.2
    last_retry_s: float = 30.0
    clock: Clock = Clock()  # noqa: RUF009 - it has no state


class Reflector(Generic[T]):
    """Lists and watches one kind and delivers the changes to a handler.

    Args:
        api: The source.
        resource: The kind.
        handler: Receives the changes.
        decode: Turns a raw object into what the handler wants; may raise anything on a bad one.
        scope: Namespace and selectors.
        times: Times.
    """

    def __init__(
        self,
        api: Source,
        resource: Resource,
        handler: EventHandler[T],
        *,
        decode: Callable[[Object], T],
        scope: Scope = Scope(),
        times: ReflectorTimes = ReflectorTimes(),
    ) -> None:
        self._api = api
        self.resource = resource
        self._handler = handler
        self._decode = decode
        self._scope = scope
        self._times = times
        self._known: dict[_Place, _Version] = {}
        self._position = 0  # the version up to which everything has been delivered
        self._failures = 0  # in a row
        self._quorum_required = not scope.from_cache
        self._list_requested = asyncio.Event()
        self._lists_begun = 0
        self._lists_delivered = 0  # the number of the last list that was delivered completely
        self._list_delivered = asyncio.Condition()
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []  # by version
        self.synced = asyncio.Event()
        """Set once the first full list has been delivered."""
        self.follows = asyncio.Event()
        """Set while it follows the stream; clear while it has to list again."""

    def restarted(self, reason: str) -> None:
        """Do nothing; a subclass counts that a new list has to replace the stream.

        Args:
            reason: The cause: `gone`, `broken`.
        """

    def listed(self, version: int, uids: Iterable[str]) -> None:
        """Do nothing; a subclass takes note that a whole list has been delivered.

        Args:
            version: The version of the list.
            uids: The UIDs of all objects in it. The handler may know others from elsewhere: those
                that are no newer than the list were created and deleted between two watches.
        """

    async def relist(self) -> None:
        """Return once a list begun after this call has been delivered (a quorum read)."""
        desired = self._lists_begun + 1
        self._list_requested.set()
        async with self._list_delivered:
            await self._list_delivered.wait_for(lambda: self._lists_delivered >= desired)

    async def reach(self, version: int) -> None:
        """Return once everything up to a version of this kind has been delivered.

        Versions grow along a stream. So once our own write has come back on the stream, no earlier
        change of any object of the kind is missing.
        """
        if self._position < version:
            delivered = asyncio.get_running_loop().create_future()
            self._awaited.append((version, delivered))
            await delivered

    async def run(self) -> None:
        """Keep the handler up to date until cancelled.

        Raises:
            DataRestored: The server's data is older than what was delivered.
            Exception: The handler failed.
        """
        while True:
            try:
                await self._list()
                while not self._list_requested.is_set():
                    if not await self._follow():
                        # The stream closed before any event: the server is shutting down, or is
                        # behind.
                        self._failures += 1
                        await self._times.clock.sleep(self._retry_s())
            except Gone as error:
                # The cache that served the list may stay behind indefinitely.
                self._quorum_required = True
                await self._start_over("gone", error)
            except ClientError as error:
                await self._start_over("broken", error)

    async def _start_over(self, reason: str, error: ClientError) -> None:
        self._failures += 1
        self.follows.clear()
        wait_s = self._retry_s()
        logger.warning("%s: listing again in %.1f s: %s", self.resource.plural, wait_s, error)
        self.restarted(reason)
        await self._times.clock.sleep(wait_s)

    def _retry_s(self) -> float:
        longest = self._times.first_retry_s * 2.0 ** min(self._failures - 1, 16)
        return min(longest, self._times.last_retry_s) * (0.5 + 0.5 * self._times.clock.jitter())

    async def _list(self) -> None:
        """Read all objects and deliver the differences from the last state, deletions first."""
        quorum = self._quorum_required or self._list_requested.is_set()
        self._list_requested.clear()
        self._lists_begun += 1
        is_first = not (self._position or self._known)
        each = self._delivered_item if is_first else self._item
        listing = await self._read(None if quorum else str(self._position), each)
        self._must_not_go_back(int(listing.resource_version))
        items: list[_Item] = list(listing.items)
        self._must_not_contradict(items)
        for place in self._missing_from(items):
            self._deliver_deleted(place)
        for number, item in enumerate(items):
            if item.read:
                self._deliver(item)
            if number % _ITEMS_A_TURN == 0:
                await asyncio.sleep(0)  # a long list must not starve the lease's renewal
        self._position = int(listing.resource_version)
        self._quorum_required = not self._scope.from_cache
        self.listed(self._position, (item.version.uid for item in items))
        self._lists_delivered = self._lists_begun
        self.synced.set()
        self.follows.set()
        self._note_reached()
        async with self._list_delivered:
            self._list_delivered.notify_all()

    def _missing_from(self, items: Sequence[_Item]) -> list[_Place]:
        present = {item.place for item in items}
        return [place for place in self._known if place not in present]

    async def _read(self, not_older_than: str | None, each: Each) -> Listing:
        """Return a list; read it from etcd if the server's cache cannot serve it."""
        scope = self._scope
        if not_older_than is not None:
            try:
                listing = await self._api.list(
                    self.resource,
                    namespace=scope.namespace,
                    label_selector=scope.label_selector,
                    field_selector=scope.field_selector,
                    not_older_than=not_older_than,
                    each=each,
                )
            except (Gone, ServerError) as error:  # 504: the cache has not reached that version
                logger.info("%s: the server's cache: %s", self.resource.plural, error)
            else:
                if int(listing.resource_version) >= self._position:
                    return listing
        return await self._api.list(
            self.resource,
            namespace=scope.namespace,
            label_selector=scope.label_selector,
            field_selector=scope.field_selector,
            each=each,
        )

    def _item(self, raw: Object) -> _Item:
        """Return the part of an object that is kept after its page is dropped."""
        place, version = _place(raw), _version(raw)
        if self._known.get(place) == version:
            return _Item(place, version)
        try:
            return _Item(place, version, read=True, obj=self._decode(raw))
        except Exception as error:  # the object must not be lost, whatever error the decoder raises
            raw["metadata"].pop("managedFields", None)
            return _Item(place, version, read=True, raw=raw, error=error)

    def _delivered_item(self, raw: Object) -> _Item:
        """Deliver the object at once and return its item; the next list finds the object known."""
        item = self._item(raw)
        if item.read:
            self._deliver(item)
        return _Item(item.place, item.version)

    def _must_not_go_back(self, version: int) -> None:
        if version < self._position:
            raise DataRestored(
                f"{self.resource.plural}: the API server is at version {version}, and was at "
                f"{self._position}: a backup of its data was restored"
            )

    def _must_not_contradict(self, items: Iterable[_Item]) -> None:
        """Raise DataRestored if a list contradicts what has already been delivered.

        The caller has checked that the list is at least as new as `_position`. Everything up to
        `_position` has been delivered, so an object whose version is not newer must have been
        delivered in exactly that version. If we know another version, or do not know the object,
        it comes from a history that we have not seen. There are no false alarms: a version always
        has the same content, and whether a selector matches depends only on the content.

        A missing object proves nothing. An object created after the backup looks as if it had been
        deleted since the last event, and is reported as deleted. The size of the jump between
        versions is no sign either: on a busy cluster it only shows how long the stream was down.
        """
        for item in items:
            if not item.read or int(item.version.resource_version) > self._position:
                continue
            known = self._known.get(item.place)
            is_same = known is not None and known.uid == item.version.uid
            raise DataRestored(
                f"{self.resource.plural}: {'/'.join(filter(None, item.place))} is at version "
                f"{item.version.resource_version}, and was "
                + (f"at {known.resource_version}" if known and is_same else "deleted")
                + f" by version {self._position}: a backup of the API server's data was restored"
            )

    async def _follow(self) -> bool:
        """Follow a stream until it ends or a list is wanted; False if it ended without an event."""
        stream = asyncio.ensure_future(self._stream())
        interrupt = asyncio.ensure_future(self._list_requested.wait())
        try:
            await asyncio.wait({stream, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            return await stream if stream.done() else True
        finally:
            stream.cancel()
            interrupt.cancel()
            await asyncio.gather(stream, interrupt, return_exceptions=True)

    async def _stream(self) -> bool:
        events = self._api.watch(
            self.resource,
            resource_version=str(self._position),
            namespace=self._scope.namespace,
            label_selector=self._scope.label_selector,
            field_selector=self._scope.field_selector,
            timeout_s=self._times.watch_s * (1 - 0.2 * self._times.clock.jitter()),
            inactivity_s=self._times.inactivity_s,
        )
        said_anything, opened_at = False, self._position
        async with aclosing(events):
            async for event in events:
                said_anything = True
                self._failures = 0
                self._apply(event["type"], event["object"], since=opened_at)
        return said_anything

    def _apply(self, kind: str, raw: Object, *, since: int) -> None:
        version = int(raw["metadata"]["resourceVersion"])
        if version < since:
            self._must_not_go_back(version)
        if version <= self._position:
            return  # delivered before: versions grow along a stream
        self._position = version
        if kind == "DELETED":
            if _place(raw) in self._known:
                self._deliver_deleted(_place(raw), was_seen=True)
        elif kind != "BOOKMARK":
            self._deliver(self._item(raw))
        self._note_reached()

    def _note_reached(self) -> None:
        if not self._awaited:
            return
        awaited, self._awaited = self._awaited, []
        for version, delivered in awaited:
            if version > self._position:
                self._awaited.append((version, delivered))
            elif not delivered.done():
                delivered.set_result(None)

    def _deliver(self, item: _Item) -> None:
        place, version = item.place, item.version
        known = self._known.get(place)
        if known is not None and known.uid != version.uid:  # another object under the same name
            self._deliver_deleted(place)
            known = None
        self._known[place] = version
        if item.error is not None:
            identity = ObjectIdentity(*place, version.uid)
            self._handler.unreadable(identity, item.raw or {}, item.error)
        elif known is None:
            self._handler.added(cast(T, item.obj))
        else:
            self._handler.modified(cast(T, item.obj))

    def _deliver_deleted(self, place: _Place, *, was_seen: bool = False) -> None:
        uid = self._known.pop(place).uid
        self._handler.deleted(ObjectIdentity(*place, uid, was_seen=was_seen))


def _place(raw: Object) -> _Place:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(raw: Object) -> _Version:
    metadata = raw["metadata"]
    return _Version(metadata["uid"], metadata["resourceVersion"])
