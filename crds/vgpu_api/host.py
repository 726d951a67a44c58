"""What a pod asks of its node besides devices, as kube-scheduler counts it.

App containers and sidecars run together, so they add up; ordinary init containers run one after
the other, each beside the sidecars that were started before it. The greater of the two counts, or
what the pod asks for as a whole where it does, and its overhead on top. While a container is
resized in place, the greatest counts of its spec, what the kubelet has admitted and what the
container has. Once the kubelet has refused a resize as infeasible, the spec counts no more.
Source: Kubernetes, Pod requests and limits; Sidecar containers; Pod overhead; Resize CPU and memory
resources; `PodRequests` in k8s.io/component-helpers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

from vgpu_api.core.node import Node
from vgpu_api.core.pod import Container, ContainerStatus, Pod, PodStatus, ResourceRequirements
from vgpu_api.errors import QuantityError
from vgpu_api.quantity import parse

CPU = "cpu"
PODS = "pods"

_Written: TypeAlias = Mapping[str, str | int]


def cpu_milli_of(pod: Pod) -> int:
    """Milli-CPU that the pod asks for; what cannot be read counts as nothing."""
    spec, sizes = pod.spec, _Sizes(pod)
    overhead = _milli(spec.overhead)
    if spec.resources is not None and CPU in spec.resources.requests:
        return max(map(_milli, sizes.of_pod(spec.resources))) + overhead
    sidecars = peak = 0
    for container in spec.init_containers:
        requested = max(map(_milli, sizes.of_init(container)))
        if container.is_sidecar:
            sidecars += requested
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + requested)
    together = sidecars + sum(max(map(_milli, sizes.of(each))) for each in spec.containers)
    return max(peak, together) + overhead


def requests_of(pod: Pod) -> dict[str, int]:
    """All that the pod asks for by resource: CPU in milli-CPU, `pods`: 1, everything else as is.

    Each amount is rounded up; what cannot be read counts as nothing, as does an amount of 0.
    """
    spec, sizes = pod.spec, _Sizes(pod)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        requested = _plus(sidecars, _greatest(sizes.of_init(container)))
        peak = _most(peak, requested)
        if container.is_sidecar:
            sidecars = requested
    together = sidecars
    for container in spec.containers:
        together = _plus(together, _greatest(sizes.of(container)))
    total = _most(peak, together)
    if spec.resources is not None:  # of the pod as a whole, where it has that
        whole = _greatest(sizes.of_pod(spec.resources))
        for name in filter(_is_of_pods, spec.resources.requests):
            total[name] = whole.get(name, 0)
    total = _plus(total, _amounts(spec.overhead, math.ceil))
    return {**{name: amount for name, amount in total.items() if amount}, PODS: 1}


def sizes_of(pod: Pod) -> tuple[object, ...]:
    """Return what of a pod's status `requests_of` reads, to compare: a resize is no generation."""
    status = pod.status
    return (
        _is_infeasible(pod),
        status.resources,
        status.allocated_resources,
        *(
            (each.name, each.resources, each.allocated_resources)
            for each in (*status.container_statuses, *status.init_container_statuses)
            if each.resources is not None
        ),
    )


class _Sizes:
    """The amounts of which the greatest counts, by container and of a pod as a whole."""

    def __init__(self, pod: Pod) -> None:
        status = pod.status
        self._status = status
        self._spec_counts = not _is_infeasible(pod)
        self._by_name = {
            each.name: each
            for each in (*status.container_statuses, *status.init_container_statuses)
            if each.resources is not None
        }

    def of(self, container: Container) -> tuple[_Written, ...]:
        """Of an app container."""
        return self._sizes(container.resources, self._by_name.get(container.name))

    def of_init(self, container: Container) -> tuple[_Written, ...]:
        """Of an init container; an ordinary one is not resized."""
        return self.of(container) if container.is_sidecar else (container.resources.requests,)

    def of_pod(self, whole: ResourceRequirements) -> tuple[_Written, ...]:
        """Of a pod whose spec has this for it as a whole."""
        return self._sizes(whole, self._status)

    def _sizes(
        self, asked: ResourceRequirements, has: ContainerStatus | PodStatus | None
    ) -> tuple[_Written, ...]:
        if has is None or has.resources is None:
            return (asked.requests,)
        sizes = (has.resources.requests, has.allocated_resources)
        return (asked.requests, *sizes) if self._spec_counts else sizes


def _is_infeasible(pod: Pod) -> bool:
    """True if the kubelet has refused a resize for good."""
    pending = (each for each in pod.status.conditions if each.type == "PodResizePending")
    return any(each.reason == "Infeasible" for each in pending)


def _is_of_pods(resource: str) -> bool:
    """True for a resource that a pod may ask for as a whole."""
    return resource in (CPU, "memory") or resource.startswith("hugepages-")


def allocatable_of(node: Node) -> dict[str, int]:
    """What pods may have of a node, in the units of `requests_of`, each amount rounded down."""
    return _amounts(node.status.allocatable, math.floor)


def allocatable_cpu_milli(node: Node) -> int | None:
    """Milli-CPU that pods may have of a node; None until its kubelet has reported."""
    return _milli(node.status.allocatable) if CPU in node.status.allocatable else None


def _milli(amounts: _Written) -> int:
    """The CPU among resources in milli-CPU, rounded up."""
    written = amounts.get(CPU)
    if written is None:
        return 0
    try:
        return max(0, math.ceil(parse(written) * 1000))
    except QuantityError:
        return 0


def _greatest(sizes: Iterable[_Written]) -> dict[str, int]:
    """By resource, the greatest of several amounts."""
    found: dict[str, int] = {}
    for size in sizes:
        amounts = _amounts(size, math.ceil)
        found = _most(found, amounts) if found else amounts
    return found


def _amounts(written: _Written, rounded: Callable[[Fraction], int]) -> dict[str, int]:
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
