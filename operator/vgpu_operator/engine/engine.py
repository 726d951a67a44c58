"""The serial loop from events to effects, and the decisions for Filter and Bind.

All code here runs in the loop's task or synchronously in a request, in a single thread. The state
cannot change between a check and the assumption that follows it, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
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
from vgpu_operator.engine.event_handlers.standby import as_standby
from vgpu_operator.engine.events import BindingEnded, Event
from vgpu_operator.engine.gpu_pod import GPUPod, Standing, gpu_pod_of
from vgpu_operator.engine.hami.plugin_turns import served_before
from vgpu_operator.engine.nodes.agents import describe_silent
from vgpu_operator.engine.nodes.device_marks import mark_agents
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.preemption.preempt_due import preempt_due
from vgpu_operator.engine.preemption.verb import victims_by_node
from vgpu_operator.engine.resource_claims.known import resource_key
from vgpu_operator.engine.resource_claims.tidy import tidy_due
from vgpu_operator.engine.resource_claims.users import tell_users
from vgpu_operator.engine.scheduling.avoidance import review_avoidance
from vgpu_operator.engine.scheduling.gate import review_gates
from vgpu_operator.engine.scheduling.gate_groups import review_groups
from vgpu_operator.engine.scheduling.groups import (
    ask,
    filter_member,
    review_tries,
    settle,
    verdict,
)
from vgpu_operator.engine.scheduling.judge_pod import judge_pod
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
from vgpu_operator.engine.state import GroupTry, State
from vgpu_operator.errors import NotLeading
from vgpu_operator.metrics import SCHEDULING_ATTEMPTS

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""The number of pods to judge before a slice may end."""
_TICK_S = 1.0
_TURN_S = 0.05
"""The tick while refusals are waiting to be reported, a group is tried, or a search goes on."""
_AGENTS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _GroupBind:
    """A Bind of a group's pod that waits for others of the group."""

    pod: GPUPod
    node: str
    work: GroupTry
    answer: asyncio.Future[Reservation | Refusal]


class EffectWriter(Protocol):
    """The part of the effector that the engine uses."""

    def submit(self, effects: Iterable[Effect]) -> None:
        """Start carrying out effects and return at once; outcomes come back as events."""


