"""The verb `preempt`: checks and completes the victims that kube-scheduler proposes.

kube-scheduler counts CPU, memory and the extended resources that the kubelet knows, but not device
memory and compute. Without this check it would end pods whose devices do not help, again and again
(kubernetes#139270). Where preemption is enabled, the pods that the devices need are added; from the
minor version after 1.37 on, kube-scheduler also asks with no victims of its own
(kubernetes#135486).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.preemption.choose import Choice, Preemptor, on_node
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import nodes_of, refusal_of, spec_for
from vgpu_operator.engine.state import State

QUIET_S = 2.0
"""Seconds in which kube-scheduler ends the victims of an answer and we see that they end."""


def victims_by_node(
    state: State, pod: GPUPod, victims: Mapping[str, Collection[str]]
) -> dict[str, tuple[Victim, ...]]:
    """Return the nodes on which the pod would get its devices, with the victims to add there.

    Devices of pods that are ending anyway count as free, too. Nothing is reserved or ended here.

    Args:
        state: The engine's state.
        pod: The pod that is to run.
        victims: UIDs of the pods that kube-scheduler would end, by node. A node with no victims at
            all is never returned, because kube-scheduler treats an empty list as an error. Nor is
            one for which more would have to be added than the cluster's limit allows.
    """
    preemptor = _preemptor(state, pod)
    if preemptor is None:
        return {}
    # kube-scheduler deletes added victims regardless of budgets, so wait until budgets are listed.
    rules, work = state.config.scheduling.preemption, state.preemptions
    is_enabled = rules.enabled and work.budgets.are_listed
    found = {}
    left = work.left(state.now, rules.per_minute, pod.claim)
    for node, uids in victims.items():
        choice = on_node(state, preemptor, node, also=uids, may_evict=is_enabled)
        if choice is not None and (uids or choice.victims) and _may_be_added(choice, left, state):
            found[node] = choice.victims
    if found and is_enabled:
        work.hand_over(pod.claim, list(map(_uids, found.values())), state.now + QUIET_S)
    return found


def _uids(victims: Collection[Victim]) -> list[str]:
    return [pod.uid for victim in victims for pod in victim.pods]


def _preemptor(state: State, pod: GPUPod) -> Preemptor | None:
    """Return the pod as a preemptor, or None if no eviction would give it devices."""
    spec, claim = spec_for(state, pod), state.cache.claim(pod.claim)
    if isinstance(spec, Refusal) or spec.binding_mode == "Immediate":
        return None  # no pod's end moves an Immediate claim: the operator alone places it
    if claim is not None and refusal_of(state, claim, pod) is not None:
        return None
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.is_binding:
        return None  # its Binding may still succeed
    return Preemptor(pod, pod.request(spec, state.config), nodes_of(state, pod))


def _may_be_added(choice: Choice, left: int, state: State) -> bool:
    """Return True if kube-scheduler can end all added victims and the rate limit allows it.

    It ends pods of that node alone, and cannot take back an Immediate claim.
    """
    if len(_uids(choice.victims)) > left:
        return False
    pods = [pod for victim in choice.victims for pod in victim.pods]
    if any(pod.pod.spec.node_name != choice.node for pod in pods):
        return False  # a gang that also runs elsewhere
    claims = (state.cache.claim(key) for victim in choice.victims for key in victim.keys)
    return all(claim is None or claim.spec.binding_mode != "Immediate" for claim in claims)
