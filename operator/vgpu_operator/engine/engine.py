"""The serial loop: events in, state, effects out; and the decisions that Filter and Bind ask for.

Everything here runs in one task of one thread, or synchronously in a request: nothing moves between
looking and assuming, so no lock exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from vgpu_api.core import Pod
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.clock import Clock
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.reconcile import reconcile
from vgpu_operator.engine.claims.status import refused_reason
from vgpu_operator.engine.devices.registers import publish_registered
from vgpu_operator.engine.devices.reports import LOOKS_EVERY_S, describe_due, describe_links
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.event_handlers.pods import observe_in_call, observe_pod
from vgpu_operator.engine.events import BindingEnded, Event
from vgpu_operator.engine.gpu_pod import GPUPod, Standing, gpu_pod_of
from vgpu_operator.engine.hami.plugin_turns import served_before
from vgpu_operator.engine.nodes.agents import describe_silent
from vgpu_operator.engine.scheduling.avoidance import review_avoidance
from vgpu_operator.engine.scheduling.gate import review_gates
from vgpu_operator.engine.scheduling.judge_pod import judge_pod
from vgpu_operator.engine.scheduling.preemption import nodes_that_victims_free
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_due import schedule_due
from vgpu_operator.engine.scheduling.schedule_one import (
    offer,
    put_in_queue,
    spec_for,
    wait,
    withdraw,
    without_effect,
)
from vgpu_operator.engine.scheduling.starvation import earmark_due, review_earmarks
from vgpu_operator.engine.slices import Slice, Slices
from vgpu_operator.engine.state import State
from vgpu_operator.errors import NotLeading
from vgpu_operator.metrics import SCHEDULING_ATTEMPTS

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""Pods, or claims without a write, that are reconciled before a slice may end."""
_TICK_S = 1.0
_TURN_S = 0.05
"""A tick while refusals wait for their turn to be reported."""
_AGENTS_EVERY_S = 1.0


class EffectWriter(Protocol):
    """Carries effects out."""

    def submit(self, effects: Iterable[Effect]) -> None:
        """Take effects on; returns at once. Each end that matters comes back as an event."""


