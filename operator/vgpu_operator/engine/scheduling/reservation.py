"""Reservations: decisions for pods that do not run yet, and for Immediate claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from vgpu_api.v1alpha1 import Allocation, ReservedFor, VGPUClaimSpec
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.ledger import Assumption, ClaimKey
from vgpu_operator.placement import Share

TENTATIVE_S = 15.0
"""Seconds a tentative place waits for the Filter of the pod that was requeued for it."""
LAPSED_S = 600.0
"""Seconds a place stays tentative after its offer lapsed: binding volumes may take minutes."""
PROVISIONAL_S = 2.0
"""Seconds a provisional place of a group's pod lasts: its Filter may be a simulation."""
OFFERED_S = 15.0
"""Seconds an offered reservation waits for Bind before it lapses and frees its devices."""
PINNED_S = 60.0
"""Seconds in which a Binding without a response may still succeed."""


class Phase(Enum):
    """The phase of a reservation."""

    TENTATIVE = "Tentative"
    OFFERED = "Offered"
    BINDING = "Binding"
    BOUND = "Bound"
    PINNED = "Pinned"


@dataclass(slots=True)
class Reservation:
    """Devices on one node that are reserved for one claim.

        Tentative ──Filter offers the node──► Offered ──Bind──► Binding ──succeeded──► Bound
            ▲  │                                │  ▲              │ │
            │  └─► (gone: another pod's         │  └─── refused ──┘ │ no answer
            │       Filter took the devices,    │                   ▼
            │       or no Filter came)          │                 Pinned (this node and no
            └───── no Bind in time ─────────────┘                   other, until it was read)

    A tentative place exists in memory only, and yields to any Filter. From Offered on, the devices
    are assumed in the ledger and the claim is written. Because of that difference, the step between
    Tentative and Offered makes a new reservation that replaces the old one. All other changes of
    phase are methods below. A provisional place is a tentative one that a group's pod gets in a
    Filter (groups.py). docs/design/reservations.md has a table of the ways a reservation ends
    and of what is left of it.

    Attributes:
        key: The claim.
        pod_uid: The pod it is for; empty for an Immediate claim without a pod.
        node: The node's name.
        number: The number that the columns give the node.
        phase: The phase it is in.
        until: When it lapses, in monotonic seconds; None if it does not.
        priority: The pod's priority; the place does not yield to less important requeues.
        shares: The capacity that a tentative place keeps.
        kind: The class of the waiter that a tentative place was taken for.
        is_awaited: True if the pod was requeued for this tentative place, so its Filter is due; or
            if it is provisional, and the group may still start.
        group: The group of a provisional place; None of any other.
        is_given_up: True for a provisional place that only its own group respects any more.
        spec: The spec that was decided on; if the claim's spec has changed, the claim is not
            written. None if the claim has the allocation already.
        allocation: The allocation in the claim's status, or the one to be written; None while
            tentative.
        reserved_for: The pod as the claim's status names it.
        replaces: Ids of the allocations that the write may replace.
        is_immediate: True for an Immediate claim, which keeps its allocation if its pod goes
            elsewhere.
        assumption: The ledger's assumption until the write has an outcome.
        is_written: True if the claim's status shows the reservation.
        is_read: True while its pod is being read, to decide if the reservation may end.
        is_withdrawn: True if the scheduler has given the place back; then no tentative place
            remains.
        pinned_until: Until then an earlier Binding without a response may still succeed.
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
    group: GroupKey | None = None
    is_given_up: bool = False
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
        """True if this is only a tentative place, which yields."""
        return self.phase is Phase.TENTATIVE

    @property
    def is_binding(self) -> bool:
        """True if a Binding to its node was posted or is about to be, and has not failed."""
        return self.phase in (Phase.BINDING, Phase.BOUND, Phase.PINNED)

    @property
    def is_bound(self) -> bool:
        """True if its pod is bound."""
        return self.phase is Phase.BOUND

    @property
    def allocation_id(self) -> str:
        """Return the id of its allocation; empty while it is tentative."""
        return "" if self.allocation is None else self.allocation.id

    def give_up(self) -> None:
        """Let everybody but the place's own group have its devices."""
        self.is_awaited, self.is_given_up = False, True

    def lapse_now(self, now: float) -> None:
        """Let the offer lapse at once, because kube-scheduler has ruled the node out."""
        if self.phase is Phase.OFFERED:
            self.until = now

    def withdraw(self, now: float) -> None:
        """End the offer now and keep no tentative place, because the scheduler gave it up."""
        if self.phase is Phase.OFFERED:
            self.until, self.is_withdrawn = now, True

    def offer_again(self, now: float) -> None:
        """Offer a withdrawn place once more, if it has not been ended yet."""
        if self.is_withdrawn and self.phase is Phase.OFFERED:
            self.until, self.is_withdrawn = now + OFFERED_S, False

    def begin_bind(self, reserved_for: ReservedFor) -> None:
        """Start binding the pod: the claim must name it, and the reservation does not lapse."""
        assert not self.is_tentative
        if self.phase is not Phase.BOUND:
            self.phase, self.until = Phase.BINDING, None
        if self.reserved_for != reserved_for:
            self.reserved_for, self.is_written = reserved_for, False

    def bound(self) -> None:
        """Record that the pod is bound."""
        self.phase, self.until = Phase.BOUND, None

    def taken_away(self, now: float) -> None:
        """Go back to Offered: nothing lets kube-scheduler bind the pod any more."""
        if self.is_binding:
            self.phase, self.until, self.pinned_until = Phase.OFFERED, now + OFFERED_S, 0.0

    def keep(self) -> None:
        """Keep the devices of a pod that is gone but may have run.

        From now on only the watch or the agent can end the reservation.
        """
        self.phase, self.until = Phase.BOUND, None

    def bind_failed(self, now: float) -> None:
        """Go back to Offered: the Binding was refused or never posted, and will be tried again.

        If an earlier Binding got no response, it may still succeed, so the reservation is pinned.
        """
        if self.phase is Phase.BINDING and now < self.pinned_until:
            self.phase, self.until = Phase.PINNED, self.pinned_until
        elif self.phase is Phase.BINDING:
            self.phase, self.until = Phase.OFFERED, now + OFFERED_S

    def pin(self, now: float) -> None:
        """Pin the reservation to its node: the Binding got no response and may still succeed."""
        if self.phase is Phase.BINDING:
            self.phase, self.until = Phase.PINNED, now + PINNED_S
            self.pinned_until = self.until

    def has_lapsed(self, now: float) -> bool:
        """Return True if its time is over."""
        return self.until is not None and now >= self.until


