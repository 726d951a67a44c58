"""The serial loop: sees every change, has claims tended, places pods, in one task of one thread.

The reflectors call the `…_changed` and `…_gone` methods, which only take notes; the loop does the
work, so that bursts coalesce. Where this replica does not lead, the notes are all that happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod, ResourceQuota
from vgpu_api.v1alpha1 import GPUDevice, Metadata, VGPUClaim
from vgpu_client.api import Api
from vgpu_operator.engine.books import Books, key_of, version_of
from vgpu_operator.engine.claim_writer import ClaimWriter, Key
from vgpu_operator.engine.consumers import Consumer, consumer_of
from vgpu_operator.engine.expiry import Expiry
from vgpu_operator.engine.hints import Hints
from vgpu_operator.engine.immediate import ImmediateQueue
from vgpu_operator.engine.init_again import InitAgain
from vgpu_operator.engine.link_watch import LinkWatch
from vgpu_operator.engine.placing import Placing
from vgpu_operator.engine.pod_queue import PodQueue
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.scheduler import Clock, Scheduler
from vgpu_operator.engine.starvation import Starvation
from vgpu_operator.engine.teller import Teller
from vgpu_operator.engine.tending import Tending
from vgpu_operator.engine.typical import Typical
from vgpu_operator.engine.wanted import WantedClaims
from vgpu_operator.ledger import Ledger

logger = logging.getLogger(__name__)

_COALESCE_S = 0.005
_TICK_S = 1.0


class Engine:
    """Takes notes of what changes, and acts on them where it leads.

    Args:
        api: For pokes.
        config: Defaults and policies.
        ledger: Who holds what.
        books: What was seen.
        writer: Writes claims.
        teller: Tells why something was refused.
        clock: Both clocks.
        leads: Whether this replica decides, and has seen everything it must have seen.
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
        self._typical = Typical(config, ledger.columns, self.scheduler.pod_claims.spec_for)
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
        self._config = config
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
        self._placing = Placing(
            books=books,
            scheduler=self.scheduler,
            writer=writer,
            teller=teller,
            hints=self.hints,
            starvation=self._starvation,
            pods=self._pods,
            immediate=self._immediate,
            expiry=Expiry(api, learned=self.pod_changed),
            clock=clock,
            leads=leads,
        )
        self._background: set[asyncio.Task[None]] = set()

    # What the reflectors, the writer and the extender bring.

    def pod_changed(self, pod: Pod) -> Consumer | None:
        """A pod was seen; returns it as a consumer if it asks for GPUs."""
        known = self.books.consumer(pod.metadata.uid)
        consumer = consumer_of(pod, self._config) or (known and replace(known, pod=pod))
        if self.books.is_gone(pod.metadata.uid):
            return None
        has_come = self._ledger.hosts.apply_pod(pod)
        if consumer is None:
            if has_come:
                self._typical.came_without(pod)
            return None
        if known is None:
            self._typical.asked(consumer)
        if self.books.put_consumer(consumer):
            if consumer.wants_node or consumer.lacks_grant:
                self._pods.seen(consumer.uid)
            else:
                self._forget_pod(consumer.uid)
            self.note(consumer.claim)
            if consumer.template is not None:
                self.note(consumer.template)
        return self.books.consumer(consumer.uid)

    def pod_gone(self, uid: str, *, was_seen: bool = True) -> None:
        """A pod is gone; where its going was not seen it may have had a node."""
        consumer = self.books.drop_consumer(uid, was_seen=was_seen)
        self._ledger.hosts.remove_pod(uid)
        self._forget_pod(uid)
        self._pods.gone(uid)
        if consumer is not None:
            self._starvation.over(consumer.claim)
            self.note(consumer.claim)

    def claim_changed(self, claim: VGPUClaim) -> None:
        """A version of a claim was seen or written."""
        if not self.books.put_claim(claim):
            return
        self._ledger.apply_claim(claim)
        key = key_of(claim)
        self.note(key)
        for consumer in (*self.books.consumers_of(key), *self.books.copies_of(key)):
            self._pods.claim_changed(consumer.uid, has_cards=claim.status.allocation is not None)

    def claim_gone(self, key: Key, uid: str) -> None:
        """A claim is gone."""
        self._ledger.remove_claim(uid)
        if self.books.drop_claim(key, uid) is None:
            return
        reservation = self.scheduler.reservations.of_claim(key)
        if reservation is not None and reservation.written.done():
            self.scheduler.reservations.drop(reservation)
        for consumer in self.books.consumers_of(key):
            if consumer.wants_node:
                self._pods.put(consumer.uid)
        self._teller.forget(key)
        self._immediate.drop(key)
        self.wake()

    def claim_unreadable(self, uid: str, raw: dict[str, Any]) -> None:
        """A claim cannot be read: its cards count as full until it can, and it is left alone."""
        metadata = raw["metadata"]
        key = (metadata.get("namespace") or "", metadata["name"])
        self.books.put_unreadable(key, uid, version_of(metadata["resourceVersion"]))
        self._ledger.mark_unreadable(uid, raw)

    def node_changed(self, node: Node) -> None:
        """A node was seen."""
        known = self.books.nodes.get(node.metadata.name)
        self.books.nodes[node.metadata.name] = node
        if known is None or _rules_of(known) != _rules_of(node):
            self.scheduler.barred.changed(node.metadata.name)
        self._ledger.apply_node(node)
        if known is not None and known.metadata.uid != node.metadata.uid:
            self._note_claims_on(node.metadata.name)

    def node_gone(self, name: str) -> None:
        """A node is gone: claims on it are released."""
        self.books.nodes.pop(name, None)
        self.scheduler.barred.changed(name)
        self._ledger.remove_node(name)
        self._note_claims_on(name)

    def node_unreadable(self, name: str, uid: str) -> None:
        """A node cannot be read: it is there, so nothing on it is free."""
        if name not in self.books.nodes:
            self.books.nodes[name] = Node(metadata=Metadata(name=name, uid=uid))

    def _note_claims_on(self, name: str) -> None:
        for claim in self.books.claims():
            if claim.status.allocation and claim.status.allocation.node_name == name:
                self.note(key_of(claim))

    def device_changed(self, device: GPUDevice) -> None:
        """A device was seen."""
        self._ledger.apply_device(device)
        self._link_watch.device_changed(device)

    def device_gone(self, name: str) -> None:
        """A device is gone."""
        self._ledger.remove_device(name)
        self._link_watch.device_gone(name)

    def quota_changed(self, quota: ResourceQuota) -> None:
        """A quota was seen: who waits in its namespace may fit now."""
        self._ledger.apply_quota(quota)
        self._try_again_in(quota.metadata.namespace or "")

    def quota_gone(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        self._ledger.remove_quota(namespace, name)
        self._try_again_in(namespace)

    def _try_again_in(self, namespace: str) -> None:
        self._pods.something_changed(namespace=namespace)
        self._immediate.hurry(namespace)

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def asked(self, consumer: Consumer, outcome: Reservation | Refusal) -> None:
        """A Filter asked about the pod and was answered so."""
        self._pods.asked(consumer.uid, in_vain=isinstance(outcome, Refusal))
        if isinstance(outcome, Refusal):
            self.wake()
            return
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

    def _forget_pod(self, uid: str) -> None:
        self._pods.forget(uid)
        self.hints.forget(uid)

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


def _rules_of(node: Node) -> tuple[object, ...]:
    """What of a node says which pods it takes, whatever its state."""
    return node.metadata.labels, node.spec.taints
