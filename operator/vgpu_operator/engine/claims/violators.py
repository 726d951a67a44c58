"""Evicts pods whose claims violate their limits, where the administrator wants that.

Agents report it in the claim's condition `Violated` and may evict no pod: a compromised one can
have pods of its own node evicted, whose claims it writes, and no others. A few are evicted a minute
and no more, so that a mistake of ours or of an agent is noticed first; of one node fewer than of
the cluster, so that no agent decides how soon the violators of other nodes go.
"""

from __future__ import annotations

from vgpu_api import conditions
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.backoff import Backoff
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.effects import EvictPod
from vgpu_operator.engine.state import Evicted, State

EVERY_S = 6.0
"""Between two evictions in the cluster: ten a minute."""
OF_A_NODE_EVERY_S = 30.0
"""Between two of pods of one node: two a minute."""
AGAIN_S = 60.0
"""Between the first two of one pod, whose disruption budget may protect it."""
AGAIN_AT_MOST_S = 960.0
"""After twice as long each time up to this: else two protected pods would use up a node's turns."""
_YIELD_S = 1.0
"""For so long a free turn is left to pods that were not evicted yet; rounds come as often."""


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
    evictions, node = state.evictions, claim.status.allocation.node_name
    evicted = state.claims.evicted.get(key) or Evicted(Backoff(AGAIN_S, AGAIN_AT_MOST_S))
    free = max(evictions.cluster_from, evictions.nodes_from.get(node, 0.0))
    # Pods that were not evicted yet take a turn first.
    due = max(free + _YIELD_S, evicted.again) if evicted.again else free
    if state.now < due:
        state.claims.timers.set(key, due)
        return None
    evictions.note(node, state.now, cluster_s=EVERY_S, node_s=OF_A_NODE_EVERY_S)
    evicted.again = state.now + evicted.backoff.failed()
    state.claims.evicted[key] = evicted
    state.claims.look_at(key)  # for whatever else it needs, and the next time
    metadata = pod.pod.metadata
    regarding = Regarding("v1", "Pod", metadata.namespace, metadata.name, metadata.uid)
    return EvictPod(regarding, f"{violated.message} ({violated.reason})")
