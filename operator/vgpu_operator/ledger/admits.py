"""A soft look at whether a node takes a pod: what kube-scheduler will judge for good.

Reserving cards on a node that the pod's own selector or the node's taints rule out would only
make the reservation move, so these are looked at before a decision; resources and affinity are
left to kube-scheduler.
"""

from __future__ import annotations

from vgpu_api.core import Node, Pod, Taint, Toleration
from vgpu_api.names import ACK_NODE_SCHEDULE
from vgpu_api.reasons import Reason

_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def node_admits(pod: Pod, node: Node, *, kinds: frozenset[str] | None = None) -> Reason | None:
    """Why the node would not take the pod, as far as selector, taints and readiness say.

    Args:
        pod: Who wants to be there.
        node: Where.
        kinds: What a node that wears ACK's label must be (`dialects.ack.node_kinds`); None: any.
    """
    if not node.is_ready:
        return Reason.NODE_NOT_READY
    if node.spec.unschedulable:
        return Reason.NODE_UNSCHEDULABLE
    return barred_by(pod, node, kinds=kinds)


def barred_by(pod: Pod, node: Node, *, kinds: frozenset[str] | None = None) -> Reason | None:
    """Why the node would not take the pod whatever its state: labels and taints."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return Reason.NODE_SELECTOR_MISMATCH
    kind = labels.get(ACK_NODE_SCHEDULE)
    if kinds is not None and kind and kind not in kinds:
        return Reason.NODE_SELECTOR_MISMATCH
    for taint in node.spec.taints:
        if taint.effect in _HARD_EFFECTS and not any(
            _tolerates(toleration, taint) for toleration in pod.spec.tolerations
        ):
            return Reason.NODE_TAINTED
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Source: Kubernetes, Taints and Tolerations. An empty key with Exists bears everything."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
