"""Takes events into the state. Decides nothing: it notes what is to be looked at.

An event may come late, twice or out of order, and in a replica that does not lead: cache and ledger
keep the newest version from any source, and what is noted waits.
"""

from __future__ import annotations

import logging
from functools import singledispatch
from typing import Any, Literal

from vgpu_api.core import Node, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Metadata, VGPUClaim, VGPUClaimSpec
from vgpu_api.vendors import kind_of, kinds
from vgpu_client.backoff import Backoff
from vgpu_operator.demand import Demand
from vgpu_operator.engine import events
from vgpu_operator.engine.cache import key_of, version_of
from vgpu_operator.engine.claims.announce import announce
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.claims.lifecycle import has_live_pod
from vgpu_operator.engine.claims.status import RELEASED
from vgpu_operator.engine.effects import PublishDevice
from vgpu_operator.engine.gpu_pod import GPUPod, gpu_pod_of
from vgpu_operator.engine.hami import pod_events
from vgpu_operator.engine.scheduling.avoidance import note_phase
from vgpu_operator.engine.scheduling.gate import admit, note_lifted
from vgpu_operator.engine.scheduling.places import (
    confirm,
    give_up,
    keep_bound,
    lapse,
    leave_unsettled,
    resolve,
)
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.requeue import requeue
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_one import (
    put_immediate_in_queue,
    put_in_queue,
    refusal_of,
    spec_for,
)
from vgpu_operator.engine.state import AgentSeen, State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.ledger.device_facts import cordoned_uuids, unread_words
from vgpu_operator.ledger.device_table import DEVICES_OF_A_NODE
from vgpu_operator.vendors import values_of

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 5.0
_READ_AGAIN_S = 1.0
_NEVER = 1 << 63
"""A version that no write was decided on."""


TOO_MANY_DEVICES = "TooManyDevices"
"""Reason of the event on a node of whose devices some are ignored."""
logger = logging.getLogger(__name__)


@singledispatch
def apply(event: Any, state: State) -> None:
    """Take an event into the state."""
    raise TypeError(f"not an event: {event!r}")


# Pods.


@apply.register
def _(event: events.PodObserved, state: State) -> None:
    observe_pod(state, event.pod)


def observe_pod(state: State, pod: Pod) -> GPUPod | None:
    """Take a version of a pod into the state; returns it if it asks for GPUs."""
    return _observe(state, pod, state.cache.pod(pod.metadata.uid))


def _observe(state: State, pod: Pod, known: GPUPod | None) -> GPUPod | None:
    metadata, cache = pod.metadata, state.cache
    if cache.is_deleted(metadata.uid):
        return None
    if known is not None and known.pod.metadata.resource_version == metadata.resource_version:
        return known
    is_new_there = state.ledger.hosts.apply_pod(pod)
    if state.ledger.room is not None:
        _note_room(state, pod)
    if known is not None and not isinstance(known.demand, BadInput):
        found: GPUPod | None = known.seen_again(pod)
    else:
        found = gpu_pod_of(pod, state.config) or (known and known.seen_again(pod))
    if found is None:
        if is_new_there:
            _came_without(state, pod)
        return None
    if not cache.put_pod(found):
        return known
    found = cache.pod(metadata.uid)
    assert found is not None
    if known is None:
        _learn_typical(state, found)
    if known is not None and known.pod.status.phase != pod.status.phase:
        note_phase(state, known.pod, found)
    _note_pod(state, found)
    _note_scopes(state, found.claim)
    state.claims.look_at(found.claim)
    if found.template is not None:
        state.claims.look_at(found.template)
    return found


def _note_room(state: State, pod: Pod) -> None:
    """One without a node changes nothing: it may be expected on one."""
    if pod.is_terminal:
        state.ledger.forget_pod(pod.metadata.uid)
    elif pod.is_bound:
        state.ledger.expect_pod(pod, pod.spec.node_name)


def observe_in_call(state: State, pod: Pod) -> GPUPod | None:
    """As `observe_pod`, of a pod as kube-scheduler knows it, which may be deleted by now."""
    known = state.cache.pod(pod.metadata.uid)
    if known is None and version_of(pod.metadata.resource_version) <= state.pods.listed:
        return None  # the last list would have had it
    return _observe(state, pod, known)


