"""Applies events about pods."""

from __future__ import annotations

from vgpu_api.agent_pods import is_agent_pod
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_api.v1alpha1.base import version_of
from vgpu_operator.demand import Demand
from vgpu_operator.engine import events
from vgpu_operator.engine.event_handlers.agents import (
    agent_pod_deleted,
    agent_pod_observed,
    agents_listed,
)
from vgpu_operator.engine.event_handlers.claims import drop_earmark, note_immediate, note_scopes
from vgpu_operator.engine.event_handlers.pod_groups import note_group, running
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey, gpu_pod_of, group_of
from vgpu_operator.engine.resource_claims.named import wake_next
from vgpu_operator.engine.resource_claims.users import forget_user, note_user
from vgpu_operator.engine.scheduling.avoidance import note_phase
from vgpu_operator.engine.scheduling.gate import note_lifted
from vgpu_operator.engine.scheduling.places import unreserve
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.scheduling.schedule_one import spec_for
from vgpu_operator.engine.state import State


def pod_observed(event: events.PodObserved, state: State) -> None:
    """Apply an added or updated pod."""
    if is_agent_pod(event.pod):
        agent_pod_observed(event.pod, state)
    observe_pod(state, event.pod)


def observe_pod(state: State, pod: Pod) -> GPUPod | None:
    """Apply an added or updated pod. Return the pod if it requests GPUs."""
    return _observe(state, pod, state.cache.pod(pod.metadata.uid))


def _observe(state: State, pod: Pod, known: GPUPod | None) -> GPUPod | None:
    metadata, cache = pod.metadata, state.cache
    if known is not None and known.pod.metadata.resource_version == metadata.resource_version:
        return known
    if cache.is_deleted(metadata.uid):
        return None
    is_new_there = state.ledger.filters.hosts.apply_pod(pod)
    if state.ledger.filters.room is not None:
        _note_room(state, pod)
    found = _read(state, pod, known)
    if state.config.scheduling.mode == "Claims":
        note_user(state, pod, found)
    if found is None:
        _note_other(state, pod)
        if is_new_there:
            _came_without(state, pod)
        return None
    before = running(state, found.group)
    if not cache.put_pod(found):
        return known
    found = cache.pod(metadata.uid)
    assert found is not None
    _note_version(state, found, known)
    note_group(state, found.group, before)
    return found


def _note_other(state: State, pod: Pod) -> None:
    """Record the group of a pod without GPUs."""
    group = group_of(pod, state.config)
    before = running(state, group)
    state.cache.put_other(pod.metadata.uid, None if pod.is_terminal else group)
    if running(state, group) != before:
        note_group(state, group, before)


def _read(state: State, pod: Pod, known: GPUPod | None) -> GPUPod | None:
    """Return the pod with its original demand, unless that was invalid; None without a demand."""
    if known is not None and not isinstance(known.demand, BadInput):
        return known.seen_again(pod)
    return gpu_pod_of(pod, state.config) or (known and known.seen_again(pod))


def _note_version(state: State, found: GPUPod, known: GPUPod | None) -> None:
    """Update the work on a pod and its claim for a new version of the pod."""
    if known is None:
        _learn_typical(state, found)
    elif known.pod.status.phase != found.pod.status.phase:
        note_phase(state, known.pod, found)
    if found.pod.metadata.deletion_timestamp is not None:
        state.preemptions.note_end(found.uid, state.now)
    note_pod(state, found)
    note_scopes(state, found.claim)
    state.claims.look_at(found.claim)
    if found.template is not None:
        state.claims.look_at(found.template)


def _note_room(state: State, pod: Pod) -> None:
    """Count or free the resources that a pod uses on its node.

    Unbound pods are left alone, because a reservation may expect them on a node.
    """
    if pod.is_terminal:
        state.ledger.forget_pod(pod.metadata.uid)
    elif pod.is_bound:
        state.ledger.expect_pod(pod, pod.spec.node_name)


def observe_in_call(state: State, pod: Pod) -> GPUPod | None:
    """Apply a pod from a kube-scheduler call, unless it has been deleted; see `observe_pod`."""
    known = state.cache.pod(pod.metadata.uid)
    if known is None and version_of(pod.metadata.resource_version) <= state.pods.listed:
        return None  # the last list is newer and lacks the pod, so the pod is deleted
    return _observe(state, pod, known)


