"""What a pod asks of its node's CPU, as kube-scheduler counts it.

App containers and sidecars run together, so they add up; ordinary init containers run one after
the other, each beside the sidecars that were started before it. The greater of the two counts, or
what the pod asks for as a whole where it says so, and its overhead on top.
Source: Kubernetes, Pod requests and limits; Sidecar containers; Pod overhead.
"""

from __future__ import annotations

import math

from vgpu_api.core.node import Node
from vgpu_api.core.pod import Pod
from vgpu_api.errors import QuantityError
from vgpu_api.quantity import parse

CPU = "cpu"


def cpu_milli_of(pod: Pod) -> int:
    """Milli-CPU that the pod asks for; what cannot be read counts as nothing."""
    spec = pod.spec
    overhead = _milli(spec.overhead)
    if spec.resources is not None and CPU in spec.resources.requests:
        return _milli(spec.resources.requests) + overhead
    sidecars = peak = 0
    for container in spec.init_containers:
        asked = _milli(container.resources.requests)
        if container.is_sidecar:
            sidecars += asked
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked)
    together = sidecars + sum(_milli(container.resources.requests) for container in spec.containers)
    return max(peak, together) + overhead


def allocatable_cpu_milli(node: Node) -> int | None:
    """Milli-CPU that pods may have of a node; None while its kubelet has not said."""
    return _milli(node.status.allocatable) if CPU in node.status.allocatable else None


def _milli(amounts: dict[str, str | int]) -> int:
    """The CPU among resources in milli-CPU, rounded up."""
    written = amounts.get(CPU)
    if written is None:
        return 0
    try:
        return max(0, math.ceil(parse(written) * 1000))
    except QuantityError:
        return 0
