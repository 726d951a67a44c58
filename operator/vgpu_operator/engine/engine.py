"""The serial loop: has claims tended and pods placed, in one task of one thread.

What changes is only noted as it comes (`intake.py`); the loop does the work, so that bursts
coalesce. Where this replica does not lead, the notes are all that happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_client.api import Api
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import ClaimWriter, Key
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.expiry import Expiry
from vgpu_operator.engine.hints import Hints
from vgpu_operator.engine.immediate import ImmediateQueue
from vgpu_operator.engine.init_again import InitAgain
from vgpu_operator.engine.intake import Intake
from vgpu_operator.engine.link_watch import LinkWatch
from vgpu_operator.engine.placing import Placing
from vgpu_operator.engine.pod_queue import PodQueue
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.scheduler import Scheduler
from vgpu_operator.engine.starvation import Starvation
from vgpu_operator.engine.teller import Teller
from vgpu_operator.engine.tending import Tending
from vgpu_operator.engine.wanted import WantedClaims
from vgpu_operator.ledger import Ledger

logger = logging.getLogger(__name__)

_COALESCE_S = 0.005
_TICK_S = 1.0


class Engine:
    """Acts on what was brought in, where it leads.

    Args:
        api: For pokes.
        config: Defaults and policies.
        ledger: Who holds what.
        books: What was seen.
        writer: Writes claims.
        teller: Tells why something was refused.
        clock: Both clocks.
        leads: Whether this replica decides, and has seen everything it must have seen.

    Attributes:
        intake: Where changes are brought in.
        scheduler: Decides.
        tending: What claims need but a decision.
        hints: What kube-scheduler is told.
        books: What was seen.
    """

    def __init__(
        self,
        *,
        api: Api,
        config: ClusterConfig,
        ledger: Ledger,
        books: Books,
        writer: ClaimWriter,
        teller: Teller,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self.scheduler = Scheduler(
            config=config,
            ledger=ledger,
            books=books,
            writer=writer,
            clock=clock,
            failed=self._write_failed,
        )
        self.books = books
        reservations = self.scheduler.reservations
        self._starvation = Starvation(
            holds=self.scheduler.holds,
            columns=ledger.columns,
            after_s=config.scheduling.starvation_after_seconds,
            wanted=WantedClaims(
                config, books, ledger, reservations, self.scheduler.pod_claims.spec_for
            ),
        )
        self.hints = Hints(
            api, clock=clock, wanted=lambda held: leads() and reservations.is_current(held)
        )
        self._ledger = ledger
        self._teller = teller
        self._clock = clock
        self._leads = leads
        self._link_watch = LinkWatch(ledger, books, teller)
        self._wake = asyncio.Event()
        self._cursor = 0
        self._pods = PodQueue(books)
        self._claims: dict[Key, None] = {}  # claims to be tended
        self._immediate = ImmediateQueue()
        self._init_again = InitAgain(
            config=config,
            ledger=ledger,
            books=books,
            holds=self.scheduler.holds,
            writer=writer,
            teller=teller,
            moments=self.scheduler.moments,
            note=self.note,
        )
        self.tending = Tending(
            api=api,
            books=books,
            ledger=ledger,
            writer=writer,
            scheduler=self.scheduler,
            immediate=self._immediate,
            init_again=self._init_again,
            clock=clock,
            wake=self.wake,
            orphaned=self._pods.orphaned,
        )
        self.intake = Intake(
            config=config,
            books=books,
            ledger=ledger,
            scheduler=self.scheduler,
            teller=teller,
            starvation=self._starvation,
            hints=self.hints,
            link_watch=self._link_watch,
            pods=self._pods,
            immediate=self._immediate,
            note=self.note,
            wake=self.wake,
        )
        self._placing = Placing(
            books=books,
            scheduler=self.scheduler,
            writer=writer,
            teller=teller,
            hints=self.hints,
            starvation=self._starvation,
            pods=self._pods,
            immediate=self._immediate,
            expiry=Expiry(api, learned=self.intake.pod_changed),
            clock=clock,
            leads=leads,
        )
        self._background: set[asyncio.Task[None]] = set()

    # What the writer and the extender bring.

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def asked(
        self, consumer: Consumer, outcome: Reservation | Refusal, *, offered: Collection[str]
    ) -> None:
        """A Filter that offered these nodes asked about the pod and was answered so."""
        if isinstance(outcome, Refusal):
            held = self.scheduler.reservations.of_pod(consumer.uid)
            over = None if held is None or held.node in offered else offered
            self._pods.asked(consumer.uid, in_vain=True, passed_over=over)
            self.wake()
            return
        self._pods.asked(consumer.uid, in_vain=False)
        self._starvation.over(consumer.claim)
        if outcome.asked is None:
            outcome.asked = self._clock.monotonic()

    def tend_everything(self) -> None:
        """This replica begins to lead: look at all there is."""
        for claim in self.books.claims():
            self.note(key_of(claim))
        for consumer in self.books.consumers():
            if consumer.wants_node or consumer.lacks_grant:
                self._pods.put(consumer.uid)
        self.wake()

    # The loop.

    async def run(self) -> None:
        """Work for ever."""
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()
                await asyncio.sleep(_COALESCE_S)  # a burst is one round
            except TimeoutError:
                pass  # nothing changed but the time: reservations may have expired
            self._wake.clear()
            if self._leads():
                self.round()

    def round(self) -> None:
        """Do everything that is to be done now."""
        for reservation in self.scheduler.reservations.expired(self._clock.monotonic()):
            self._in_background(self._expire(reservation))
        for claim in self.tending.unused.due():
            self._in_background(self.tending.unused.delete(claim))
        for claim, why in self.tending.unusable.due(self._clock.monotonic()):
            self.tending.take_back(claim, why)
        claims, self._claims = self._claims, {}
        for key in claims:
            self.tending.tend(key)
        now = self._clock.monotonic()
        self._starvation.review(now)
        self._cursor, changed = self._ledger.changed_since(self._cursor)
        if changed:
            self._pods.something_changed()
            self._init_again.something_changed()
        for key in self._immediate.ready(now, changed=bool(changed)):
            self._placing.place_immediate(key)
        for consumer in self._pods.take():
            self._placing.place(consumer)
        self._link_watch.look()
        self._teller.tell_what_is_due()

    def note(self, key: Key) -> None:
        """A claim is to be looked at."""
        self._claims[key] = None
        self.wake()

    async def _expire(self, reservation: Reservation) -> None:
        if await self._placing.may_go(reservation):
            self.tending.release_reservation(reservation)

    # What writes bring back.

    def _write_failed(self, reservation: Reservation, why: str) -> None:
        logger.warning("claim %s/%s was not written: %s", *reservation.claim, why)
        consumer = self.books.consumer(reservation.pod_uid)
        if consumer is not None and consumer.wants_node:
            self._pods.put(consumer.uid)
        self.note(reservation.claim)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
