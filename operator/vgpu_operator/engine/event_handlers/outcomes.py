"""Applies the outcomes of the engine's own effects."""

from __future__ import annotations

from typing import Literal

from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_api.v1alpha1.base import version_of
from vgpu_client.backoff import Backoff
from vgpu_operator.engine import events
from vgpu_operator.engine.claims.announce import announce
from vgpu_operator.engine.effects import PublishDevice
from vgpu_operator.engine.event_handlers.claims import (
    note_immediate,
    note_shown,
    observe_claim,
)
from vgpu_operator.engine.event_handlers.pods import observe_pod, pod_deleted
from vgpu_operator.engine.hami import pod_events
from vgpu_operator.engine.preemption.open_preemptions import new_backoff
from vgpu_operator.engine.scheduling.places import lapse, leave_unsettled, unreserve
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_one import put_in_queue, spec_for
from vgpu_operator.engine.state import InFlight, State

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 5.0
_READ_AGAIN_S = 1.0
_EVICTION_TRIES = 5
"""A pod that cannot be evicted so many times is spared, and other victims are chosen."""


def claim_written(event: events.ClaimWritten, state: State) -> None:
    """Apply the outcome of a write of a claim."""
    key = event.effect.key
    in_flight = state.claims.writing.pop(key, None)
    note_shown(state, key)
    if event.claim is not None:
        observe_claim(state, event.claim)
        is_news = event.effect.is_news and event.outcome == "done"
        news = announce(event.claim) if is_news else None
        if news is not None:
            state.outbox.append(news)
    if in_flight is not None:
        _settle(state, event, in_flight)
    held = state.reservations.of_claim(key)
    if held is not None and held.allocation_id == event.effect.allocation_id != "":
        _end_unwritten(state, event, held)
    _back_off(state, event)
    state.claims.look_at(key)


def _settle(state: State, event: events.ClaimWritten, write: InFlight) -> None:
    """Forget the assumption of a write, or keep it while the write may still land."""
    key, standing = event.effect.key, state.cache.claim(event.effect.key)
    if event.tested and standing is not None:
        tested = version_of(event.tested)
        # if a later version has been observed, the write has failed
        if version_of(standing.metadata.resource_version) <= tested:
            leave_unsettled(state, key, tested, write)
    held = state.reservations.of_claim(key)
    # Compare the assumptions and not the allocation ids: a resize keeps the allocation's id, and a
    # Filter may have adopted that allocation while the write was in flight.
    if write.assumption is not None and (held is None or held.assumption is not write.assumption):
        state.ledger.forget(write.assumption)


def _end_unwritten(state: State, event: events.ClaimWritten, held: Reservation) -> None:
    """End a reservation whose write was refused, or whose claim was deleted at once."""
    if _came_to_nothing(state, event):
        unreserve(state, held)
        note_immediate(state, held.key)
        if held.pod_uid:
            state.pods.due[held.pod_uid] = None


def _back_off(state: State, event: events.ClaimWritten) -> None:
    """Delay the next write of a claim whose writes keep failing."""
    key = event.effect.key
    # but the deletion has not been observed yet
    is_gone = event.outcome == "conflict" and event.claim is None
    if event.outcome in ("done", "conflict") and not is_gone:
        state.claims.backoffs.pop(key, None)
        state.claims.not_before.pop(key, None)
    else:
        backoff = state.claims.backoffs.setdefault(key, Backoff(_FIRST_WAIT_S, _LAST_WAIT_S))
        wait_s = backoff.failed()
        if backoff.failures > 1:  # a single failure is retried at once
            state.claims.not_before[key] = state.now + wait_s
            state.claims.timers.set(key, state.now + wait_s)


def _came_to_nothing(state: State, event: events.ClaimWritten) -> bool:
    """Return True if the write was refused or the claim has since been deleted."""
    if event.outcome == "done" and event.claim is not None:
        return state.cache.is_deleted(event.claim.metadata.uid)
    return event.outcome == "refused"


def claim_deletion_ended(event: events.ClaimDeletionEnded, state: State) -> None:
    """Reconcile the claim again after an attempt to delete it."""
    state.claims.writing.pop(event.effect.key, None)
    state.claims.look_at(event.effect.key)


def device_written(event: events.DeviceWritten, state: State) -> None:
    """Record the written version, or forget a failed write so that it is made again.

    The node is checked in any case, because the device may have changed since the decision.
    """
    name = event.effect.name
    if isinstance(event.effect, PublishDevice):
        writes, due = state.register_writes, state.registers
    else:
        writes, due = state.device_writes, state.devices
        state.device_looks.zeros.discard(name)
    if event.why:
        writes.pop(name, None)
    elif name in writes:
        writes[name].version = version_of(event.version)
    due[event.effect.node] = None