def pod_deleted(event: events.PodDeleted, state: State) -> None:
    """Forget a pod with its tentative place and its work, and reconcile its claim."""
    agent_pod_deleted(event.uid, state)
    forget_user(state, event.uid)
    group = state.cache.group_of_pod(event.uid)
    before = running(state, group)
    known = state.cache.delete_pod(event.uid, was_seen=event.was_seen)
    state.ledger.filters.hosts.remove_pod(event.uid)
    state.ledger.forget_pod(event.uid)
    _stop_waiting(state, event.uid, known)
    held = state.reservations.of_pod(event.uid)
    if held is not None and held.is_tentative:
        unreserve(state, held)
    if known is not None:
        state.preemptions.note_end(event.uid, state.now)
        state.preemptions.forget(event.uid, known.claim)
        if known.group is not None:
            _leave_group(state, known.group)
        state.claims.look_at(known.claim)
        note_immediate(state, known.claim)
    note_group(state, group, before)


def _leave_group(state: State, group: GroupKey) -> None:
    """Judge the pods that are left of a group again, which may have been refused for the other."""
    if group not in state.cache.groups():
        state.shortfalls.pop(group, None)
        state.gates.forget_group(group)
    for pod in state.cache.pods_of_group(group):
        if pod.uid in state.pods.blocked:
            state.pods.due[pod.uid] = None


def budget_observed(event: events.BudgetObserved, state: State) -> None:
    """Apply an added or updated disruption budget."""
    state.preemptions.budgets.put(event.budget)


def budget_deleted(event: events.BudgetDeleted, state: State) -> None:
    """Forget a disruption budget."""
    state.preemptions.budgets.remove(event.namespace, event.name)


def budgets_listed(event: events.BudgetsListed, state: State) -> None:
    """Allow preemption: all disruption budgets are known."""
    state.preemptions.budgets.are_listed = True


def pods_listed(event: events.PodsListed, state: State) -> None:
    """Forget pods that the list lacks.

    The informer does not report all of these as deleted: a pod may be known from a Filter only, if
    it was created and deleted between two watches.
    """
    state.pods.listed = event.version
    for pod in list(state.cache.pods()):
        is_older = version_of(pod.pod.metadata.resource_version) <= event.version
        if pod.uid not in event.uids and is_older:
            pod_deleted(events.PodDeleted(pod.uid, was_seen=False), state)
    agents_listed(state, after_gap=event.after_gap)


def note_pod(state: State, pod: GPUPod) -> None:
    """Update the pod's reservation and its place in the queue for a new version of the pod."""
    uid, held = pod.uid, state.reservations.of_pod(pod.uid)
    if pod.is_gated:
        state.pods.due[uid] = None
        return
    if pod.wants_node:
        note_lifted(state, pod)
        return
    _stop_waiting(state, uid, pod)
    note_immediate(state, pod.claim)
    if not pod.is_running:
        if held is not None and held.is_tentative:
            unreserve(state, held)
        return
    if held is not None:
        _note_bound(state, pod, held)
    state.pods.due[uid] = None


def _note_bound(state: State, pod: GPUPod, held: Reservation) -> None:
    """Update the reservation of a pod that was bound to the reserved node or another."""
    is_there = held.node == pod.pod.spec.node_name
    if is_there and not held.is_tentative:
        held.begin_bind(pod.reserved_for)
        held.bound()
        if held.is_written:
            state.reservations.drop(held)
        return
    if is_there and not held.is_awaited:
        state.pods.owed.add(
            pod.uid
        )  # the pod was offered this node, and was bound after the offer had ended
    unreserve(state, held)


def _stop_waiting(state: State, uid: str, pod: GPUPod | None) -> None:
    """Remove a pod from the queue and from all work on waiting pods."""
    if pod is not None:
        wake_next(state, pod)
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
        drop_earmark(state, pod.claim)
    state.claims.reported.pop(pod.claim, None)


def _learn_typical(state: State, pod: GPUPod) -> None:
    """Add the demand of a new pod, including its CPU, to the mix of typical demands.

    Claims without an owning pod are added by the ledger, because the CPU of their pods is unknown.
    """
    mix = state.ledger.columns.mix
    if not pod.owned or pod.pod.is_terminal:
        return
    spec = spec_for(state, pod)
    if isinstance(spec, VGPUClaimSpec) and mix.wants_next():
        mix.observe(Demand.of(spec, state.config, cpu_milli=pod.cpu_milli))


def _came_without(state: State, pod: Pod) -> None:
    """Count a pod without devices in the mix if it uses CPU on a node that has devices.

    Pods of a DaemonSet do not count, because they run on every node.
    """
    columns = state.ledger.columns
    node = columns.node_id(pod.spec.node_name)
    if node is None or not columns.node_devices[node]:
        return
    if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references):
        return
    if columns.mix.wants_next():
        columns.mix.observe(None)