class Engine:
    """Applies events, decides if this replica leads, and submits effects.

    Args:
        state: The state that decisions are based on.
        effector: Carries out the decisions.
        clock: The monotonic clock and the time of day.
        leads: Returns True while this replica may decide, that is, after it has closed the fence.
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
        self._gathered: list[_GroupBind] = []
        self._awaited: dict[str, tuple[Reservation, asyncio.Future[VGPUClaim | None]]] = {}

    # Events.

    def observe(self, event: Event) -> None:
        """Queue an event; it is applied before the next decision."""
        self._inbox.append(event)
        self._wake.set()

    def observe_all(self) -> None:
        """Apply all queued events at once."""
        self._drain()

    def lead(self) -> None:
        """Start leading: mark all claims, nodes and pods to be looked at."""
        self._drain()
        state = self.state
        for claim in state.cache.claims():
            state.claims.look_at(key_of(claim))
        state.registers.update(dict.fromkeys(state.cache.nodes))
        for found in state.cache.resource_claims:
            state.resource_claims.due[resource_key(found)] = None
        state.resource_claims.users_due.update(dict.fromkeys(state.cache.users))
        for pod in state.cache.pods():
            if pod.is_running or pod.is_gated:
                state.pods.due[pod.uid] = None
            elif pod.wants_node:
                self._inherit(pod)
        self._wake.set()

    def follow(self) -> None:
        """Drop every decision and keep what was observed, once all effects have ended.

        This replica has lost the Lease. A scheduling round in progress stops.
        """
        self._drain()
        self.state = as_standby(self.state)
        self._cursor = 0
        self._drain()

    # The loop.

    async def run(self) -> None:
        """Run the loop; never returns."""
        while True:
            await self._something_to_do()
            slice_ = Slice(self.slices)
            for effects in self.round():
                self._effector.submit(effects)
                if slice_.is_over():
                    await slice_.next()
                    self._drain()

    def round(self) -> Iterable[Iterable[Effect]]:
        """Yield the effects of one round in slices. The state may change between two slices.

        If this replica loses the Lease between two slices and follows, the round ends there.
        """
        state = self.state
        for effects in self._steps():
            yield effects
            if self.state is not state:
                return

    def _steps(self) -> Iterable[Iterable[Effect]]:
        self._drain()  # 1. observe: bring cache, ledger and queue up to date
        if not self._leads():
            return
        state = self.state
        review_gates(state)
        review_tries(state)
        review_avoidance(state)
        for number, uid in enumerate(_taken(state.pods.due), start=1):
            judge_pod(state, uid)  # 2. judge the pods whose situation has changed
            if number % _AT_ONCE == 0:
                yield ()
        review_groups(state)
        for key in (*state.claims.timers.pop(state.now), *state.claims.turns.next(state.now)):
            state.claims.look_at(key)
        yield from self._reconciled()  # 3. release, finalizers, expiry, descriptions
        yield from tidy_due(state)
        tell_users(state)
        review_earmarks(state)
        for _ in earmark_due(state):  # 4. keep devices for requests that starve
            yield ()
        yield from preempt_due(state)  # or take them from less important pods
        yield from schedule_due(state)  # 5. serve the queue, the most important and oldest first
        yield from self._reconciled()  # 6. write the decisions just made
        yield from describe_links(state)
        if state.now >= self._agents_at:
            self._agents_at = state.now + _AGENTS_EVERY_S
            yield from describe_silent(state)
        yield from mark_agents(state)
        if state.now >= self._devices_at:
            self._devices_at = state.now + LOOKS_EVERY_S
            self._cursor, nodes = state.ledger.changed_since(self._cursor)
            state.devices.update(dict.fromkeys(nodes))
            yield from describe_due(state)
            yield from publish_registered(state)

    # Filter and Bind.

    def filter(
        self, pod: Pod, candidates: Collection[str], *, may_be_simulated: bool = True
    ) -> Reservation | Refusal | None:
        """Reserve devices for a pod on one of the nodes. Return None if it requests no GPU.

        A refused pod waits in the queue until something changes that may help it.

        Args:
            pod: The pod.
            candidates: The names of the nodes that its scheduler offers.
            may_be_simulated: True if the scheduler may try a whole group without telling that it
                has taken the pods back. Then a group's pod gets a provisional place only.

        Raises:
            NotLeading: Another replica decides; ask the leader.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        if found is None:
            return None
        there = found.pod.spec.node_name
        # kube-scheduler lost the response to its Bind, for instance because the leader ended
        if there:
            return Refusal(Reason.RESERVED_ELSEWHERE, f"the pod has node {there} already")
        if found.group is not None and may_be_simulated:
            outcome = filter_member(self.state, found, candidates)
        else:
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
        """Return why the pod cannot use some nodes, without reserving; None if it requests no GPU.

        Raises:
            NotLeading: Another replica decides; ask the leader.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        return None if found is None else without_effect(self.state, found, candidates)

    def preempt(
        self, pod: Pod, victims: Mapping[str, Collection[str]]
    ) -> Mapping[str, Collection[Victim]]:
        """Return the nodes on which the pod would get its devices, with the victims to add there.

        Args:
            pod: The pod that is to run.
            victims: UIDs of the pods that kube-scheduler would evict, by node.

        Raises:
            NotLeading: Another replica decides; ask the leader.
        """
        self.must_lead()
        self._drain()
        found = observe_in_call(self.state, pod)
        if found is not None:
            return victims_by_node(self.state, found, victims)
        # No pod needs to be preempted for a GPU pod that has already been deleted.
        is_gone = gpu_pod_of(pod, self.state.config) is not None
        return {} if is_gone else {node: () for node, uids in victims.items() if uids}

    def pod(self, uid: str) -> GPUPod | None:
        """Return the GPU pod with this UID, or None."""
        self._drain()
        return self.state.cache.pod(uid)

    def observe_now(self, pod: Pod) -> GPUPod | None:
        """Apply a pod that came with a request. Return it if it requests GPUs."""
        self._drain()
        return observe_pod(self.state, pod)

    def withdraw(self, uid: str) -> None:
        """Withdraw the pod's reservation, because its scheduler gave it up.

        Raises:
            NotLeading: Another replica decides; ask the leader.
        """
        self.must_lead()
        self._drain()
        pod = self.state.cache.pod(uid)
        if pod is not None:
            withdraw(self.state, pod)
            self._act(pod)

    def begin_bind(self, pod: GPUPod, node: str) -> Reservation | Refusal:
        """Reserve devices on the node for Bind. From now on, the reservation does not lapse.

        Raises:
            NotLeading: Another replica decides; ask the leader.
        """
        self.must_lead()
        self._drain()
        outcome = offer(self.state, pod, {node})
        if isinstance(outcome, Reservation):
            outcome.begin_bind(pod.reserved_for)
            self.state.pods.slow.discard(pod.uid)
        self._act(pod)
        return outcome

    async def begin_group_bind(self, pod: GPUPod, node: str) -> Reservation | Refusal:
        """Do as `begin_bind` does, for a group's pod, once enough pods of the group ask for it.

        Raises:
            NotLeading: Another replica decides; ask that one.
        """
        self.must_lead()
        self._drain()
        work = ask(self.state, pod, node)
        for uid in work.made:
            fellow = self.state.cache.pod(uid)
            if fellow is not None:
                self._act(fellow)
        future: asyncio.Future[Reservation | Refusal] = asyncio.get_running_loop().create_future()
        self._gathered.append(_GroupBind(pod, node, work, future))
        self._wake.set()
        self._answer()
        return await asyncio.shield(future)

    def waits_for_plugin(self, pod: GPUPod, node: str) -> str:
        """Return the pod that a vendor's plugin must serve before this one; empty: none."""
        self._drain()
        return served_before(self.state, pod, node)

    async def written(self, reservation: Reservation) -> VGPUClaim | None:
        """Wait until the claim's status shows the reservation, and return the claim.

        Return None if the status will never show it.
        """
        _, future = self._awaited.setdefault(
            reservation.allocation_id,
            (reservation, asyncio.get_running_loop().create_future()),
        )
        self._answer()
        return await asyncio.shield(future)

    def end_bind(self, ended: BindingEnded) -> None:
        """Apply the outcome of a Binding."""
        self.observe(ended)
        self._drain()
        pod = self.state.cache.pod(ended.pod_uid)
        if pod is not None:
            self._act(pod)

    # Parts.

    def must_lead(self) -> None:
        """Raise NotLeading unless this replica decides."""
        if not self._leads():
            raise NotLeading("this replica does not lead; ask the one that does")

    async def _something_to_do(self) -> None:
        state = self.state
        is_busy = state.claims.turns or state.groups or state.preemptions.search is not None
        wait = _TURN_S if is_busy else _TICK_S
        if self._leads():
            # Devices are described once a second. If the tick ended after that is due, nearly two
            # seconds could pass between two descriptions.
            wait = min(wait, max(self._devices_at - self._clock.monotonic(), _TURN_S))
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass  # no event came, but timers may be due
        self._wake.clear()

    def _drain(self) -> None:
        """Set the state's clock to the current time and apply all queued events."""
        state = self.state
        state.now, state.unix = self._clock.monotonic(), self._clock.unix()
        while self._inbox:
            inbox, self._inbox = self._inbox, []
            for event in inbox:
                apply(event, state)
        self._answer()

    def _reconciled(self) -> Iterable[Iterable[Effect]]:
        """Yield the writes that due claims need, one claim at a time."""
        state = self.state
        due, state.claims.due = state.claims.due, {}
        for key in due:
            effect = reconcile(key, state)
            # Let the slice end here even without a write, because some claims take milliseconds.
            yield () if effect is None else (effect,)
        yield self._outbox()

    def _outbox(self) -> Iterable[Effect]:
        outbox, self.state.outbox = self.state.outbox, type(self.state.outbox)()
        return outbox

    def _act(self, pod: GPUPod) -> None:
        """Submit the write of a request's decision at once, without waiting for the next round."""
        if self._leads():
            self.state.claims.due.pop(pod.claim, None)
            effect = reconcile(pod.claim, self.state)
            if effect is not None:
                self._effector.submit((effect,))
        self._wake.set()

    def _answer(self) -> None:
        """Answer the Binds that wait for a claim's write, once its outcome is known."""
        ends = not self._leads()  # a former leader starts no new write
        if self._gathered:
            self._answer_groups(ends=ends)
        for allocation_id, (reservation, future) in list(self._awaited.items()):
            is_moot = not self.state.reservations.is_current(reservation)
            is_being_written = reservation.key in self.state.claims.writing
            is_moot = is_moot or (ends and not is_being_written)
            # While a write is in flight or has no response, a status with the reservation is not
            # final: the write may be the one that removes it.
            is_settled = self.state.claims.is_settled(reservation.key)
            if not (is_moot or (reservation.is_written and is_settled)):
                continue
            del self._awaited[allocation_id]
            if not future.done():
                claim = self.state.cache.claim(reservation.key)
                future.set_result(claim if reservation.is_written and is_settled else None)

    def _answer_groups(self, *, ends: bool) -> None:
        """Answer the Binds of groups' pods that need not wait for others any more."""
        waiting, self._gathered = self._gathered, []
        settled: set[int] = set()
        for each in waiting:
            if each.pod.group is not None and id(each.work) not in settled:
                settled.add(id(each.work))
                settle(self.state, each.pod.group, each.work)
            outcome = verdict(self.state, each.pod, each.node, each.work)
            if outcome is None and ends:
                outcome = Refusal(Reason.GROUP_INCOMPLETE, "this replica no longer leads")
            if outcome is None:
                self._gathered.append(each)
            elif not each.answer.done():
                each.answer.set_result(outcome)
                self._wake.set()

    def _inherit(self, pod: GPUPod) -> None:
        """Queue or block a pod that an earlier leader may have refused."""
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
    """Return True if kube-scheduler reports the pod as unschedulable."""
    return any(
        condition.type == "PodScheduled"
        and condition.status == "False"
        and condition.reason == "Unschedulable"
        for condition in pod.pod.status.conditions
    )