@apply.register
def _(event: events.PodDeleted, state: State) -> None:
    known = state.cache.delete_pod(event.uid, was_seen=event.was_seen)
    state.ledger.hosts.remove_pod(event.uid)
    state.ledger.forget_pod(event.uid)
    _stop_waiting(state, event.uid, known)
    held = state.reservations.of_pod(event.uid)
    if held is not None and held.is_tentative:
        give_up(state, held)
    if known is not None:
        state.claims.look_at(known.claim)
        _note_immediate(state, known.claim)


@apply.register
def _(event: events.PodsListed, state: State) -> None:
    """Filters bring pods, too: an informer misses one that came and went between two watches."""
    state.pods.listed = event.version
    for pod in list(state.cache.pods()):
        is_older = version_of(pod.pod.metadata.resource_version) <= event.version
        if pod.uid not in event.uids and is_older:
            apply(events.PodDeleted(pod.uid, was_seen=False), state)


def _note_pod(state: State, pod: GPUPod) -> None:
    """Note what a version of a pod means for its reservation and its turn."""
    uid, held = pod.uid, state.reservations.of_pod(pod.uid)
    if pod.is_gated:
        state.pods.due[uid] = None
        return
    if pod.wants_node:
        note_lifted(state, pod)
        return
    _stop_waiting(state, uid, pod)
    _note_immediate(state, pod.claim)
    if not pod.is_running:
        if held is not None and held.is_tentative:
            give_up(state, held)
        return
    if held is not None and held.node == pod.pod.spec.node_name and not held.is_tentative:
        held.begin_bind(pod.reserved_for)
        held.bound()
        if held.is_written:
            state.reservations.drop(held)
    elif held is not None:
        if held.node == pod.pod.spec.node_name and not held.is_awaited:
            state.pods.owed.add(uid)  # it was offered there, and took longer than the offer lasts
        give_up(state, held)
    state.pods.due[uid] = None


def _stop_waiting(state: State, uid: str, pod: GPUPod | None) -> None:
    """The pod waits for nothing any more."""
    for waiting in (state.pods.blocked, state.pods.requeued, state.pods.due):
        waiting.pop(uid, None)
    state.pods.nominated.discard(uid)
    state.pods.slow.discard(uid)
    state.gates.forget(uid)
    if pod is None or not pod.is_running or not state.cache.pod(uid):
        state.pods.ended.discard(uid)
        state.pods.owed.discard(uid)
    if pod is None:
        return
    waiter = state.queue.get(pod.claim)
    if waiter is None or waiter.pod_uid == uid:
        state.queue.remove(pod.claim)
        _drop_earmark(state, pod.claim)
    state.claims.reported.pop(pod.claim, None)


def _learn_typical(state: State, pod: GPUPod) -> None:
    """Count what a pod that is seen for the first time asks for, its CPU included.

    Claims that no pod owns are counted by the ledger: their pods' CPU is unknown.
    """
    mix = state.ledger.columns.mix
    if not pod.owned or pod.pod.is_terminal:
        return
    spec = spec_for(state, pod)
    if isinstance(spec, VGPUClaimSpec) and mix.wants_next():
        mix.observe(Demand.of(spec, state.config, cpu_milli=pod.cpu_milli))


def _came_without(state: State, pod: Pod) -> None:
    """Count a pod that asks for no device, if it took the place of one that does.

    A DaemonSet's takes its place everywhere.
    """
    columns = state.ledger.columns
    node = columns.node_id(pod.spec.node_name)
    if node is None or not columns.node_devices[node]:
        return
    if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references):
        return
    if columns.mix.wants_next():
        columns.mix.observe(None)


# Claims.


@apply.register
def _(event: events.ClaimObserved, state: State) -> None:
    observe_claim(state, event.claim)


