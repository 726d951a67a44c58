"""Checks the victims that kube-scheduler proposes: would the pod get its devices if they ended?

kube-scheduler counts CPU, memory and the extended resources that the kubelet knows, but not device
memory and compute. Without this check it would end pods whose devices do not help, again and again
(kubernetes#139270).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import nodes_of, refusal_of, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import place


def nodes_that_victims_free(
    state: State, pod: GPUPod, victims: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the nodes on which the pod would get its devices if the victims there ended.

    Devices of pods that are ending anyway count as free, too. Nothing is reserved or ended here.

    Args:
        state: The engine's state.
        pod: The pod that is to run.
        victims: UIDs of pods by node. A node without victims is never returned, because
            kube-scheduler treats an empty list of victims as an error.
    """
    spec, claim = spec_for(state, pod), state.cache.claim(pod.claim)
    if isinstance(spec, Refusal) or spec.binding_mode == "Immediate":
        return []  # no pod's end moves an Immediate claim: the operator alone places it
    if claim is not None and refusal_of(state, claim, pod) is not None:
        return []
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.is_binding:
        return []  # its Binding may still succeed
    demand, nodes = pod.request(spec, state.config), nodes_of(state, pod)
    freed = []
    for node, uids in victims.items():
        if not uids:
            continue
        ended = tuple(_returned_by(state, node, uids))
        with state.deciding(
            pod.claim, Yielding.MORE_IMPORTANT, priority=pod.priority, ended=ended
        ) as kept:
            budget = state.ledger.budget(pod.claim.namespace, pod.scopes)
            plan = place(
                state.ledger.columns, demand, {node}, nodes=nodes, budget=budget, kept=kept
            )
        if not plan.refused:
            freed.append(node)
    return freed


def _returned_by(state: State, node: str, uids: Collection[str]) -> Iterator[ClaimKey]:
    """Yield the claims on a node whose devices become free once these pods have ended."""
    for device in state.ledger.devices(node):
        for holder in state.ledger.holders(device.status.uuid):
            if _is_returned(state, holder.key, uids):
                yield holder.key


def _is_returned(state: State, key: ClaimKey, uids: Collection[str]) -> bool:
    """Return True if the claim's pod is one of these, has ended, or is being deleted."""
    claim, held = state.cache.claim(key), state.reservations.of_claim(key)
    if state.cache.is_unreadable(key):
        return False
    if claim is not None and claim.spec.binding_mode == "Immediate":
        return False  # it keeps its devices for the next pod
    uid = "" if held is None else held.pod_uid
    if not uid and claim is not None and claim.status.reserved_for is not None:
        uid = claim.status.reserved_for.pod_uid
    known = state.cache.pod(uid)
    if known is None or known.pod.is_terminal:
        return True
    return known.pod.metadata.deletion_timestamp is not None or uid in uids
