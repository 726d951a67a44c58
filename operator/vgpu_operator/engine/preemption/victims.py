"""Finds the claims of a node that may be preempted, and those whose devices become free anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.demand import ALL_CORES
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.scheduling.gate_groups import group_to_start_with
from vgpu_operator.engine.scheduling.groups import has_started, least_of, members
from vgpu_operator.engine.scheduling.schedule_one import claim_priority
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Share

OVERDUE_S = 30.0
"""A pod that still exists this long after its grace period counts as stuck, not as ending."""
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class NodeClaims:
    """The claims on a node as a preemptor sees them.

    Attributes:
        ending: Claims whose devices become free without anybody being evicted.
        victims: Those of less important pods, the most important first.
    """

    ending: frozenset[ClaimKey]
    victims: tuple[Victim, ...]


def claims_on(
    state: State,
    preemptor: GPUPod,
    node: str,
    also: Collection[str] = (),
    chosen: Collection[Victim] = (),
) -> NodeClaims:
    """Sort the claims that hold devices of a node.

    Args:
        state: The engine's state.
        preemptor: The pod that needs room.
        node: The node's name.
        also: UIDs of pods that end in any case, such as kube-scheduler's own victims.
        chosen: The victims for other pods of the preemptor's group, on any node.
    """
    holding = _holding(state, node)
    ending = _ending(state, preemptor, holding, also, chosen)
    victims: list[Victim] = []
    gangs: dict[GroupKey, list[Share]] = {}
    for key, shares in holding.items():
        if key in ending or key == preemptor.claim or state.cache.is_unreadable(key):
            continue
        claim = state.cache.claim(key)
        pod = state.cache.pod(pod_uid_of(state, key, claim))
        if claim is not None and claim.spec.binding_mode == "Immediate":
            victims += _of_immediate(state, preemptor, claim, pod, node, shares)
        elif pod is None:
            continue
        elif pod.group is not None and ends_as_a_whole(state, pod.group):
            gangs.setdefault(pod.group, []).extend(shares)
        elif may_be_victim(state, preemptor, pod, node):
            victims.append(Victim((key,), (pod,), pod.priority, shares=tuple(shares)))
    for group, shares in gangs.items():
        victims += _of_gang(state, preemptor, group, node, shares)
    return NodeClaims(ending, tuple(_by_importance(state, victims, chosen)))


def ending_on(
    state: State,
    preemptor: GPUPod,
    node: str,
    also: Collection[str] = (),
    chosen: Collection[Victim] = (),
) -> frozenset[ClaimKey]:
    """Return the claims that hold devices of a node and end anyway; see `claims_on`."""
    return _ending(state, preemptor, _holding(state, node), also, chosen)


def _ending(
    state: State,
    preemptor: GPUPod,
    holding: Iterable[ClaimKey],
    also: Collection[str],
    chosen: Collection[Victim],
) -> frozenset[ClaimKey]:
    ended = {key for victim in chosen for key in victim.keys}
    found = set[ClaimKey]()
    for key in holding:
        if key == preemptor.claim or state.cache.is_unreadable(key):
            continue
        claim = state.cache.claim(key)
        pod = state.cache.pod(pod_uid_of(state, key, claim))
        is_kept = claim is not None and claim.spec.binding_mode == "Immediate"
        if key in ended or (not is_kept and (pod is None or is_ending(state, pod, also))):
            found.add(key)
    return frozenset(found)


def preempts_with(state: State, pod: GPUPod) -> GroupKey | None:
    """Return the pod's group if the pod can only start together with others, else None.

    Pods beyond a gang's minimum start, and preempt, alone. Behind our gate a pod also waits for a
    group of which nothing says yet how many must start.
    """
    if pod.is_gated:
        return group_to_start_with(state, pod)
    if pod.group is None or (least_of(state, pod.group) or 1) == 1:
        return None
    return None if has_started(state, pod.group) else pod.group


def ends_as_a_whole(state: State, group: GroupKey) -> bool:
    """Return True if the pods of a group can only be evicted together.

    The PodGroup's disruption mode decides; the API server sets Single if its author sets none. Only
    a gang without any mode ends as a whole.
    """
    said = state.cache.pod_groups.get(group)
    if said is None:
        return (least_of(state, group) or 1) > 1
    mode = said.disruption
    return mode == "All" or (mode == "" and said.least > 1)


def _of_gang(
    state: State, preemptor: GPUPod, group: GroupKey, node: str, shares: list[Share]
) -> Iterable[Victim]:
    """Yield a group as one victim, on all its nodes, if all its pods are less important."""
    pods = [pod for pod in members(state, group) if pod.is_running]
    if group == preemptor.group or node not in {pod.pod.spec.node_name for pod in pods}:
        return
    if not all(may_be_victim(state, preemptor, pod, pod.pod.spec.node_name) for pod in pods):
        return
    priority = max(pod.priority for pod in pods)
    yield Victim(tuple(pod.claim for pod in pods), tuple(pods), priority, shares=tuple(shares))


def is_ending(state: State, pod: GPUPod, also: Collection[str] = ()) -> bool:
    """Return True if the pod's devices become free soon, regardless of which pod requests them.

    A pod that outlives its grace period may have a finalizer that nobody removes, so its devices
    are no longer waited for.
    """
    if pod.pod.is_terminal or pod.uid in also:
        return True
    deleted = pod.pod.metadata.deletion_timestamp
    if deleted is not None:
        # The API server adds the grace period to this timestamp.
        return state.unix < datetime.fromisoformat(deleted).timestamp() + OVERDUE_S
    return state.preemptions.is_victim(pod.uid)


def may_be_victim(state: State, preemptor: GPUPod, pod: GPUPod, node: str) -> bool:
    """Return True if a pod of the node is less important, and its end would not be undone at once.

    A DaemonSet's controller and the kubelet put their pods back on the same node.
    """
    rules, metadata = state.config.scheduling.preemption, pod.pod.metadata
    # Agents write the claims of their node. A compromised one may name a pod of another node in
    # such a claim, to have it evicted.
    if pod.pod.spec.node_name != node:
        return False
    if rules.scope == "Namespace" and metadata.namespace != preemptor.pod.metadata.namespace:
        return False
    if _MIRROR in metadata.annotations:
        return False
    if any(owner.controller and owner.kind == "DaemonSet" for owner in metadata.owner_references):
        return False
    return pod.is_running and pod.priority < preemptor.priority - rules.min_gap


def pod_uid_of(state: State, key: ClaimKey, claim: VGPUClaim | None) -> str:
    """Return the UID of the pod that a claim is held for; empty if there is none."""
    held = state.reservations.of_claim(key)
    if held is not None and held.pod_uid:
        return held.pod_uid
    reserved = None if claim is None else claim.status.reserved_for
    return "" if reserved is None else reserved.pod_uid


def _holding(state: State, node: str) -> dict[ClaimKey, list[Share]]:
    """Return the claims that hold devices of a node, with their shares.

    Devices that a write of unknown outcome holds are left out: while no claim and no reservation is
    known, nothing says that they come back.
    """
    columns, found = state.ledger.columns, dict[ClaimKey, list[Share]]()
    number = columns.node_id(node)
    for device in () if number is None else columns.node_devices[number]:
        for holder in state.ledger.holders(columns.uuid[device]):
            use, key = holder.use, holder.key
            if state.cache.claim(key) is None and state.reservations.of_claim(key) is None:
                continue
            # A claim with all compute leaves none, even if the device's is scaled above 100 %.
            cores = columns.cores[device] if use.cores >= ALL_CORES else use.cores
            share = Share(device, use.slots, cores, use.memory_mib)
            found.setdefault(key, []).append(share)
    return found


def _of_immediate(
    state: State,
    preemptor: GPUPod,
    claim: VGPUClaim,
    pod: GPUPod | None,
    node: str,
    shares: list[Share],
) -> Iterable[Victim]:
    """Yield an Immediate claim as a victim, if both the claim and its pod are less important.

    If only its pod ended, the claim would keep its devices for the next pod.
    """
    rules, key = state.config.scheduling.preemption, key_of(claim)
    if rules.scope == "Namespace" and key.namespace != preemptor.claim.namespace:
        return
    priority = claim_priority(state, claim)
    if claim.metadata.deletion_timestamp is not None or claim.unknown_values:
        return
    if priority >= preemptor.priority - rules.min_gap:
        return
    if pod is None:
        yield Victim((key,), (), priority, shares=tuple(shares))
    elif may_be_victim(state, preemptor, pod, node):
        yield Victim((key,), (pod,), max(priority, pod.priority), shares=tuple(shares))


def importance(victim: Victim) -> tuple[bool, int, str, tuple[ClaimKey, ...]]:
    """Return a key by which the victims that should stay come first."""
    return not victim.is_protected, -victim.priority, victim.since, victim.keys


def may_still_go(state: State, preemptor: GPUPod, victim: Victim) -> bool:
    """Return True if a victim chosen a moment ago still holds its claims and may be evicted."""
    uids = {pod.uid for pod in victim.pods}
    for key in victim.keys:
        uid = pod_uid_of(state, key, state.cache.claim(key))
        if uid and uid not in uids:
            return False
    for uid in uids:
        pod = state.cache.pod(uid)
        if pod is None or is_ending(state, pod):
            return False
        if not may_be_victim(state, preemptor, pod, pod.pod.spec.node_name):
            return False
    return True


def _by_importance(state: State, victims: list[Victim], chosen: Collection[Victim]) -> list[Victim]:
    """Return the victims, first those who stay if only some have to go.

    Protected pods come first, then more important ones, then those that have run for longer. What a
    budget still allows is counted in this order, too, after what the chosen victims use up.
    """
    victims.sort(key=importance)
    protected = protected_among(state, (*chosen, *victims))
    marked = [
        replace(victim, is_protected=any(pod.uid in protected for pod in victim.pods))
        for victim in victims
    ]
    return sorted(marked, key=importance)


def protected_among(state: State, victims: Iterable[Victim]) -> set[str]:
    """Return the UIDs of the pods that could not be evicted if all of these go in this order."""
    work, pods = state.preemptions, [pod for victim in victims for pod in victim.pods]
    refused = {pod.uid for pod in pods if work.is_protected(pod.uid, state.now)}
    return refused | work.budgets.broken_by(pod.pod for pod in pods)
