"""Reservations: what was decided for a pod that does not run yet, or for an Immediate claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from vgpu_api.v1alpha1 import Allocation, ReservedFor, VGPUClaimSpec
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.ledger import Assumption, ClaimKey
from vgpu_operator.placement import Share

TENTATIVE_S = 15.0
"""A pod that was requeued for a tentative place has so long until its Filter."""
LAPSED_S = 600.0
"""A place that was offered and not bound stays tentative for so long: volumes take their time."""
OFFERED_S = 15.0
"""An offered reservation without a Bind lapses after so long, and its devices are free again."""
PINNED_S = 60.0
"""A Binding without an answer may still come to stand for so long."""


class Phase(Enum):
    """How far a reservation has come."""

    TENTATIVE = "Tentative"
    OFFERED = "Offered"
    BINDING = "Binding"
    BOUND = "Bound"
    PINNED = "Pinned"


@dataclass(slots=True)
class Reservation:
    """A place for one claim.

        Tentative ──Filter offers the node──► Offered ──Bind──► Binding ──it stands──► Bound
            ▲  │                                │  ▲              │ │
            │  └─► (gone: another pod's         │  └─── refused ──┘ │ no answer
            │       Filter took the devices,    │                   ▼
            │       or no Filter came)          │                 Pinned (this node and no
            └───── no Bind in time ─────────────┘                   other, until it was read)

    A tentative place is held in memory only, and yields to any Filter. From Offered on the devices
    are assumed in the ledger and the claim is written; so between these two a new reservation takes
    the place of the old one. Every other change of phase is one of the methods below. How one
    ends, and what is left of it, is a table in docs/design/reservations.md.

    Attributes:
        key: The claim.
        pod_uid: The pod it is for; empty for an Immediate claim without one.
        node: The node's name.
        number: The number that the columns give the node.
        priority: Of the pod: more important ones do not yield to less important ones.
        shares: What a tentative place keeps.
        kind: Of the waiter that a tentative place was taken for.
        is_awaited: Its pod was requeued for this tentative place, so a Filter is to come soon.
        spec: What was decided on; a claim that asks for something else now is left alone. None:
            the claim has the allocation already.
        allocation: The claim status's, or what it will be; None while tentative.
        reserved_for: The pod as the claim's status names it.
        replaces: Ids of allocations that the write may replace.
        is_immediate: Of an Immediate claim: the allocation stays when its pod goes elsewhere.
        assumption: What the ledger holds for it until the write has an outcome.
        is_written: Whether the claim's status has it.
        until: When it lapses, monotonic seconds; None: it does not.
        is_read: Its pod is being read, which decides about its end.
        is_withdrawn: Its scheduler has taken the place back: nothing of it stays tentative.
        pinned_until: Until then an earlier Binding without an answer may come to stand.
    """

    key: ClaimKey
    pod_uid: str
    node: str
    number: int
    phase: Phase
    until: float | None
    priority: int = 0
    shares: tuple[Share, ...] = ()
    kind: EquivalenceClass | None = None
    is_awaited: bool = False
    spec: VGPUClaimSpec | None = None
    allocation: Allocation | None = None
    reserved_for: ReservedFor | None = None
    replaces: frozenset[str] = frozenset()
    is_immediate: bool = False
    assumption: Assumption | None = None
    is_written: bool = False
    is_read: bool = False
    is_withdrawn: bool = False
    pinned_until: float = 0.0

    @property
    def is_tentative(self) -> bool:
        """Whether it yields."""
        return self.phase is Phase.TENTATIVE

    @property
    def is_binding(self) -> bool:
        """Whether a Binding to its node was posted, or will be, and has not failed."""
        return self.phase in (Phase.BINDING, Phase.BOUND, Phase.PINNED)

    @property
    def is_bound(self) -> bool:
        """Whether its Binding stands."""
        return self.phase is Phase.BOUND

    @property
    def allocation_id(self) -> str:
        """The id of its allocation; empty while tentative."""
        return "" if self.allocation is None else self.allocation.id

    def lapse_now(self, now: float) -> None:
        """End the offer now instead of in time: kube-scheduler has ruled the node out."""
        if self.phase is Phase.OFFERED:
            self.until = now

    def withdraw(self, now: float) -> None:
        """End the offer now, and keep no tentative place: its scheduler takes the place back."""
        if self.phase is Phase.OFFERED:
            self.until, self.is_withdrawn = now, True

    def offer_again(self, now: float) -> None:
        """A place that was taken back, and has not lapsed yet, is offered once more."""
        if self.is_withdrawn and self.phase is Phase.OFFERED:
            self.until, self.is_withdrawn = now + OFFERED_S, False

    def begin_bind(self, reserved_for: ReservedFor) -> None:
        """Its pod is being bound: the claim is to name it, and nothing lapses meanwhile."""
        assert not self.is_tentative
        if self.phase is not Phase.BOUND:
            self.phase, self.until = Phase.BINDING, None
        if self.reserved_for != reserved_for:
            self.reserved_for, self.is_written = reserved_for, False

    def bound(self) -> None:
        """Its pod has the node."""
        self.phase, self.until = Phase.BOUND, None

    def keep(self) -> None:
        """Its pod is gone, and may have run: only the watch or the agent can end it."""
        self.phase, self.until = Phase.BOUND, None

    def bind_failed(self, now: float) -> None:
        """The Binding was refused, or never posted: kube-scheduler will try again.

        An earlier one without an answer may still come to stand, whatever became of this one.
        """
        if self.phase is Phase.BINDING and now < self.pinned_until:
            self.phase, self.until = Phase.PINNED, self.pinned_until
        elif self.phase is Phase.BINDING:
            self.phase, self.until = Phase.OFFERED, now + OFFERED_S

    def pin(self, now: float) -> None:
        """There was no answer: the Binding may still come to stand."""
        if self.phase is Phase.BINDING:
            self.phase, self.until = Phase.PINNED, now + PINNED_S
            self.pinned_until = self.until

    def has_lapsed(self, now: float) -> bool:
        """Whether its time is over."""
        return self.until is not None and now >= self.until


@dataclass(slots=True)
class Reservations:
    """All reservations, one at most for a claim and for a pod.

    `tentative` are the tentative ones by node number and claim, to be read only.
    """

    _of_claim: dict[ClaimKey, Reservation] = field(default_factory=dict)
    _of_pod: dict[str, Reservation] = field(default_factory=dict)
    tentative: dict[int, dict[ClaimKey, Reservation]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._of_claim.values()))

    def __len__(self) -> int:
        return len(self._of_claim)

    def of_pod(self, uid: str) -> Reservation | None:
        """The pod's."""
        return self._of_pod.get(uid)

    def of_claim(self, key: ClaimKey) -> Reservation | None:
        """The claim's."""
        return self._of_claim.get(key)

    def _former(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """Return those that it replaces: the claim's and the pod's, which may be two."""
        of_claim = self._of_claim.get(reservation.key)
        of_pod = self._of_pod.get(reservation.pod_uid) if reservation.pod_uid else None
        if of_claim is of_pod:
            of_pod = None
        return tuple(each for each in (of_claim, of_pod) if each is not None)

    def put(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """Take one on; return the claim's and the pod's former ones, which it replaces."""
        replaced = self._former(reservation)
        for former in replaced:
            self.drop(former)
        self._of_claim[reservation.key] = reservation
        if reservation.pod_uid:
            self._of_pod[reservation.pod_uid] = reservation
        if reservation.is_tentative:
            self.tentative.setdefault(reservation.number, {})[reservation.key] = reservation
        return replaced

    def drop(self, reservation: Reservation) -> None:
        """Forget it, if it is still the one."""
        if self._of_claim.get(reservation.key) is reservation:
            del self._of_claim[reservation.key]
        if self._of_pod.get(reservation.pod_uid) is reservation:
            del self._of_pod[reservation.pod_uid]
        there = self.tentative.get(reservation.number, {})
        if there.get(reservation.key) is reservation:
            del there[reservation.key]
            if not there:
                del self.tentative[reservation.number]

    def is_current(self, reservation: Reservation) -> bool:
        """Whether nothing has replaced it."""
        return self._of_claim.get(reservation.key) is reservation
