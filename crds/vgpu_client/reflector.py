"""A faithful, running copy of one kind: every change is delivered, deletions missed included.

Kopf lists again after a gap and reports what exists; what was deleted meanwhile it never
mentions, and an allocator that misses a deletion loses a device until its restart. So we keep our
own list-and-watch. It remembers uid and version of everything it has delivered, and after a gap
(410, a broken or silent stream) compares that with a fresh list. The list is decoded page by page
and delivered as a whole, deletions first: what comes may need the place of what is gone. The first
list has no deletions: it is delivered as its pages come, so that a start takes no more memory than
the handler keeps.

Versions of a kind only grow. When they do not, a backup of etcd was restored under us: objects
that we know never were, and ledgers and caches that ignore old versions would keep them for ever.
So that ends the reflector, and with it the process, which starts from what there is. etcd's guide
raises the version of the server at a restore (`etcdutl snapshot restore --bump-revision`), so that
lists never go back; objects keep the versions that they had, and show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
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
    """Which object: its place and the UID that distinguishes it from others of its name.

    Of one that is gone, `was_seen` means that the stream reported it, so nothing of it was missed;
    one that a list found missing may have changed unseen before it went.
    """

    namespace: str
    name: str
    uid: str
    was_seen: bool = field(default=True, compare=False)


class Source(Protocol):
    """What a reflector reads from: `Api`, or what reads on its behalf."""

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
        """As `Api.list`."""

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
        """As `Api.watch`."""


class EventHandler(Protocol[TIn]):
    """Receives the changes. Calls are synchronous and in order; an exception ends the reflector."""

    def added(self, obj: TIn) -> None:
        """An object that was not known."""

    def modified(self, obj: TIn) -> None:
        """A newer version of a known object (perhaps unreadable until now)."""

    def deleted(self, identity: ObjectIdentity) -> None:
        """It is gone, or no longer matches the selectors."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """An object, new or newer, that the decoder refused. Its deletion will be delivered too."""


class _Version(NamedTuple):
    """Of an object.

    A type of its own for the garbage collector's sake: it drops a dictionary of plain tuples of
    strings in each pass, and takes it up again among its newest objects with the next one that is
    put there. So each pass went over all that is known (6 ms with 30,000 pods).
    """

    uid: str
    resource_version: str


class _Item(NamedTuple):
    """An object of a list, as it will be delivered; unread if its version is the known one."""

    place: _Place
    version: _Version
    read: bool = False
    obj: object = None
    raw: Object | None = None  # of one that cannot be decoded, with the cause
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What to copy: a namespace (None for all) and selectors, as the API server takes them.

    Attributes:
        from_cache: Lists come from the API server's cache, not from etcd. The first may be as old
            as that cache is; later ones are never older than what was delivered. For the many
            clients that must not cost etcd a read of all objects each.
    """

    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class ReflectorTimes:
    """Times of a reflector, in seconds, and the clock by which it waits."""

    watch_s: float = 300.0
    """The server ends a stream properly after this long, and we go on from there."""
    inactivity_s: float = 90.0
    """A stream without event or bookmark (one a minute) for this long is taken for dead."""
    first_retry_s: float = 0.2
    last_retry_s: float = 30.0
    clock: Clock = Clock()  # noqa: RUF009 - it has no state


class Reflector(Generic[T]):
    """Lists and watches one kind and delivers changes to a handler.

    Args:
        api: Where from.
        resource: The kind.
        handler: Gets the changes.
        decode: Makes of a raw object what the sink wants; may raise anything on a bad object.
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
        """Set while it goes on from what was delivered; clear while it has to list anew."""

    def restarted(self, reason: str) -> None:
        """Count that a new list has to make up for the stream; a subclass does.

        Args:
            reason: Why: `gone`, `broken`.
        """

    def listed(self, version: int, uids: Iterable[str]) -> None:
        """Note that all of a list has been delivered; a subclass does.

        Args:
            version: The list's.
            uids: Of all that there was then. The handler may know of more, from elsewhere: what of
                that is no newer came and went between two watches.
        """

    async def relist(self) -> None:
        """Return after a list begun later than this call has been delivered (a quorum read)."""
        desired = self._lists_begun + 1
        self._list_requested.set()
        async with self._list_delivered:
            await self._list_delivered.wait_for(lambda: self._lists_delivered >= desired)

    async def reach(self, version: int) -> None:
        """Return when everything up to a version of this kind has been delivered.

        Versions grow along a stream, so a write of one's own that comes back by it shows that no
        earlier change of any object of the kind is missing.
        """
        if self._position < version:
            delivered = asyncio.get_running_loop().create_future()
            self._awaited.append((version, delivered))
            await delivered

    async def run(self) -> None:
        """Keep the sink up to date, for ever.

        Raises:
            DataRestored: The server's data are older than what was delivered.
            Exception: A fault of the sink's.
        """
        while True:
            try:
                await self._list()
                while not self._list_requested.is_set():
                    if not await self._follow():
                        # Closed before any event: the server is going, or behind.
                        self._failures += 1
                        await self._times.clock.sleep(self._retry_s())
            except Gone as error:
                # The cache that served the list may be behind for ever.
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
        """Read everything and deliver the difference to the last state; deletions first."""
        quorum = self._quorum_required or self._list_requested.is_set()
        self._list_requested.clear()
        self._lists_begun += 1
        is_first = not (self._position or self._known)
        each = self._delivered_item if is_first else self._item
        listing = await self._read(None if quorum else str(self._position), each)
        self._must_not_go_back(int(listing.resource_version))
        items: list[_Item] = list(listing.items)
        self._must_not_contradict(items)
        present = {item.place for item in items}
        for place in [place for place in self._known if place not in present]:
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

    async def _read(self, not_older_than: str | None, each: Each) -> Listing:
        """A list; from etcd where the server's cache cannot serve it."""
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
            except (Gone, ServerError) as error:  # 504: it has not come that far
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
        """What of an object outlives the page that it came in."""
        place, version = _place(raw), _version(raw)
        if self._known.get(place) == version:
            return _Item(place, version)
        try:
            return _Item(place, version, read=True, obj=self._decode(raw))
        except Exception as error:  # whatever the decoder raises, the object must not be lost
            raw["metadata"].pop("managedFields", None)
            return _Item(place, version, read=True, raw=raw, error=error)

    def _delivered_item(self, raw: Object) -> _Item:
        """As `_item`, delivered at once; if the list breaks off, the next one finds it known."""
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
        """Compare a list that is no older than what was delivered with what was.

        Everything up to `_position` has been delivered. So an object whose version is no newer was
        delivered in exactly this version; another version of it, or an object that is not known
        (any more), is from a history that we have not seen. This raises no false alarm, because a
        version stands for one content and a selector depends on the content alone.

        An object that is missing proves nothing. What was created after the backup looks as if it
        had been deleted since the last event, and is delivered as that: a process that starts
        anew would not find it either. The size of the step between two versions was rejected as a
        sign: on a busy cluster it only shows how long the stream was broken.
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
