"""The containers of a pod that can have devices, with their positions in the pod.

Errors contain the position. The phase is that of the claim's request: ordinary init containers run
before the others (Init), restartable ones run beside them (App).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vgpu_api import quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput, QuantityError
from vgpu_api.v1alpha1 import Placement, VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import Phase

Section = Literal["initContainers", "containers"]


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container, its path in the spec of the pod, and the phase in which it runs."""

    container: Container
    section: Section
    index: int
    phase: Phase

    @property
    def name(self) -> str:
        """Return the name of the container."""
        return self.container.name

    @property
    def path(self) -> str:
        """Return the container's path for errors, such as `spec.containers[0]`."""
        return f"spec.{self.section}[{self.index}]"

    def resource_path(self, resource: str) -> str:
        """Return the field path of a resource: the limit, or the request if there is no limit."""
        resources = self.container.resources
        in_requests = resource not in resources.limits and resource in resources.requests
        return f"{self.path}.resources.{'requests' if in_requests else 'limits'}[{resource}]"

    def env_path(self, variable: str) -> str:
        """Return the field path of an environment variable."""
        return f"{self.path}.env[{variable}]"

    def number(self, resource: str, expected: str) -> Fraction | None:
        """Return the exact amount of a resource, or None if it is not given.

        Raises:
            BadInput: The amount is invalid.
        """
        given = self.container.requested(resource)
        if given is None:
            return None
        try:
            return quantity.parse(given)
        except QuantityError as error:
            raise self.bad(resource, expected) from error

    def whole(self, resource: str, number: Fraction, low: int, high: int, expected: str) -> int:
        """Return the amount of a resource as an integer.

        Raises:
            BadInput: The amount is not whole or out of range. `expected` is the rule in the
                message.
        """
        if number.denominator != 1 or not low <= number <= high:
            raise self.bad(resource, expected)
        return number.numerator

    def bad(self, resource: str, expected: str) -> BadInput:
        """Return an error about the amount of a resource."""
        return BadInput(
            field=self.resource_path(resource),
            value=self.container.requested(resource),
            expected=expected,
        )


def is_given(container: Container, resource: str) -> bool:
    """Return True if a resource is given and not 0. Invalid amounts count, so they get refused."""
    number = container.requested(resource)
    if number is None:
        return False
    try:
        return quantity.parse(number) != 0
    except QuantityError:
        return True


def each_container(pod: Pod) -> Iterator[PodContainer]:
    """Yield all containers in HAMi's order: init containers first."""
    for index, container in enumerate(pod.spec.init_containers):
        phase: Phase = "App" if container.is_sidecar else "Init"
        yield PodContainer(container, "initContainers", index, phase)
    for index, container in enumerate(pod.spec.containers):
        yield PodContainer(container, "containers", index, "App")


@dataclass(frozen=True, slots=True)
class ResourceDialect:
    """A dialect in which containers request devices as extended resources.

    `applies` returns True if a container uses this dialect. `request` parses its request, and
    `placement` parses the placement preferences of the pod; both raise `BadInput`. `resource_names`
    lists the resources. `in_slots` is True if the kubelet counts slots by the count resource of
    this dialect; containers of other dialects get a slot at admission. `vendor` is the vendor of
    the devices. Device plugins of vendors other than NVIDIA count and allocate devices themselves.
    """

    applies: Callable[[Container, ClusterConfig], bool]
    request: Callable[[Pod, PodContainer, ClusterConfig], VGPURequest]
    placement: Callable[[Pod], Placement | None]
    resource_names: Callable[[ClusterConfig], tuple[str, ...]]
    in_slots: bool
    vendor: str = "nvidia"
