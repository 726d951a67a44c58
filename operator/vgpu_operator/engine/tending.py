"""What a claim needs but a decision: to be released, shown in use, let go, or put in a queue.

Called for every claim that changed, and again whenever a write to it has ended; looks at the claim
as it is now and starts at most one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from vgpu_api.conditions import PREPARED, is_true
from vgpu_api.init_part import init_part_wanted
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import ClaimWriter, Key
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.immediate import ImmediateQueue
from vgpu_operator.engine.init_again import InitAgain
from vgpu_operator.engine.release import is_stranded, node_lost, pod_to_forget, release_reason
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.scheduler import Scheduler
from vgpu_operator.engine.status import Wish, says
from vgpu_operator.engine.unusable import UnusableClaims, is_idle, unusable_write
from vgpu_operator.engine.unused import UnusedClaims
from vgpu_operator.engine.writes import (
    in_use_write,
    init_cards_are_free,
    init_ended_write,
    refusal_write,
    release_write,
    unreserve_write,
    unstrand_write,
)
from vgpu_operator.ledger import Ledger

logger = logging.getLogger(__name__)


class Tending:
    """Tends claims.

    Args:
        api: Where claims past their ttl are deleted.
        books: What was seen.
        ledger: Who holds what.
        writer: Writes claims.
        scheduler: Knows the reservations.
        immediate: The queue of Immediate claims without an allocation.
        init_again: Fits init containers that must run again.
        clock: Both clocks.
        wake: Asks for another round.
        orphaned: Told of a pod (by UID) whose cards go with its node, though it may still be there.

    Attributes:
        unused: Claims with a ttl whose pod has ended.
        unusable: Immediate claims whose cards cannot be used.
    """

    def __init__(
        self,
        *,
        api: Api,
        books: Books,
        ledger: Ledger,
        writer: ClaimWriter,
        scheduler: Scheduler,
        immediate: ImmediateQueue,
        init_again: InitAgain,
        clock: Clock,
        wake: Callable[[], None],
        orphaned: Callable[[str], None],
    ) -> None:
        self.unused = UnusedClaims(api, books, unix=clock.unix)
        self.unusable = UnusableClaims(books, ledger)
        self._books = books
        self._writer = writer
        self._scheduler = scheduler
        self._immediate = immediate
        self._init_again = init_again
        self._clock = clock
        self._wake = wake
        self._orphaned = orphaned

    def tend(self, key: Key) -> None:
        """Do what a claim needs but a decision."""
        claim = self._books.claim(key)
        if claim is None or self._writer.busy(key) or self._books.is_unreadable(key):
            return  # the end of the write, or a version that can be read, brings it here again
        if (
            claim.status.allocation is not None
            or claim.spec.binding_mode != "Immediate"
            or claim.metadata.deletion_timestamp is not None
        ):
            self._immediate.drop(key)
        self.unused.look_at(claim)
        self.unusable.look_at(claim)
        if is_stranded(claim):
            self._writer.submit(unstrand_write(claim))
            return
        reason = release_reason(claim, self._books)
        if reason is not None and is_idle(claim) and claim.metadata.deletion_timestamp is None:
            self.take_back(claim, reason)
            return
        if reason is not None:
            self._release(claim, reason)
            return
        if pod_to_forget(claim, self._books) is not None:
            self._unreserve(claim)
            return
        if claim.metadata.deletion_timestamp is not None:
            return
        if init_cards_are_free(claim):
            self._writer.submit(init_ended_write(claim))
        elif init_part_wanted(claim):
            self._init_again.fit(claim)
        elif claim.status.allocation is not None:
            if is_true(claim.status.conditions, PREPARED) and claim.status.state == "Allocated":
                self._writer.submit(in_use_write(claim, now=self._clock.unix()))
            self._let_it_expire(claim)
        elif claim.spec.binding_mode == "Immediate":
            # One that was used and released holds nothing until a pod comes to use it again.
            if claim.status.state != "Released" or self._is_wanted(key):
                self._immediate.put(
                    key,
                    priority=claim.spec.scheduling_priority,
                    created=claim.metadata.creation_timestamp or "",
                    generation=claim.metadata.generation,
                )
                self._wake()
        elif not self._books.consumers_of(key) and claim.status.state in (None, "Pending"):
            is_template = self._books.is_template(key)
            wish = Wish.template() if is_template else Wish.waiting()
            if not says(claim, wish) and (is_template or not says(claim, Wish.template())):
                self._writer.submit(refusal_write(key, wish, now=self._clock.unix()))

    def _let_it_expire(self, claim: VGPUClaim) -> None:
        """An allocation that stands for a pod without a node is a reservation, and expires.

        However it came about: written by a former leader, or after its own reservation had ended.
        """
        reserved = claim.status.reserved_for
        consumer = self._books.consumer(reserved.pod_uid) if reserved is not None else None
        if consumer is not None and consumer.wants_node and consumer.claim == key_of(claim):
            self._scheduler.keep_for(consumer, claim)

    def _release(self, claim: VGPUClaim, reason: str) -> None:
        reservation = self._scheduler.reservations.of_claim(key_of(claim))
        if reservation is not None:
            self._scheduler.reservations.drop(reservation)
        allocation, reserved = claim.status.allocation, claim.status.reserved_for
        if allocation and reserved and node_lost(allocation, self._books):
            self._orphaned(reserved.pod_uid)
        self._writer.submit(release_write(claim, reason, now=self._clock.unix()))

    def _is_wanted(self, key: Key) -> bool:
        return any(c.wants_node or c.lacks_grant for c in self._books.consumers_of(key))

    def take_back(self, claim: VGPUClaim, why: str) -> None:
        """Free an Immediate claim's unusable cards, unless a Binding to them is under way."""
        reservation = self._scheduler.reservations.of_claim(key_of(claim))
        if reservation is not None:
            if reservation.binding:
                return
            self._scheduler.reservations.drop(reservation)
        self._writer.submit(unusable_write(claim, why, now=self._clock.unix()))

    def _unreserve(self, claim: VGPUClaim) -> None:
        reservation = self._scheduler.reservations.of_claim(key_of(claim))
        if reservation is not None:
            self._scheduler.reservations.drop(reservation)
        self._writer.submit(unreserve_write(claim, now=self._clock.unix()))

    def release_reservation(self, reservation: Reservation) -> None:
        """Give the cards back of a reservation that no pod will use; an Immediate claim's stay."""
        claim = self._books.claim(reservation.claim)
        self._scheduler.reservations.drop(reservation)
        if claim is None or claim.status.allocation is None:
            return
        if claim.spec.binding_mode == "Immediate":
            self._unreserve(claim)
            return
        logger.info(
            "claim %s/%s: the reservation on %s expired", *reservation.claim, reservation.node
        )
        expired = claim.status.allocation.allocated_time
        wish = Wish.refused(
            reason="ReservationExpired", message="its pod was not bound in time; decided anew then"
        )
        self._writer.submit(
            refusal_write(reservation.claim, wish, now=self._clock.unix(), instead_of=expired)
        )