class Engine:
    """Decides, where this replica leads.

    Args:
        state: What decisions rest on.
        effector: Carries out what is decided.
        clock: Both clocks.
        leads: Whether this replica decides, and has seen everything it must have seen.
    """

    def __init__(
        self, state: State, effector: EffectWriter, clock: Clock, leads: Callable[[], bool]
    ) -> None:
        self.state = state
        self.slices = Slices()
        self._effector = effector
        self._clock = clock
        self._leads = leads
        self._inbox: list[Event] = []
        self._wake = asyncio.Event()
        self._devices_at = 0.0
        self._agents_at = 0.0
        self._cursor = 0
        self._awaited: dict[str, tuple[Reservation, asyncio.Future[VGPUClaim | None]]] = {}

    # Events.

    def observe(self, event: Event) -> None:
        """Take an event on; it is applied before the next decision."""
        self._inbox.append(event)
        self._wake.set()

    def observe_all(self) -> None:
        """Apply at once what was taken on."""
        self._drain()

    def lead(self) -> None:
        """This replica begins to lead: look at all there is."""
        self._drain()
        state = self.state
        for claim in state.cache.claims():
            state.claims.look_at(key_of(claim))
        state.registers.update(dict.fromkeys(state.cache.nodes))
        for pod in state.cache.pods():
            if pod.is_running or pod.is_gated:
                state.pods.due[pod.uid] = None
            elif pod.wants_node:
                self._inherit(pod)
        self._wake.set()

    # The loop.

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await self._something_to_do()
            slice_ = Slice(self.slices)
            for effects in self.round():
                self._effector.submit(effects)
                if slice_.is_over():
                    await slice_.next()
                    self._drain()

    def round(self) -> Iterable[Iterable[Effect]]:
        """Everything that is to be done now, in slices; anything may happen between two."""
        self._drain()  # 1. observe: cache, ledger and queue are brought up to date
        if not self._leads():
            return
        state = self.state
        review_gates(state)
        review_avoidance(state)
        for number, uid in enumerate(_taken(state.pods.due), start=1):
            judge_pod(state, uid)  # 2. pods whose situation has changed
            if number % _AT_ONCE == 0:
                yield ()
        for key in (*state.claims.timers.pop(state.now), *state.claims.turns.next(state.now)):
            state.claims.look_at(key)
        yield from self._reconciled()  # 3. release, in use, finalizers, expiry, words
        review_earmarks(state)
        for _ in earmark_due(state):  # 4. devices kept for requests that starve
            yield ()
        yield from schedule_due(state)  # 5. those that wait, most important and oldest first
        yield from self._reconciled()  # 6. write what was just decided
        yield from describe_links(state)
        if state.now >= self._agents_at:
            self._agents_at = state.now + _AGENTS_EVERY_S
            yield from describe_silent(state)
        if state.now >= self._devices_at:
            self._devices_at = state.now + LOOKS_EVERY_S
            self._cursor, nodes = state.ledger.changed_since(self._cursor)
            state.devices.update(dict.fromkeys(nodes))
            yield from describe_due(state)
            yield from publish_registered(state)

    # Filter and Bind.

    def filter(self, pod: Pod, candidates: Collection[str]) -> Reservation | Refusal | None:
        """Which of the nodes may take the pod: where its devices are reserved; None: any.

        A refused pod waits from now on for what would cure that.

        Raises:
            NotLeading: ask the replica that does.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        if found is None:
            return None
        there = found.pod.spec.node_name
        if there:  # kube-scheduler has no answer to its Binding, as after a leader's end
            return Refusal(Reason.RESERVED_ELSEWHERE, f"the pod has node {there} already")
        softly = found.awaits_volumes or found.uid in self.state.pods.slow
        outcome = offer(self.state, found, candidates, softly=softly)
        if isinstance(outcome, Refusal):
            SCHEDULING_ATTEMPTS.labels(result="refused", reason=outcome.reason).inc()
            wait(self.state, found, outcome, candidates)
        else:
            SCHEDULING_ATTEMPTS.labels(result="reserved", reason="").inc()
        self._act(found)
        return outcome

    def filter_without_effect(
        self, pod: Pod, candidates: Collection[str]
    ) -> Mapping[str, str] | Refusal | None:
        """Why the pod cannot go to some nodes, nothing reserved; None: it asks for no GPU.

        Raises:
            NotLeading: ask the replica that does.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        return None if found is None else without_effect(self.state, found, candidates)

    def preempt(self, pod: Pod, victims: Mapping[str, Collection[str]]) -> Collection[str]:
        """Return the nodes on which the end of the victims would give the pod its devices.

        Args:
            pod: The pod that is to run.
            victims: UIDs of the pods that kube-scheduler would end, by node.

        Raises:
            NotLeading: ask the replica that does.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        if found is not None:
            return nodes_that_victims_free(self.state, found, victims)
        # Of a pod with GPUs that is deleted by now, nobody needs to make room for it.
        return () if gpu_pod_of(pod, self.state.config) is not None else victims.keys()

    def pod(self, uid: str) -> GPUPod | None:
        """The GPU pod with this UID."""
        self._drain()
        return self.state.cache.pod(uid)

    def observe_now(self, pod: Pod) -> GPUPod | None:
        """A pod that was read for a request; returns it if it asks for GPUs."""
        self._drain()
        return observe_pod(self.state, pod)

    def withdraw(self, uid: str) -> None:
        """Free what is offered to a pod: its scheduler takes the place back.

        Raises:
            NotLeading: ask the replica that does.
        """
        self.must_lead()
        self._drain()
        pod = self.state.cache.pod(uid)
        if pod is not None:
            withdraw(self.state, pod)
            self._act(pod)

    def begin_bind(self, pod: GPUPod, node: str) -> Reservation | Refusal:
        """Reserve devices on the node; from now on the reservation does not lapse.

        Raises:
            NotLeading: ask the replica that does.
        """
        self.must_lead()
        self._drain()
        outcome = offer(self.state, pod, {node})
        if isinstance(outcome, Reservation):
            outcome.begin_bind(pod.reserved_for)
            self.state.pods.slow.discard(pod.uid)
        self._act(pod)
        return outcome

    def waits_for_plugin(self, pod: GPUPod, node: str) -> str:
        """The pod that a vendor's device plugin must serve before this one; empty: none."""
        self._drain()
        return served_before(self.state, pod, node)

    async def written(self, reservation: Reservation) -> VGPUClaim | None:
        """The claim, once its status has what was reserved; None if it never will."""
        _, future = self._awaited.setdefault(
            reservation.allocation_id,
            (reservation, asyncio.get_running_loop().create_future()),
        )
        self._answer()
        return await asyncio.shield(future)

    def end_bind(self, ended: BindingEnded) -> None:
        """What became of a Binding."""
        self.observe(ended)
        self._drain()
        pod = self.state.cache.pod(ended.pod_uid)
        if pod is not None:
            self._act(pod)

    # Parts.

    def must_lead(self) -> None:
        """Raise NotLeading where another replica decides."""
        if not self._leads():
            raise NotLeading("this replica does not lead; ask the one that does")

    async def _something_to_do(self) -> None:
        wait = _TURN_S if self.state.claims.turns else _TICK_S
        if self._leads():
            # A tick after any event would let nearly two seconds pass between two looks at devices.
            wait = min(wait, max(self._devices_at - self._clock.monotonic(), _TURN_S))
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass  # nothing changed but the time
        self._wake.clear()

    def _drain(self) -> None:
        """Apply the events that have come; the state's clock shows the time from now on."""
        state = self.state
        state.now, state.unix = self._clock.monotonic(), self._clock.unix()
        while self._inbox:
            inbox, self._inbox = self._inbox, []
            for event in inbox:
                apply(event, state)
        self._answer()

    def _reconciled(self) -> Iterable[Iterable[Effect]]:
        """The writes that claims want, one claim at a time."""
        state = self.state
        due, state.claims.due = state.claims.due, {}
        for key in due:
            effect = reconcile(key, state)
            yield () if effect is None else (effect,)  # to find nothing new may take milliseconds
        yield self._outbox()

    def _outbox(self) -> Iterable[Effect]:
        outbox, self.state.outbox = self.state.outbox, type(self.state.outbox)()
        return outbox

    def _act(self, pod: GPUPod) -> None:
        """Begin at once to write what a request has decided; the rest is the loop's."""
        if self._leads():
            self.state.claims.due.pop(pod.claim, None)
            effect = reconcile(pod.claim, self.state)
            if effect is not None:
                self._effector.submit((effect,))
        self._wake.set()

    def _answer(self) -> None:
        """Give a claim's write's outcome to those who wait for it."""
        ends = not self._leads()  # what is not being written now will not be
        for allocation_id, (reservation, future) in list(self._awaited.items()):
            is_moot = not self.state.reservations.is_current(reservation)
            is_being_written = reservation.key in self.state.claims.writing
            is_moot = is_moot or (ends and not is_being_written)
            # A write under way may be the one that takes back the current status.
            if not (is_moot or (reservation.is_written and not is_being_written)):
                continue
            del self._awaited[allocation_id]
            if not future.done():
                claim = self.state.cache.claim(reservation.key)
                future.set_result(claim if reservation.is_written else None)

    def _inherit(self, pod: GPUPod) -> None:
        """A pod that an earlier leader may have refused waits for devices here."""
        state = self.state
        claim, spec = state.cache.claim(pod.claim), spec_for(state, pod)
        if isinstance(spec, Refusal) or (claim is not None and claim.status.allocation is not None):
            if isinstance(spec, Refusal) and _set_aside(pod):
                state.pods.blocked[pod.uid] = spec
            return
        if claim is not None and refused_reason(claim) is not None:
            put_in_queue(state, pod, spec)
        elif _set_aside(pod):
            put_in_queue(state, pod, spec, standing=Standing.DOUBTFUL)


def _taken(due: dict[str, None]) -> list[str]:
    uids = list(due)
    due.clear()
    return uids


def _set_aside(pod: GPUPod) -> bool:
    """Whether kube-scheduler reports that the pod fits nowhere."""
    return any(
        condition.type == "PodScheduled"
        and condition.status == "False"
        and condition.reason == "Unschedulable"
        for condition in pod.pod.status.conditions
    )