def observe_claim(state: State, claim: VGPUClaim) -> None:
    """Take a version of a claim into the state."""
    former = state.cache.claim(key_of(claim))
    if not state.cache.put_claim(claim):
        return
    if former is not None and claim.status.allocation is None:
        _note_owed(state, former)
    state.ledger.apply_claim(claim)
    key, allocation = key_of(claim), claim.status.allocation
    _note_scopes(state, key)
    resolve(state, key, version_of(claim.metadata.resource_version))
    held = state.reservations.of_claim(key)
    if held is not None and held.allocation is not None:
        if allocation is not None and allocation.id == held.allocation_id:
            confirm(state, held, claim)
            if held.is_written and _has_arrived(state, held):
                state.reservations.drop(held)
        elif held.is_written:
            give_up(state, held)  # what stood there was released, or replaced
    if allocation is None or allocation.id != state.claims.expired.get(key):
        state.claims.expired.pop(key, None)
    state.claims.look_at(key)
    _note_immediate(state, key)
    for pod in (*state.cache.pods_of(key), *state.cache.pods_of_template(key)):
        state.pods.due[pod.uid] = None


def _note_owed(state: State, claim: VGPUClaim) -> None:
    """A claim is without what it held until now: its pod, if it runs there, is to go first.

    Every replica notes that, since the pod may have to wait for longer than a leader lasts.
    """
    if claim.status.reserved_for is not None and has_live_pod(claim, state.cache):
        state.pods.owed.add(claim.status.reserved_for.pod_uid)


def _note_scopes(state: State, key: ClaimKey) -> None:
    """Let quotas count what a claim holds as its pod's, whichever of the two was seen first."""
    claim, held = state.cache.claim(key), state.reservations.of_claim(key)
    reserved = None if claim is None else claim.status.reserved_for
    uid = "" if reserved is None else reserved.pod_uid
    if held is not None and not held.is_tentative:
        uid = held.pod_uid or uid
    pod = state.cache.pod(uid)
    if pod is not None or not uid:
        state.ledger.count_as(key, None if pod is None else pod.scopes)


def _has_arrived(state: State, held: Reservation) -> bool:
    """Whether from now on the claim alone shows what is held, and for whom."""
    pod = state.cache.pod(held.pod_uid)
    return not held.pod_uid or (held.is_bound and pod is not None and pod.pod.is_bound)


@apply.register
def _(event: events.ClaimDeleted, state: State) -> None:
    key = event.key
    state.ledger.remove_claim(event.uid)
    known = state.cache.delete_claim(key, event.uid)
    if known is None:
        return
    resolve(state, key, _NEVER)
    held = state.reservations.of_claim(key)
    if held is not None and held.is_written:
        give_up(state, held)
    work = state.claims
    for of_claim in (
        work.reported,
        work.expired,
        work.unusable,
        work.without_devices,
        work.orphaned,
        work.going,
        work.evicted,
        work.init_refused,
        work.violated,
        work.not_before,
        work.backoffs,
    ):
        of_claim.pop(key, None)
    work.turns.leave(key)
    _note_owed(state, known)
    _keep_for_pod(state, known)
    work.look_at(key)
    _note_immediate(state, key)
    for pod in state.cache.pods_of(key):
        state.pods.due[pod.uid] = None


def _keep_for_pod(state: State, claim: VGPUClaim) -> None:
    """Keep the devices of a running pod whose own claim vanished, which is then made again.

    Our finalizer keeps claims in use; what takes them all the same is a finalizer removed by hand,
    or the CRD deleted. The new claim has the same allocation, so the agent knows it.
    """
    reserved = claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if pod is not None and pod.owned and has_live_pod(claim, state.cache):
        keep_bound(state, pod, claim)


@apply.register
def _(event: events.ClaimUnreadable, state: State) -> None:
    """Its devices count as full until it can be read, and it is left alone."""
    metadata = event.raw["metadata"]
    key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
    uid, version = metadata["uid"], version_of(metadata["resourceVersion"])
    state.cache.put_unreadable(key, uid, version)
    state.ledger.mark_unreadable(uid, event.raw)


def _note_immediate(state: State, key: ClaimKey) -> None:
    """Let an Immediate claim without devices wait for them; or not any more."""
    claim, waiter = state.cache.claim(key), state.queue.get(key)
    held = state.reservations.of_claim(key)
    waits = (
        claim is not None
        and claim.spec.binding_mode == "Immediate"
        and not claim.unknown_values
        and claim.status.allocation is None
        and claim.metadata.deletion_timestamp is None
        and (held is None or held.is_tentative)
        # One that was used and released holds nothing until a pod comes to use it again.
        and (claim.status.state != RELEASED or _is_needed(state, key))
    )
    if waits and claim is not None:
        put_immediate_in_queue(state, claim)
    elif waiter is not None and not waiter.pod_uid:
        state.queue.remove(key)
        _drop_earmark(state, key)


