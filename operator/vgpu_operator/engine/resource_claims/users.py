"""Pods that name a ResourceClaim of ours through which they get no devices.

A ResourceClaim of ours serves one pod. The kubelet would give its devices to every other pod that
has it reserved, without asking the agent again, so the policy `vgpu-reservations` lets nobody
reserve it for another pod: neither kube-scheduler, nor Kubernetes itself for a pod that was bound
by hand. What is left to do here is to tell such a pod why it does not start.
"""

from __future__ import annotations

from collections.abc import Collection

from vgpu_api import dra
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.effects import RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.known import ResourceKey
from vgpu_operator.engine.state import State

_ACTION = "Scheduling"


def note_user(state: State, pod: Pod, found: GPUPod | None) -> None:
    """Record the ResourceClaims that a pod names in addition to the one that gives it devices.

    Args:
        state: The engine's state.
        pod: The newest version of the pod.
        found: The same pod, if it requests GPUs.
    """
    uid, namespace = pod.metadata.uid, pod.metadata.namespace or ""
    has_ended = pod.is_terminal or pod.metadata.deletion_timestamp is not None
    named = () if has_ended else _named(pod, "" if found is None else found.resource_claim)
    if state.cache.users.put(uid, (ResourceKey(namespace, name) for name in named)):
        metadata = pod.metadata
        state.cache.users.regarding[uid] = Regarding(
            "v1", "Pod", namespace, metadata.name, metadata.uid
        )
        state.resource_claims.users_due[uid] = None


def _named(pod: Pod, served_by: str) -> Collection[str]:
    names = (entry.resource_claim_name for entry in pod.spec.resource_claims)
    return [name for name in names if name and name != served_by]


def tell_users(state: State) -> None:
    """Record an event on each pod that names a ResourceClaim of another, or one not read for it."""
    due, state.resource_claims.users_due = state.resource_claims.users_due, {}
    for uid in due:
        for key in state.cache.users.claims_of(uid):
            refusal = _refusal(state, key)
            told = state.resource_claims.users_told.setdefault(uid, set())
            if refusal is not None and key not in told:
                told.add(key)
                regarding = state.cache.users.regarding[uid]
                state.outbox.append(
                    RecordEvent(regarding, "Warning", "ClaimNotOwned", _ACTION, str(refusal))
                )


def forget_user(state: State, uid: str) -> None:
    """Forget a pod that is gone."""
    state.cache.users.put(uid, ())
    state.resource_claims.users_told.pop(uid, None)


def _refusal(state: State, key: ResourceKey) -> BadInput | None:
    """Return why a pod that is not served through a ResourceClaim cannot use it; None if it can."""
    if dra.is_made_name(key.name):
        return BadInput(
            field="spec.resourceClaims",
            value=key.name,
            detail="the operator makes ResourceClaims with names of this form, each for one pod, "
            "and this is not that of this pod: create the pod anew without the entry, and ask by "
            "resources",
        )
    if state.cache.resource_claims.get(key) is None:  # of another driver, or not there
        return None
    return BadInput(
        field="spec.resourceClaims",
        value=key.name,
        detail="admission has not read this ResourceClaim for the pod: it did not exist yet, or no "
        "webhook answered; create the pod anew",
    )