def pod_read(event: events.PodRead, state: State) -> None:
    """End a lapsed reservation if the pod, as just read from the API server, is not bound.

    Our cache may be outdated: a Binding whose response was lost, or that a former leader posted,
    may have succeeded without our watch having reported it. A pod that is gone may have been bound,
    and its containers may still run, so its reservation is kept until the watch or the agent
    reports its end. The same goes for a pod that was bound to the reserved node and has ended.
    """
    known = state.cache.pod(event.effect.uid)
    if event.pod is not None and (event.pod.is_bound or (known is not None and known.is_gated)):
        observe_pod(state, event.pod)
    held = state.reservations.of_pod(event.effect.uid)
    if held is None or held.allocation_id != event.effect.allocation_id:
        _note_orphan(state, event)
        return
    held.is_read = False
    if event.found == "unknown":
        held.until = state.now + _READ_AGAIN_S
    elif event.found == "gone" or (event.pod is not None and event.pod.spec.node_name == held.node):
        held.keep()
    elif held.has_lapsed(state.now):
        lapse(state, held)
    state.claims.look_at(held.key)


def _note_orphan(state: State, event: events.PodRead) -> None:
    """Apply the result of reading the pod of a claim with a silent agent: gone, or still there."""
    key = state.cache.claim_serving(event.effect.uid)
    if key is None:
        return
    if event.found == "gone":
        pod_deleted(events.PodDeleted(event.effect.uid, was_seen=False), state)
    else:
        state.claims.orphaned.pop(key, None)
    state.claims.look_at(key)


def requeue_ended(event: events.RequeueEnded, state: State) -> None:
    """Put a pod back in the queue if its requeue failed; otherwise it would wait for minutes."""
    pod = state.cache.pod(event.effect.uid)
    if not event.why or pod is None or not pod.wants_node:
        return
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.is_tentative:
        unreserve(state, held)
    spec = spec_for(state, pod)
    if isinstance(spec, VGPUClaimSpec) and (held is None or held.is_tentative):
        put_in_queue(state, pod, spec)


def gate_ended(event: events.GateEnded, state: State) -> None:
    """Apply the outcome of lifting a gate."""
    state.gates.lifting.discard(event.effect.uid)
    if event.pod is not None:
        observe_pod(state, event.pod)
    let_go_ended(state, event.effect.uid, event.effect.allocation_id, event.outcome)


def let_go_ended(
    state: State, uid: str, allocation_id: str, outcome: Literal["lifted", "refused", "unknown"]
) -> None:
    """Resolve the reservation after an attempt to lift a pod's gate, and delay the next attempt."""
    held, work = state.reservations.of_pod(uid), state.gates
    if held is None or held.allocation_id != allocation_id:
        return
    _resolve(held, outcome, state)
    if outcome == "lifted":
        work.backoffs.pop(uid, None)
    else:
        backoff = work.backoffs.setdefault(uid, Backoff(_FIRST_WAIT_S, _LAST_WAIT_S))
        work.not_before[uid] = state.now + backoff.failed()
        state.claims.timers.set(held.key, work.not_before[uid])
    state.claims.look_at(held.key)


def binding_ended(event: events.BindingEnded, state: State) -> None:
    """Apply the outcome of a Binding."""
    if event.outcome == "bound" and state.config.views.hami_events:
        _report_binding(event, state)
    held = state.reservations.of_pod(event.pod_uid)
    if held is None or held.allocation_id != event.allocation_id:
        return
    _resolve(held, event.outcome, state)
    if held.until is not None:
        state.claims.timers.set(held.key, held.until)


def eviction_ended(event: events.EvictionEnded, state: State) -> None:
    """Apply the outcome of a victim's eviction, unless its preemption has ended since."""
    key, uid = event.effect.preemptor, event.effect.regarding.uid
    opened = None if key is None else state.preemptions.open.get(key)
    if opened is None or opened.evicting != uid:
        return
    opened.evicting = ""
    match event.outcome:
        case "evicted" | "gone":
            opened.backoff = new_backoff()
            opened.evicted.add(uid)
        case "protected":
            state.preemptions.protect(uid, state.now)
        case "failed":
            opened.not_before = state.now + opened.backoff.failed()
            if opened.backoff.failures == _EVICTION_TRIES:
                state.preemptions.protect(uid, state.now)


def _resolve(
    held: Reservation,
    outcome: Literal["bound", "lifted", "refused", "elsewhere", "gone", "unknown"],
    state: State,
) -> None:
    """Change a reservation's phase after the outcome of its Binding or of lifting its gate."""
    match outcome:
        case "bound" | "lifted":
            held.bound()
        case "refused":
            held.bind_failed(state.now)
        case "unknown":
            held.pin(state.now)
        case "gone" if _may_have_run(state, held):
            held.keep()
        case "elsewhere" | "gone":
            lapse(state, held)


def _may_have_run(state: State, held: Reservation) -> bool:
    """Return True unless the pod, which is gone, is known never to have been bound.

    An earlier Binding may have succeeded: the watch may have shown it, or its response was lost.
    """
    if held.is_bound or state.now < held.pinned_until:
        return True
    pod = state.cache.pod(held.pod_uid)
    return not state.cache.was_never_bound(held.pod_uid) if pod is None else pod.pod.is_bound


def _report_binding(event: events.BindingEnded, state: State) -> None:
    """Record HAMi's events about a Binding.

    They do not depend on the reservation, which is gone if the watch reports the bound pod first.
    """
    pod = state.cache.pod(event.pod_uid)
    claim = None if pod is None else state.cache.claim(pod.claim)
    allocation = None if claim is None else claim.status.allocation
    if pod is not None and allocation is not None and allocation.id == event.allocation_id:
        state.outbox.extend(pod_events.bound(pod, allocation.node_name))