@dataclass(slots=True)
class Reservations:
    """All reservations, at most one for a claim and one for a pod.

    Attributes:
        tentative: The tentative places by node number and claim; callers must not change it.
    """

    _of_claim: dict[ClaimKey, Reservation] = field(default_factory=dict)
    _of_pod: dict[str, Reservation] = field(default_factory=dict)
    tentative: dict[int, dict[ClaimKey, Reservation]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._of_claim.values()))

    def __len__(self) -> int:
        return len(self._of_claim)

    def of_pod(self, uid: str) -> Reservation | None:
        """Return the pod's reservation, or None."""
        return self._of_pod.get(uid)

    def of_claim(self, key: ClaimKey) -> Reservation | None:
        """Return the claim's reservation, or None."""
        return self._of_claim.get(key)

    def _former(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """Return the reservations it replaces: the claim's and the pod's, which may differ."""
        of_claim = self._of_claim.get(reservation.key)
        of_pod = self._of_pod.get(reservation.pod_uid) if reservation.pod_uid else None
        if of_claim is of_pod:
            of_pod = None
        return tuple(each for each in (of_claim, of_pod) if each is not None)

    def put(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """Add a reservation; return the claim's and the pod's former ones, which it replaces."""
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
        """Remove a reservation, unless another has replaced it already."""
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
        """Return True if the reservation has been neither replaced nor dropped."""
        return self._of_claim.get(reservation.key) is reservation
