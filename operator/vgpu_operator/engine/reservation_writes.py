"""A reservation on its way into its claim: what it may replace there, and what its end means.

The scheduler decides and assumes at once; the write comes to stand later, perhaps on another
version of the claim than the one that was decided on. So every version is judged anew before it
is written over, and only the end of the write says whether the assumption was true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec, VGPUClaimStatus
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import ClaimWrite, ClaimWriter, Done, Result, Verdict
from vgpu_operator.engine.consumers import Consumer, is_owned_by, serves_another
from vgpu_operator.engine.reservations import Reservation, Reservations
from vgpu_operator.engine.status import says, status_with
from vgpu_operator.ledger import Assumption, Ledger


class ReservationWrites:
    """Writes reservations into claims.

    Args:
        writer: Writes claims.
        books: What was seen.
        ledger: Who holds what.
        reservations: Those that stand.
        unix: The clock of what is written down.
        failed: Told of a reservation whose write did not come to stand.
    """

    def __init__(
        self,
        *,
        writer: ClaimWriter,
        books: Books,
        ledger: Ledger,
        reservations: Reservations,
        unix: Callable[[], float],
        failed: Callable[[Reservation, str], None],
    ) -> None:
        self._writer = writer
        self._books = books
        self._ledger = ledger
        self._reservations = reservations
        self._unix = unix
        self._failed = failed

    def submit(
        self,
        reservation: Reservation,
        *,
        consumer: Consumer | None,
        create: dict[str, object] | None = None,
        spec: VGPUClaimSpec | None = None,
        former: Reservation | None = None,
        assumption: Assumption | None = None,
    ) -> asyncio.Task[Result]:
        """Write a reservation into its claim.

        Args:
            reservation: What is to stand there.
            consumer: The pod it is for; None: whoever comes.
            create: The claim to make where there is none; None: then there is nothing to write.
            spec: What was decided on; a claim that asks for something else now is left alone.
            former: The reservation that this one replaces.
            assumption: What the ledger holds for it; confirmed or forgotten when the write ends.
        """
        wish = reservation.wish
        known = self._books.claim(reservation.claim)
        # What this write may replace: nothing, what was known when it was decided, and what an
        # earlier write, still under way, may have put there.
        ours = _time(wish.allocation)
        replaceable = {None, ours, _time(known.status.allocation) if known is not None else None}
        replaceable.add(_time(former.wish.allocation) if former is not None else None)

        def judge(claim: VGPUClaim) -> Verdict:
            standing = _time(claim.status.allocation)
            if standing == ours and says(claim, wish):
                return "done"
            if standing not in replaceable:
                return "moot"
            if claim.metadata.deletion_timestamp is not None:
                return "moot"
            if spec is not None and claim.spec != spec:
                return "moot"
            if consumer is not None and not _may_serve(claim, consumer):
                return "moot"
            return "write" if self._reservations.is_current(reservation) else "moot"

        def status(claim: VGPUClaim) -> VGPUClaimStatus:
            return status_with(claim, wish, now=self._unix())

        written = self._writer.submit(
            ClaimWrite(
                key=reservation.claim, status=status, judge=judge, create=create, finalizer="hold"
            )
        )
        if assumption is not None:
            written.add_done_callback(lambda done: self._settle(reservation, assumption, done))
        return written

    def _settle(
        self, reservation: Reservation, assumption: Assumption, done: asyncio.Future[Result]
    ) -> None:
        """The write has ended: what was assumed is now true, or was never."""
        if done.cancelled():
            return
        result = done.result()
        if isinstance(result, Done):
            self._ledger.confirm(assumption, result.claim)
            return
        self._ledger.forget(assumption)
        if self._reservations.is_current(reservation):
            self._reservations.drop(reservation)
            self._failed(reservation, result.why)


def _may_serve(claim: VGPUClaim, consumer: Consumer) -> bool:
    """A claim of the pod's own name must be the pod's own; any other must serve nobody else."""
    if consumer.owned:
        return is_owned_by(claim, consumer.uid)
    return not serves_another(claim, consumer)


def _time(allocation: Allocation | None) -> str | None:
    """What names an allocation."""
    return allocation.allocated_time if allocation is not None else None
