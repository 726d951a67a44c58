"""Evicts pods whose claims violate their limits, if the administrator has enabled that.

Agents only report a violation, in the claim's condition `Violated`, and may not evict pods. So a
compromised agent can cause the eviction of pods on its own node, whose claims it may write, but of
no others. Only a few pods are evicted per minute, so that a mistake of the operator or an agent is
noticed in time. The limit per node is lower than the limit for the cluster, so that one agent
cannot delay the evictions on other nodes.
"""

from __future__ import annotations

from vgpu_api import conditions
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.backoff import Backoff
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.effects import EvictPod
from vgpu_operator.engine.state import Evicted, State

EVERY_S = 6.0
"""The shortest time between two evictions in the cluster: ten per minute."""
OF_A_NODE_EVERY_S = 30.0
"""The shortest time between two evictions on one node: two per minute."""
AGAIN_S = 60.0
"""The time before the first retry for a pod, which a PodDisruptionBudget may protect."""
AGAIN_AT_MOST_S = 960.0
"""The longest time between two attempts. It doubles each time; otherwise, two protected pods would
use up all turns of their node.
"""
_YIELD_S = 1.0
"""Seconds for which a free turn is left to pods that have not been tried yet."""


def evict_violator(claim: VGPUClaim, state: State) -> EvictPod | None:
    """Return the eviction of a violating claim's pod if it is due; else set a timer for it."""
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
    evictions, node = state.evictions, claim.status.allocation.node_name
    evicted = state.claims.evicted.get(key) or Evicted(Backoff(AGAIN_S, AGAIN_AT_MOST_S))
    free = max(evictions.cluster_from, evictions.nodes_from.get(node, 0.0))
    # Pods that have not been tried yet go first.
    due = max(free + _YIELD_S, evicted.again) if evicted.again else free
    if state.now < due:
        state.claims.timers.set(key, due)
        return None
    evictions.note(node, state.now, cluster_s=EVERY_S, node_s=OF_A_NODE_EVERY_S)
    evicted.again = state.now + evicted.backoff.failed()
    state.claims.evicted[key] = evicted
    # for the steps that follow, and to set the timer for the next attempt
    state.claims.look_at(key)
    return EvictPod(pod.regarding, f"its claim {violated.message} ({violated.reason})", "Evicted")