def _is_needed(state: State, key: ClaimKey) -> bool:
    pods = state.cache.pods_of(key)
    return any(pod.wants_node or pod.is_running or pod.is_gated for pod in pods)


def _drop_earmark(state: State, key: ClaimKey) -> None:
    earmark = state.earmarks.remove(key)
    if earmark is not None:
        state.ledger.touch(earmark.node)


# Nodes, devices, quotas.


@apply.register
def _(event: events.NodeObserved, state: State) -> None:
    node, name = event.node, event.node.metadata.name
    known = state.cache.nodes.get(name)
    state.cache.nodes[name] = node
    state.ledger.apply_node(node)
    if known is None or _registers(known) != _registers(node):
        state.registers[name] = None
    if known is None or _readiness(known) != _readiness(node):
        _look_at_claims_on(state, name)


@apply.register
def _(event: events.NodeDeleted, state: State) -> None:
    number = state.ledger.columns.node_id(event.name)
    if number is not None:
        for place in list(state.reservations.tentative.get(number, {}).values()):
            give_up(state, place)
    state.cache.nodes.pop(event.name, None)
    state.ledger.remove_node(event.name)
    _look_at_claims_on(state, event.name)


@apply.register
def _(event: events.NodeUnreadable, state: State) -> None:
    """It is there, so nothing on it is free."""
    if event.name not in state.cache.nodes:
        metadata = Metadata(name=event.name, uid=event.uid)
        state.cache.nodes[event.name] = Node(metadata=metadata)


@apply.register
def _(event: events.DeviceObserved, state: State) -> None:
    device = event.device
    if state.ledger.is_one_too_many(device):
        _report_crowded(state, device.spec.node_name)
        return
    state.ledger.apply_device(device)
    state.devices[device.spec.node_name] = None
    if kind_of(device.status.vendor) is not None or not device.status.vendor:
        state.registers[device.spec.node_name] = None
    state.links[device.spec.node_name] = None
    _look_at_claims_on(state, device.spec.node_name, idle_only=True)


def _report_crowded(state: State, name: str) -> None:
    """Once for each node: an agent that makes thousands of devices is not to be logged as often."""
    if name in state.crowded:
        return
    state.crowded.add(name)
    note = f"only {DEVICES_OF_A_NODE} GPUDevices of a node are used, and it has more"
    logger.warning("node %s: %s", name, note)
    node = state.cache.nodes.get(name)
    if node is not None:
        state.outbox.append(node_event(node, TOO_MANY_DEVICES, note))


@apply.register
def _(event: events.DeviceDeleted, state: State) -> None:
    node = state.ledger.node_of(event.name)
    state.ledger.remove_device(event.name)
    if node is not None:
        state.crowded.discard(node)
    state.device_views.pop(event.name, None)
    state.device_writes.pop(event.name, None)
    state.device_looks.zeros.discard(event.name)
    if state.register_writes.pop(event.name, None) is not None and node is not None:
        state.registers[node] = None
    state.out_of_service.pop(event.name, None)
    if node is not None:
        _look_at_claims_on(state, node, idle_only=True)


@apply.register
def _(event: events.AgentObserved, state: State) -> None:
    known = state.agents.get(event.node)
    if known is None or known.renewed != event.renewed:
        state.agents[event.node] = AgentSeen(event.renewed, state.now)


@apply.register
def _(event: events.AgentDeleted, state: State) -> None:
    """A node that is removed, or an agent of a version that keeps no Lease: neither is silent."""
    state.agents.pop(event.node, None)


@apply.register
def _(event: events.AgentsListed, state: State) -> None:
    """Silence counts only while this replica listens."""
    for agent in state.agents.values():
        agent.at = state.now


@apply.register
def _(event: events.QuotaObserved, state: State) -> None:
    state.ledger.apply_quota(event.quota)


@apply.register
def _(event: events.QuotaDeleted, state: State) -> None:
    state.ledger.remove_quota(event.namespace, event.name)


# Volumes, in mode Gate.


@apply.register
def _(event: events.StorageObserved, state: State) -> None:
    state.ledger.volumes.observe(event.obj)


@apply.register
def _(event: events.StorageDeleted, state: State) -> None:
    state.ledger.volumes.remove(event.kind, event.namespace, event.name)


