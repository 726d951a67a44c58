"""Computes a pod's requests for resources other than devices, as kube-scheduler counts them.

App containers and sidecars run together, so their requests add up. Ordinary init containers run one
after the other, each beside the sidecars started before it. The larger of the two sums counts.
Pod-level resources, if set, take precedence. The pod's overhead is added on top. While a container
is resized in place, the largest of three amounts counts: its spec, the amount admitted by the
kubelet, and the container's actual amount. Once the kubelet has refused a resize as infeasible, the
spec no longer counts. Source: Kubernetes, Pod requests and limits; Sidecar containers; Pod
overhead; Resize CPU and memory resources; `PodRequests` in k8s.io/component-helpers.
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
    """Return the pod's CPU request in milli-CPU; an invalid amount counts as 0."""
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
    """Return the pod's requests: CPU in milli-CPU, `pods` as 1, other resources unchanged.

    Amounts are rounded up. Amounts that are 0 or invalid are omitted.
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
    if spec.resources is not None:  # pod-level resources
        whole = _greatest(sizes.of_pod(spec.resources))
        for name in filter(_is_of_pods, spec.resources.requests):
            total[name] = whole.get(name, 0)
    total = _plus(total, _amounts(spec.overhead, math.ceil))
    return {**{name: amount for name, amount in total.items() if amount}, PODS: 1}


def sizes_of(pod: Pod) -> tuple[object, ...]:
    """Return the status fields that `requests_of` uses; a resize does not raise the generation."""
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
    """The candidate amounts for each container and the whole pod; the largest one counts."""

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
        """Return the amounts of an app container."""
        return self._sizes(container.resources, self._by_name.get(container.name))

    def of_init(self, container: Container) -> tuple[_Written, ...]:
        """Return the amounts of an init container; ordinary ones cannot be resized."""
        return self.of(container) if container.is_sidecar else (container.resources.requests,)

    def of_pod(self, whole: ResourceRequirements) -> tuple[_Written, ...]:
        """Return the amounts of a pod with pod-level resources."""
        return self._sizes(whole, self._status)

    def _sizes(
        self, asked: ResourceRequirements, has: ContainerStatus | PodStatus | None
    ) -> tuple[_Written, ...]:
        if has is None or has.resources is None:
            return (asked.requests,)
        sizes = (has.resources.requests, has.allocated_resources)
        return (asked.requests, *sizes) if self._spec_counts else sizes


def _is_infeasible(pod: Pod) -> bool:
    """Return True if the kubelet has refused a resize as infeasible."""
    pending = (each for each in pod.status.conditions if each.type == "PodResizePending")
    return any(each.reason == "Infeasible" for each in pending)


def _is_of_pods(resource: str) -> bool:
    """Return True for a resource that can be set at pod level."""
    return resource in (CPU, "memory") or resource.startswith("hugepages-")


def allocatable_of(node: Node) -> dict[str, int]:
    """Return a node's allocatable amounts in the units of `requests_of`, rounded down."""
    return _amounts(node.status.allocatable, math.floor)


def allocatable_cpu_milli(node: Node) -> int | None:
    """Return a node's allocatable milli-CPU, or None if its kubelet has not reported it yet."""
    return _milli(node.status.allocatable) if CPU in node.status.allocatable else None


def _milli(amounts: _Written) -> int:
    """Return the CPU among the resources in milli-CPU, rounded up."""
    written = amounts.get(CPU)
    if written is None:
        return 0
    try:
        return max(0, math.ceil(parse(written) * 1000))
    except QuantityError:
        return 0


def _greatest(sizes: Iterable[_Written]) -> dict[str, int]:
    """Return the largest amount of each resource."""
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
