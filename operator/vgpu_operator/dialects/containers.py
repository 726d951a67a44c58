"""The containers of a pod that can hold devices, each with its place in the pod.

The place is what an error names, and the phase is what the claim's request needs: an ordinary
init container runs alone and before (Init), a restartable one runs beside the others (App).
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
    """A container, its path in the pod's spec, and when it runs."""

    container: Container
    section: Section
    index: int
    phase: Phase

    @property
    def name(self) -> str:
        """Its name."""
        return self.container.name

    @property
    def path(self) -> str:
        """Where it stands, as an error calls it: `spec.containers[0]`."""
        return f"spec.{self.section}[{self.index}]"

    def resource_path(self, resource: str) -> str:
        """The field that gives a resource: the limit, or the request that stands in for it."""
        resources = self.container.resources
        in_requests = resource not in resources.limits and resource in resources.requests
        return f"{self.path}.resources.{'requests' if in_requests else 'limits'}[{resource}]"

    def env_path(self, variable: str) -> str:
        """The field of an environment variable."""
        return f"{self.path}.env[{variable}]"

    def number(self, resource: str, expected: str) -> Fraction | None:
        """The exact number given for a resource, whatever it means; None: not given.

        Raises:
            BadInput: it cannot be read.
        """
        given = self.container.requested(resource)
        if given is None:
            return None
        try:
            return quantity.parse(given)
        except QuantityError as error:
            raise self.bad(resource, expected) from error

    def whole(self, resource: str, number: Fraction, low: int, high: int, expected: str) -> int:
        """The number as an integer.

        Raises:
            BadInput: it is none, or out of its range; `expected` has the rule.
        """
        if number.denominator != 1 or not low <= number <= high:
            raise self.bad(resource, expected)
        return number.numerator

    def bad(self, resource: str, expected: str) -> BadInput:
        """What is given for a resource is wrong."""
        return BadInput(
            field=self.resource_path(resource),
            value=self.container.requested(resource),
            expected=expected,
        )


def is_given(container: Container, resource: str) -> bool:
    """Given and not 0; what cannot be read is given, so that it is refused and not overlooked."""
    number = container.requested(resource)
    if number is None:
        return False
    try:
        return quantity.parse(number) != 0
    except QuantityError:
        return True


def each_container(pod: Pod) -> Iterator[PodContainer]:
    """All containers in HAMi's positional order: init containers first."""
    for index, container in enumerate(pod.spec.init_containers):
        phase: Phase = "App" if container.is_sidecar else "Init"
        yield PodContainer(container, "initContainers", index, phase)
    for index, container in enumerate(pod.spec.containers):
        yield PodContainer(container, "containers", index, "App")


@dataclass(frozen=True, slots=True)
class ResourceDialect:
    """A dialect in which containers ask by extended resources.

    `applies` is True if a container asks for a device in this dialect, `request` what it asks for,
    and `placement` where the pod wants to go. The last two raise `BadInput`. `resource_names` are
    the words. `in_slots`: its count is the very resource that the kubelet counts in slots;
    containers of other dialects are given a slot at admission. `vendor` is whose devices it asks
    for; the device plugins of others than NVIDIA count and hand out their own.
    """

    applies: Callable[[Container, ClusterConfig], bool]
    request: Callable[[Pod, PodContainer, ClusterConfig], VGPURequest]
    placement: Callable[[Pod], Placement | None]
    resource_names: Callable[[ClusterConfig], tuple[str, ...]]
    in_slots: bool
    vendor: str = "nvidia"