@apply.register
def _(event: events.StorageUnreadable, state: State) -> None:
    state.ledger.volumes.unreadable(event.kind, event.namespace, event.name, event.why)


def _look_at_claims_on(state: State, node: str, *, idle_only: bool = False) -> None:
    for key in state.cache.claims_on(node):
        claim = state.cache.claim(key)
        if not idle_only or (claim is not None and claim.spec.binding_mode == "Immediate"):
            state.claims.look_at(key)


def _registers(node: Node) -> list[object]:
    """The fields of a node with other vendors' devices, and its values that mean nothing."""
    said: list[object] = [unread_words(node), cordoned_uuids(node)]
    return said + [values_of(kind, node) for kind in kinds()]


def _readiness(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.is_ready, node.spec.unschedulable


# Outcomes of our own effects.


@apply.register
def _(event: events.ClaimWritten, state: State) -> None:
    effect, key = event.effect, event.effect.key
    in_flight = state.claims.writing.pop(key, None)
    if event.claim is not None:
        observe_claim(state, event.claim)
        news = announce(event.claim) if effect.is_news and event.outcome == "done" else None
        if news is not None:
            state.outbox.append(news)
    standing = state.cache.claim(key)
    if event.tested and in_flight is not None and standing is not None:
        tested = version_of(event.tested)
        if version_of(standing.metadata.resource_version) <= tested:  # else it has failed
            leave_unsettled(state, key, tested, in_flight)
    held = state.reservations.of_claim(key)
    is_its = held is not None and "" != effect.allocation_id == held.allocation_id
    assumption = None if in_flight is None else in_flight.assumption
    # The id alone does not tell whose it is: a resize keeps the id of the allocation, and a
    # Filter may have adopted that allocation while the write was under way.
    if assumption is not None and (held is None or held.assumption is not assumption):
        state.ledger.forget(assumption)
    if is_its and held is not None and _came_to_nothing(state, event):
        give_up(state, held)
        _note_immediate(state, key)
        if held.pod_uid:
            state.pods.due[held.pod_uid] = None
    is_gone = event.outcome == "conflict" and event.claim is None  # and its deletion not observed
    if event.outcome in ("done", "conflict") and not is_gone:
        state.claims.backoffs.pop(key, None)
        state.claims.not_before.pop(key, None)
    else:
        backoff = state.claims.backoffs.setdefault(key, Backoff(_FIRST_WAIT_S, _LAST_WAIT_S))
        wait_s = backoff.failed()
        if backoff.failures > 1:  # once is an accident
            state.claims.not_before[key] = state.now + wait_s
            state.claims.timers.set(key, state.now + wait_s)
    state.claims.look_at(key)


def _came_to_nothing(state: State, event: events.ClaimWritten) -> bool:
    """Whether a reservation's write was refused, or its claim was deleted at once."""
    if event.outcome == "done" and event.claim is not None:
        return state.cache.is_deleted(event.claim.metadata.uid)
    return event.outcome == "refused"


@apply.register
def _(event: events.ClaimDeletionEnded, state: State) -> None:
    state.claims.writing.pop(event.effect.key, None)
    state.claims.look_at(event.effect.key)


@apply.register
def _(event: events.DeviceWritten, state: State) -> None:
    """One that failed is decided anew; what it was decided from may have changed, too."""
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


@apply.register
def _(event: events.PodRead, state: State) -> None:
    """Whether an expired reservation may go: only the API server has the pod's node.

    Our view of the pod may be old: a Binding whose answer was lost, or that a former leader posted,
    may stand while our watch has not reported it. A pod that is gone may have been bound before,
    and its containers may still run: the watch reports how it went.
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
    elif event.found == "gone":
        held.keep()
    elif held.has_lapsed(state.now):
        lapse(state, held)
    state.claims.look_at(held.key)


def _note_orphan(state: State, event: events.PodRead) -> None:
    """The pod of a claim whose agent is silent: a claim is released only where it is gone."""
    key = state.cache.claim_serving(event.effect.uid)
    if key is None:
        return
    if event.found == "gone":
        apply(events.PodDeleted(event.effect.uid, was_seen=False), state)
    else:
        state.claims.orphaned.pop(key, None)
    state.claims.look_at(key)


@apply.register
def _(event: events.RequeueEnded, state: State) -> None:
    """One that is lost would cost the pod minutes."""
    pod = state.cache.pod(event.effect.uid)
    if not event.why or pod is None or not pod.wants_node:
        return
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.is_tentative:
        give_up(state, held)
    spec = spec_for(state, pod)
    if isinstance(spec, VGPUClaimSpec) and (held is None or held.is_tentative):
        put_in_queue(state, pod, spec)


@apply.register
def _(event: events.GateEnded, state: State) -> None:
    """Only the pod itself shows whether the gate is lifted."""
    uid, work = event.effect.uid, state.gates
    work.lifting.discard(uid)
    if event.pod is not None:
        observe_pod(state, event.pod)
    held = state.reservations.of_pod(uid)
    if held is None or held.allocation_id != event.effect.allocation_id:
        return
    _resolve(held, event.outcome, state)
    if event.outcome == "lifted":
        work.backoffs.pop(uid, None)
    else:
        backoff = work.backoffs.setdefault(uid, Backoff(_FIRST_WAIT_S, _LAST_WAIT_S))
        work.not_before[uid] = state.now + backoff.failed()
        state.claims.timers.set(held.key, work.not_before[uid])
    state.claims.look_at(held.key)


@apply.register
def _(event: events.BindingEnded, state: State) -> None:
    if event.outcome == "bound" and state.config.views.hami_events:
        _report_binding(event, state)
    held = state.reservations.of_pod(event.pod_uid)
    if held is None or held.allocation_id != event.allocation_id:
        return
    _resolve(held, event.outcome, state)
    if held.until is not None:
        state.claims.timers.set(held.key, held.until)


def _resolve(
    held: Reservation,
    outcome: Literal["bound", "lifted", "refused", "elsewhere", "gone", "unknown"],
    state: State,
) -> None:
    """Take in the end of a request that was to give the pod its node."""
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
    """Return True unless the pod, which is gone, is known never to have had a node.

    An earlier Binding may stand: one that the watch has shown, or one that had no answer.
    """
    if held.is_bound or state.now < held.pinned_until:
        return True
    pod = state.cache.pod(held.pod_uid)
    return not state.cache.was_never_bound(held.pod_uid) if pod is None else pod.pod.is_bound


def _report_binding(event: events.BindingEnded, state: State) -> None:
    """The reservation may be gone by now: the watch can show the bound pod first."""
    pod = state.cache.pod(event.pod_uid)
    claim = None if pod is None else state.cache.claim(pod.claim)
    allocation = None if claim is None else claim.status.allocation
    if pod is not None and allocation is not None and allocation.id == event.allocation_id:
        state.outbox.extend(pod_events.bound(pod, allocation.node_name))


def judge_pod(state: State, uid: str) -> None:
    """Put a pod whose situation has changed where it belongs: among those that wait, or nowhere."""
    pod = state.cache.pod(uid)
    if pod is None:
        return
    if pod.is_gated:
        admit(state, pod)
        return
    claim = state.cache.claim(pod.claim)
    lacks_allocation = pod.is_running and not _has_its_allocation(pod, claim)
    lacks_allocation = lacks_allocation and uid not in state.pods.ended
    if not lacks_allocation and not (pod.wants_node and uid in state.pods.blocked):
        return
    spec = spec_for(state, pod)
    refusal = spec if isinstance(spec, Refusal) else None
    if refusal is None and claim is not None:
        refusal = refusal_of(state, claim, pod)
    if refusal is not None or isinstance(spec, Refusal):
        if refusal is not None:
            state.pods.blocked[uid] = refusal
        state.claims.look_at(pod.claim)
        return
    state.pods.blocked.pop(uid, None)
    if pod.is_running or claim is None or claim.status.allocation is None:
        put_in_queue(state, pod, spec)
    else:
        state.outbox.append(requeue(pod, claim.status.allocation.node_name, state))


def _has_its_allocation(pod: GPUPod, claim: VGPUClaim | None) -> bool:
    """Whether the claim is allocated on the pod's node, for this pod."""
    if claim is None or claim.status.allocation is None or claim.status.reserved_for is None:
        return False
    here = claim.status.allocation.node_name == pod.pod.spec.node_name
    return here and claim.status.reserved_for.pod_uid == pod.uid
