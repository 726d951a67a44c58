"""Lets a vendor's device plugin serve one pod of its node at a time.

The kubelet does not tell a plugin which pod it serves. So such a plugin takes the pod of its node
that a Binding has marked `allocating`, and marks it `success` when it has allocated the devices. If
two pods were marked, they could get each other's devices. HAMi prevents that by locking the Node.
Here only one scheduler binds, so its own view is enough: it refuses the second Bind, and
kube-scheduler tries again.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpu_api import names
from vgpu_api.errors import BadInput
from vgpu_api.vendors import Mark, kind_of
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.state import State

MARKED_S = 300
"""Seconds after which a mark is ignored because its plugin has failed; HAMi's lock lasts as long.
"""


def served_before(state: State, pod: GPUPod, node: str) -> str:
    """Return the pod that the node's plugin must serve before this one; empty if there is none."""
    if not takes_turns(pod):
        return ""
    for other in _pods_on(state, node):
        if other.uid != pod.uid and takes_turns(other) and _is_served_on(state, other, node):
            metadata = other.pod.metadata
            return f"{metadata.namespace}/{metadata.name}"
    return ""


def _pods_on(state: State, node: str) -> Iterator[GPUPod]:
    """Yield the pods that have devices or a reservation on a node."""
    for key in state.cache.claims_on(node):
        yield from state.cache.pods_of(key)
    for held in state.reservations:
        pod = state.cache.pod(held.pod_uid) if held.node == node else None
        if pod is not None:
            yield pod


def takes_turns(pod: GPUPod) -> bool:
    """Return True if the pod requests devices of a plugin that serves one pod at a time."""
    return bool(_marks(pod))


def _marks(pod: GPUPod) -> list[Mark]:
    """Return the marks of those plugins of the pod that serve one pod at a time."""
    if isinstance(pod.demand, BadInput) or pod.demand.spec is None:
        return []
    kinds = (kind_of(request.vendor) for request in pod.demand.spec.requests)
    return [kind.records.turn for kind in kinds if kind is not None and kind.records.turn]


def _is_served_on(state: State, pod: GPUPod, node: str) -> bool:
    """Return True while the pod's Binding is in flight, or the plugin has not answered it."""
    held = state.reservations.of_pod(pod.uid)
    if held is not None and held.node == node and held.is_binding:
        return True
    if not pod.is_running or pod.pod.spec.node_name != node:
        return False
    said = pod.pod.metadata.annotations
    is_marked = any(said.get(mark.annotation) == mark.value for mark in _marks(pod))
    if pod.pod.status.phase != "Pending" or not is_marked:
        return False
    since = said.get(names.HAMI_BIND_TIME, "")
    return since.isdigit() and len(since) < 16 and state.unix < int(since) + MARKED_S
