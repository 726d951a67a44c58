"""The one function that decides, for engine and extender alike, and the reservations it makes.

Everything here is synchronous: nothing moves between looking and assuming, so no lock exists. The
writes it starts end later and come back through callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from vgpu_api.config import ClusterConfig
from vgpu_api.host import cpu_milli_of
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec
from vgpu_operator.ask import Ask
from vgpu_operator.dialects import follows_labels
from vgpu_operator.dialects.ack import node_kinds
from vgpu_operator.engine.barred import Barred
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import ClaimWriter, Done, Key, Result
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.holds import Holds
from vgpu_operator.engine.moments import Moments
from vgpu_operator.engine.pod_claims import PodClaims
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservation_writes import ReservationWrites
from vgpu_operator.engine.reservations import Reservation, Reservations
from vgpu_operator.engine.status import Wish, claim_for_pod
from vgpu_operator.ledger import ClaimKey, Ledger
from vgpu_operator.placement import Plan, in_words, place, refusals_on

T = TypeVar("T")


class Scheduler:
    """Decides, assumes, and hands the decision to the writer.

    Args:
        config: Defaults and policies.
        ledger: Who holds what.
        books: What was seen.
        writer: Writes claims.
        clock: Both clocks.
        failed: Told of a reservation whose write did not come to stand.
    """

    def __init__(
        self,
        *,
        config: ClusterConfig,
        ledger: Ledger,
        books: Books,
        writer: ClaimWriter,
        clock: Clock,
        failed: Callable[[Reservation, str], None],
    ) -> None:
        self.reservations = Reservations(self._ended)
        self.holds = Holds(ledger)
        self.moments = Moments(clock.unix)
        self.pod_claims = PodClaims(books)
        self.barred = Barred(books.nodes)
        self._config = config
        self._ledger = ledger
        self._books = books
        self._clock = clock
        self._writes = ReservationWrites(
            writer=writer,
            books=books,
            ledger=ledger,
            reservations=self.reservations,
            unix=clock.unix,
            failed=failed,
        )

    def reserve(
        self, consumer: Consumer, *, candidates: Collection[str] | None = None
    ) -> Reservation | Refusal:
        """Reserve cards for a pod on the best of the candidate nodes (None: of all).

        A reservation that stands on one of the candidates is kept; elsewhere it moves. If there
        is no place among the candidates it stays where it is, and the answer is a refusal.
        """
        held = self.reservations.of_pod(consumer.uid)
        if held is not None:
            if candidates is None or held.node in candidates:
                return held
            if (held.pinned or held.binding) and not consumer.pod.is_bound:
                text = f"a Binding to {held.node} may still come to stand"
                return Refusal(Reason.RESERVED_ELSEWHERE, text, {})
        spec = self.pod_claims.spec_for(consumer)
        if isinstance(spec, Refusal):
            return spec
        claim = self._books.claim(consumer.claim)
        if claim is not None:
            standing = self._standing(consumer, claim, candidates)
            if standing is not None:
                return standing
            if claim.spec.binding_mode == "Immediate":
                return self._immediate_for(claim, candidates)
        plan = self._place(consumer, spec, candidates)
        if plan.refused:
            return self._refusal(consumer.claim, spec, plan)
        return self._assume(
            plan,
            spec,
            key=consumer.claim,
            consumer=consumer,
            create=claim_for_pod(consumer.pod, spec) if consumer.owned else None,
        )

    def _immediate_for(
        self, claim: VGPUClaim, candidates: Collection[str] | None
    ) -> Reservation | Refusal:
        """An Immediate claim's reservation for a pod that has come before it was decided."""
        outcome = self.reserve_immediate(claim, candidates=candidates)
        if isinstance(outcome, Refusal) or candidates is None or outcome.node in candidates:
            return outcome
        text = f"claim {claim.metadata.name} gets its cards on {outcome.node}"
        return Refusal(Reason.RESERVED_ELSEWHERE, text, {})

    def reserve_immediate(
        self, claim: VGPUClaim, *, candidates: Collection[str] | None = None
    ) -> Reservation | Refusal:
        """Decide a claim at once, for whatever pod comes to use it; on a candidate, if given."""
        key = key_of(claim)
        held = self.reservations.of_claim(key)
        if held is not None:
            return held
        self.holds.gather()
        with self._ledger.without(ClaimKey(*key)), self.holds.lifted(key):
            ask, budget = Ask.of(claim.spec, self._config), self._ledger.budget(key[0])
            plan = place(self._ledger.columns, ask, candidates, budget=budget)
        if plan.refused:
            return self._refusal(key, claim.spec, plan)
        return self._assume(plan, claim.spec, key=key, consumer=None, create=None)

    def reserve_for(self, reservation: Reservation, consumer: Consumer) -> None:
        """Put the pod's name on an allocation that was made without one."""
        allocation = reservation.wish.allocation
        assert allocation is not None
        reservation.pod_uid = consumer.uid
        reservation.wish = Wish.allocated(allocation, consumer.reserved_for)
        self.reservations.put(reservation)
        self._expect(consumer, reservation.node)
        reservation.written = self._writes.submit(reservation, consumer=consumer)

    def without_effect(
        self, consumer: Consumer, candidates: Collection[str]
    ) -> Mapping[str, str] | Refusal:
        """Why the pod cannot go to some of the nodes, by node; nothing is reserved."""
        spec = self.pod_claims.spec_for(consumer)
        if isinstance(spec, Refusal):
            return spec
        return in_words(self._decide(refusals_on, consumer, spec, candidates))

    def _standing(
        self, consumer: Consumer, claim: VGPUClaim, candidates: Collection[str] | None
    ) -> Reservation | Refusal | None:
        """What an existing claim says already; None when it is free to be decided."""
        refusal = self.pod_claims.refusal_of(claim, consumer)
        allocation = claim.status.allocation
        if refusal is not None or allocation is None:
            return refusal
        elsewhere = candidates is not None and allocation.node_name not in candidates
        immediate = claim.spec.binding_mode == "Immediate"
        if elsewhere and not immediate:
            return None
        if elsewhere:
            text = f"claim {claim.metadata.name} has its cards on {allocation.node_name}"
            return Refusal(Reason.RESERVED_ELSEWHERE, text, {})
        return self._adopt(consumer, claim, immediate=immediate)

    def keep_for(self, consumer: Consumer, claim: VGPUClaim) -> None:
        """Take a standing allocation for the pod's reservation, unless there is one already."""
        reservations = self.reservations
        if reservations.of_claim(consumer.claim) is None and not reservations.of_pod(consumer.uid):
            self._adopt(consumer, claim, immediate=claim.spec.binding_mode == "Immediate")

    def _adopt(self, consumer: Consumer, claim: VGPUClaim, *, immediate: bool) -> Reservation:
        """An allocation that stands in the claim, as this pod's reservation."""
        assert claim.status.allocation is not None
        written: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        written.set_result(Done(claim))
        reservation = Reservation(
            claim=consumer.claim,
            pod_uid=consumer.uid,
            wish=Wish.allocated(claim.status.allocation, claim.status.reserved_for),
            since=self._clock.monotonic(),
            immediate=immediate,
        )
        reservation.written = written
        self.reservations.put(reservation)
        self._expect(consumer, reservation.node)
        return reservation

    def _place(
        self, consumer: Consumer, spec: VGPUClaimSpec, candidates: Collection[str] | None
    ) -> Plan:
        """Where it fits; what the claim holds already is not in its own way."""
        return self._decide(place, consumer, spec, candidates)

    def _decide(
        self,
        how: Callable[..., T],
        consumer: Consumer,
        spec: VGPUClaimSpec,
        candidates: Collection[str] | None,
    ) -> T:
        pod, config = consumer.pod, self._config
        kinds = node_kinds(pod, config)
        by_labels = kinds is not None and follows_labels(pod, config)
        ask = Ask.of(spec, config, cpu_milli=cpu_milli_of(pod), by_labels=by_labels)
        barred = self.barred.to(consumer.pod, kinds=kinds)
        self.holds.gather()
        with self._ledger.without(ClaimKey(*consumer.claim)), self.holds.lifted(consumer.claim):
            budget = self._ledger.budget(consumer.claim[0])
            return how(self._ledger.columns, ask, candidates, barred=barred, budget=budget)

    def _refusal(self, key: Key, spec: VGPUClaimSpec, plan: Plan) -> Refusal:
        """Why nothing fits, cards that are held for others included."""
        texts = in_words(plan.refusals)
        held: Mapping[str, str] = {}
        if len(self.holds):
            held = self.holds.explain(key, Ask.of(spec, self._config), plan.refusals)
        for node, text in held.items():
            texts[node] = f"{texts[node]}; {text}"
        return Refusal(plan.reason, "; ".join((plan.text, *held.values())), texts)

    def _assume(
        self,
        plan: Plan,
        spec: VGPUClaimSpec,
        *,
        key: Key,
        consumer: Consumer | None,
        create: dict[str, object] | None,
    ) -> Reservation:
        allocation = self._on_this_node(plan.allocation(allocated_time=self.moments.next()))
        assumption = self._ledger.assume(ClaimKey(*key), spec, plan)
        self.holds.end(key)
        former = self.reservations.of_claim(key)
        reservation = Reservation(
            claim=key,
            pod_uid=consumer.uid if consumer is not None else "",
            wish=Wish.allocated(allocation, consumer.reserved_for if consumer else None),
            since=self._clock.monotonic(),
            immediate=consumer is None,
        )
        self.reservations.put(reservation)
        if consumer is not None:
            self._expect(consumer, reservation.node)
        reservation.written = self._writes.submit(
            reservation,
            consumer=consumer,
            create=create,
            spec=spec,
            former=former,
            assumption=assumption,
        )
        return reservation

    def _expect(self, consumer: Consumer, node: str) -> None:
        """The pod's CPU is as good as taken there."""
        cpu_milli = cpu_milli_of(consumer.pod)
        self._ledger.hosts.expect(consumer.uid, node=node, cpu_milli=cpu_milli)

    def _ended(self, reservation: Reservation) -> None:
        """A pod that has no node has none in sight either."""
        consumer = self._books.consumer(reservation.pod_uid)
        if consumer is None or not consumer.pod.is_bound:
            self._ledger.hosts.remove_pod(reservation.pod_uid)

    def _on_this_node(self, allocation: Allocation) -> Allocation:
        """The allocation, tied to the node that has the name now."""
        node = self._books.nodes.get(allocation.node_name)
        uid = node.metadata.uid if node is not None else ""
        return allocation.model_copy(update={"node_uid": uid})
