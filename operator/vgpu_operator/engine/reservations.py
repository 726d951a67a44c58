"""Who holds what until it runs: the reservations, and when one without a Binding expires. Pure.

A reservation that no Filter has asked about holds for five minutes, one that was asked about and
not bound for a minute; then the cards go, so that a pod stuck for other reasons holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vgpu_operator.engine.claim_writer import Key, Result
from vgpu_operator.engine.status import Wish

NEVER_ASKED_S = 300.0
ASKED_S = 60.0


@dataclass(slots=True)
class Reservation:
    """An allocation that stands, or is being written.

    Attributes:
        claim: The claim.
        pod_uid: The pod it is for; empty for an Immediate claim without one.
        wish: What the claim's status says, or will.
        written: Ends when the claim says so, or with why it does not.
        since: When it was made, monotonic seconds.
        asked: When a Filter asked for it first.
        binding: A Binding is under way or done: it expires no more.
        immediate: Of an Immediate claim: stays when its pod goes elsewhere.
        pinned: A Binding may yet come to stand: until it expires, this node and no other.
    """

    claim: Key
    pod_uid: str
    wish: Wish
    since: float
    asked: float | None = None
    binding: bool = False
    immediate: bool = False
    pinned: bool = False
    written: asyncio.Future[Result] = field(init=False)

    @property
    def node(self) -> str:
        """Where."""
        return self.wish.allocation.node_name if self.wish.allocation is not None else ""

    def is_expired(self, now: float) -> bool:
        """Whether it has been held for too long without a Binding."""
        if self.binding or self.immediate:
            return False
        if self.asked is not None:
            return now - self.asked >= ASKED_S
        return now - self.since >= NEVER_ASKED_S


class Reservations:
    """All reservations, one at most for a claim and for a pod.

    Args:
        ended: Told of each that is no longer one.
    """

    def __init__(self, ended: Callable[[Reservation], None] = lambda reservation: None) -> None:
        self._ended = ended
        self._of_claim: dict[Key, Reservation] = {}
        self._of_pod: dict[str, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._of_claim.values()))

    def of_pod(self, uid: str) -> Reservation | None:
        """The pod's."""
        return self._of_pod.get(uid)

    def of_claim(self, key: Key) -> Reservation | None:
        """The claim's."""
        return self._of_claim.get(key)

    def put(self, reservation: Reservation) -> None:
        """Take one on; it replaces the claim's and the pod's former one."""
        for former in (
            self._of_claim.get(reservation.claim),
            self._of_pod.get(reservation.pod_uid) if reservation.pod_uid else None,
        ):
            if former is not None:
                self.drop(former)
        self._of_claim[reservation.claim] = reservation
        if reservation.pod_uid:
            self._of_pod[reservation.pod_uid] = reservation

    def drop(self, reservation: Reservation) -> None:
        """Forget it, if it is still the one."""
        if self._of_claim.get(reservation.claim) is reservation:
            del self._of_claim[reservation.claim]
        if self._of_pod.get(reservation.pod_uid) is reservation:
            del self._of_pod[reservation.pod_uid]
            self._ended(reservation)

    def is_current(self, reservation: Reservation) -> bool:
        """Whether nothing has replaced it."""
        return self._of_claim.get(reservation.claim) is reservation

    def expired(self, now: float) -> list[Reservation]:
        """Those that must go."""
        return [reservation for reservation in self if reservation.is_expired(now)]
