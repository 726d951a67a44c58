"""What a pod asks of its node besides devices, as kube-scheduler counts it.

App containers and sidecars run together, so they add up; ordinary init containers run one after
the other, each beside the sidecars that were started before it. The greater of the two counts, or
what the pod asks for as a whole where it does, and its overhead on top.
Source: Kubernetes, Pod requests and limits; Sidecar containers; Pod overhead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from vgpu_api.core.node import Node
from vgpu_api.core.pod import Pod
from vgpu_api.errors import QuantityError
from vgpu_api.quantity import parse

CPU = "cpu"
PODS = "pods"


def cpu_milli_of(pod: Pod) -> int:
    """Milli-CPU that the pod asks for; what cannot be read counts as nothing."""
    spec = pod.spec
    overhead = _milli(spec.overhead)
    if spec.resources is not None and CPU in spec.resources.requests:
        return _milli(spec.resources.requests) + overhead
    sidecars = peak = 0
    for container in spec.init_containers:
        requested = _milli(container.resources.requests)
        if container.is_sidecar:
            sidecars += requested
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + requested)
    together = sidecars + sum(_milli(container.resources.requests) for container in spec.containers)
    return max(peak, together) + overhead


def requests_of(pod: Pod) -> dict[str, int]:
    """All that the pod asks for by resource: CPU in milli-CPU, `pods`: 1, everything else as is.

    Each amount is rounded up; what cannot be read counts as nothing, as does an amount of 0.
    """
    spec = pod.spec
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        requested = _plus(sidecars, _amounts(container.resources.requests, math.ceil))
        peak = _most(peak, requested)
        if container.is_sidecar:
            sidecars = requested
    together = sidecars
    for container in spec.containers:
        together = _plus(together, _amounts(container.resources.requests, math.ceil))
    total = _most(peak, together)
    if spec.resources is not None:  # of the pod as a whole, where it has that
        total |= _amounts(spec.resources.requests, math.ceil)
    total = _plus(total, _amounts(spec.overhead, math.ceil))
    return {**total, PODS: 1}


def allocatable_of(node: Node) -> dict[str, int]:
    """What pods may have of a node, in the units of `requests_of`, each amount rounded down."""
    return _amounts(node.status.allocatable, math.floor)


def allocatable_cpu_milli(node: Node) -> int | None:
    """Milli-CPU that pods may have of a node; None until its kubelet has reported."""
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


def _amounts(
    written: Mapping[str, str | int], rounded: Callable[[Fraction], int]
) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, amount in written.items():
        try:
            number = rounded(parse(amount) * (1000 if name == CPU else 1))
        except QuantityError:
            continue
        if number > 0:
            amounts[name] = number
    return amounts


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}
