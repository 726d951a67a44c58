"""Places pods and Immediate claims, one at a time, and deals with what comes of it.

The decision itself is the scheduler's. Here a refusal is told and waits, a reservation is hinted
at, and one that expired is given up.
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import ClaimWriter, Key
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.expiry import Expiry
from vgpu_operator.engine.hints import Hints
from vgpu_operator.engine.immediate import ImmediateQueue
from vgpu_operator.engine.pod_queue import PodQueue
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.scheduler import Scheduler
from vgpu_operator.engine.starvation import Starvation
from vgpu_operator.engine.teller import Teller
from vgpu_operator.metrics import SCHEDULING_ATTEMPTS, SCHEDULING_DURATION


class Placing:
    """Places what is due.

    Args:
        books: What was seen.
        scheduler: Decides.
        writer: Knows which claims are being written.
        teller: Tells why something was refused.
        hints: Tells kube-scheduler of reservations.
        starvation: Counts how long somebody has waited.
        pods: Whose turn it is.
        immediate: Immediate claims without an allocation.
        expiry: Judges reservations that have been held for too long.
        clock: Both clocks.
        leads: Whether this replica decides.
    """

    def __init__(
        self,
        *,
        books: Books,
        scheduler: Scheduler,
        writer: ClaimWriter,
        teller: Teller,
        hints: Hints,
        starvation: Starvation,
        pods: PodQueue,
        immediate: ImmediateQueue,
        expiry: Expiry,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._books = books
        self._scheduler = scheduler
        self._writer = writer
        self._teller = teller
        self._hints = hints
        self._starvation = starvation
        self._pods = pods
        self._immediate = immediate
        self._expiry = expiry
        self._clock = clock
        self._leads = leads

    def place(self, consumer: Consumer) -> None:
        """Place a pod that waits, or give a bound one what it should have had."""
        bound = consumer.lacks_grant
        if not (consumer.wants_node or bound):
            return
        held = self._scheduler.reservations.of_pod(consumer.uid)
        offered = None if bound else self._pods.offered(consumer.uid)
        stays = held is not None and (not bound or held.node == consumer.pod.spec.node_name)
        if held is not None and stays and (offered is None or held.binding):
            held.binding = held.binding or bound
            self._pods.holds(consumer.uid)
            return
        candidates = [consumer.pod.spec.node_name] if bound else offered
        with SCHEDULING_DURATION.labels(phase="decide").time():
            outcome = self._scheduler.reserve(consumer, candidates=candidates)
        if isinstance(outcome, Refusal):
            SCHEDULING_ATTEMPTS.labels(result="refused", reason=outcome.reason).inc()
            self._pods.refused(consumer.uid)
            if stays:
                return  # its cards wait for it where they are
            self._starvation.refused(consumer.claim, outcome.reason, self._clock.monotonic())
            self._teller.tell_pod(consumer, outcome)
            return
        self._starvation.over(consumer.claim)
        if bound:
            outcome.binding = True
            if outcome.wish.reserved_for != consumer.reserved_for:
                self._scheduler.reserve_for(outcome, consumer)
        SCHEDULING_ATTEMPTS.labels(result="reserved", reason="").inc()
        in_vain = self._pods.placed(consumer.uid)
        if not bound:
            self._hints.reserved(consumer, outcome, in_vain=in_vain)

    def place_immediate(self, key: Key) -> None:
        """Decide an Immediate claim, unless it has cards or is being written."""
        claim = self._books.claim(key)
        if claim is None or claim.status.allocation is not None or self._writer.busy(key):
            return
        # A pod that is bound already can use it on its node only.
        on = {c.pod.spec.node_name for c in self._books.consumers_of(key) if c.lacks_grant}
        outcome = self._scheduler.reserve_immediate(claim, candidates=on or None)
        if isinstance(outcome, Refusal):
            SCHEDULING_ATTEMPTS.labels(result="refused", reason=outcome.reason).inc()
            now = self._clock.monotonic()
            self._immediate.refused(key, now)
            self._starvation.refused(key, outcome.reason, now)
            self._teller.tell_claim(key, outcome)
            return
        self._immediate.drop(key)
        self._starvation.over(key)

    async def may_go(self, reservation: Reservation) -> bool:
        """Whether an expired reservation is to be given up: its pod is not on its node after all.

        If so its pod waits from now on until a Filter asks.
        """
        verdict = await self._expiry.judge(reservation)
        current = self._scheduler.reservations.is_current(reservation)
        if not (current and reservation.is_expired(self._clock.monotonic()) and self._leads()):
            return False
        if verdict == "kept":
            reservation.binding = True
        if verdict != "free":
            return False
        self._pods.park(reservation.pod_uid)
        consumer = self._books.consumer(reservation.pod_uid)
        if consumer is not None:
            self._hints.withdrawn(consumer)
        return True
