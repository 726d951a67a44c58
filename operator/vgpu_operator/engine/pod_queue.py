"""Whose turn it is: pods to be placed now, and pods that wait for something to change. No I/O.

kube-scheduler owns the order of pods; this is only about when a pod is looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vgpu_operator.engine.books import Books
from vgpu_operator.engine.consumers import Consumer


class PodQueue:
    """Asking pods by UID, each in as many of these states as apply.

    Due: to be placed in the next round. Refused: due again when anything changes. Parked: its
    reservation expired, so it is not due before a Filter asks. In vain: a Filter was refused, so
    kube-scheduler has set it aside and must be told when there is room. Passed over: that Filter
    did not offer the node of its reservation, so there is room for it on those offered alone.
    Orphaned: it lost its cards with its node, which may come back with its containers running.

    Args:
        books: Where consumers are found by UID.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._due: dict[str, None] = {}
        self._refused: dict[str, None] = {}
        self._parked: set[str] = set()
        self._in_vain: set[str] = set()
        self._orphaned: set[str] = set()
        self._offered: dict[str, Collection[str]] = {}  # nodes, of those that were passed over

    # Coming and going.

    def seen(self, uid: str) -> None:
        """A pod that wants cards was seen: due, unless it is parked."""
        if uid not in self._parked:
            self._due[uid] = None

    def forget(self, uid: str) -> None:
        """It wants no cards any more."""
        self._due.pop(uid, None)
        self._refused.pop(uid, None)
        self._in_vain.discard(uid)
        self._orphaned.discard(uid)
        self._offered.pop(uid, None)

    def gone(self, uid: str) -> None:
        """There is no such pod any more."""
        self.forget(uid)
        self._parked.discard(uid)

    # What makes pods due.

    def put(self, uid: str) -> None:
        """Due, whatever else it is."""
        self._due[uid] = None

    def claim_changed(self, uid: str, *, has_cards: bool) -> None:
        """Its claim changed: due if it was refused, or if its cards have gone with its node."""
        if uid in self._refused:
            self._due[uid] = None
        if uid in self._orphaned and not has_cards:
            self._orphaned.discard(uid)
            self._due[uid] = None

    def something_changed(self, *, namespace: str | None = None) -> None:
        """Due again: all that were refused, or those of one namespace."""
        if namespace is None:
            self._due |= self._refused
            return
        for consumer in self._known(self._refused):
            if consumer.claim[0] == namespace:
                self._due[consumer.uid] = None

    def orphaned(self, uid: str) -> None:
        """Its cards are being released because its node is gone."""
        self._orphaned.add(uid)

    # Filter's and expiry's part.

    def park(self, uid: str) -> None:
        """Its reservation expired: it waits until a Filter asks."""
        self._parked.add(uid)

    def asked(self, uid: str, *, in_vain: bool, passed_over: Collection[str] | None = None) -> None:
        """A Filter asked about it; a refusal makes it due, so that the refusal is told.

        Args:
            uid: The pod.
            in_vain: It was refused.
            passed_over: The nodes that were offered, if it has its cards on another.
        """
        self._parked.discard(uid)
        self._offered.pop(uid, None)
        if passed_over is not None:
            self._offered[uid] = passed_over
        if in_vain:
            self._in_vain.add(uid)
            self._due[uid] = None
        else:
            self._in_vain.discard(uid)

    def offered(self, uid: str) -> Collection[str] | None:
        """The nodes that it may move to, if it was passed over; None if it was not."""
        return self._offered.get(uid)

    # What became of it.

    def refused(self, uid: str) -> None:
        """There is no place for it now."""
        self._refused[uid] = None

    def holds(self, uid: str) -> None:
        """It has its reservation already."""
        self._refused.pop(uid, None)

    def placed(self, uid: str) -> bool:
        """It has a reservation now; says whether a Filter had asked in vain."""
        was_in_vain = uid in self._in_vain
        self._refused.pop(uid, None)
        self._in_vain.discard(uid)
        self._offered.pop(uid, None)
        self._parked.discard(uid)
        return was_in_vain

    def take(self) -> list[Consumer]:
        """Those that are due, in turn; none of them is due any more."""
        due, self._due = self._due, {}
        return sorted(self._known(due), key=_turn)

    def _known(self, uids: Iterable[str]) -> Iterable[Consumer]:
        return (c for uid in uids if (c := self._books.consumer(uid)) is not None)


def _turn(consumer: Consumer) -> tuple[bool, str, str, str]:
    """Who has a node already first, then the oldest; ties by name, never by chance."""
    metadata = consumer.pod.metadata
    return (
        not consumer.lacks_grant,
        metadata.creation_timestamp or "",
        metadata.namespace or "",
        metadata.name,
    )
