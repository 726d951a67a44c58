"""Evicts pods whose claims violate their limits, where the administrator wants that.

Agents report it in the claim's condition `Violated` and may evict no pod: a compromised one can
have pods of its own node evicted, whose claims it writes, and no others. So many are evicted a
minute and no more; a pod that a disruption budget protects is tried again.
"""

from __future__ import annotations

from vgpu_api import conditions
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.effects import EvictPod
from vgpu_operator.engine.state import State

EVERY_S = 6.0
"""At most ten evictions a minute in the whole cluster: a mistake of ours is to be noticed first."""
AGAIN_S = 60.0
"""For one claim."""


def evict_violator(claim: VGPUClaim, state: State) -> EvictPod | None:
    """The eviction of a claim's pod, if it is due; else the claim is reconciled when it may be."""
    key, reserved = key_of(claim), claim.status.reserved_for
    violated = conditions.find(claim.status.conditions, conditions.VIOLATED)
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if (
        not state.evicts
        or claim.status.allocation is None
        or violated is None
        or violated.status != "True"
        or pod is None
        or not pod.is_running
    ):
        state.claims.evicted.pop(key, None)
        return None
    due = max(state.evictions_from, state.claims.evicted.get(key, 0.0))
    if state.now < due:
        state.claims.timers.set(key, due)
        return None
    state.evictions_from = state.now + EVERY_S
    state.claims.evicted[key] = state.now + AGAIN_S
    state.claims.look_at(key)  # for whatever else it needs, and the next time
    metadata = pod.pod.metadata
    regarding = Regarding("v1", "Pod", metadata.namespace, metadata.name, metadata.uid)
    return EvictPod(regarding, f"{violated.message} ({violated.reason})")
