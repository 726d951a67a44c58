"""NVIDIA's words for MIG instances that there are: `nvidia.com/mig-1g.10gb: 1`.

They are ours where the configuration's `migStrategy` is `mixed`, and another plugin's where it is
not. A container names one profile; how many instances of it, on one GPU or several, is the number.
Under `single` no word is added: the count alone asks for instances (`hami.py`). Source: NVIDIA's
k8s-device-plugin, MIG strategies.
"""

from __future__ import annotations

from vgpu_api import quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput, QuantityError
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.dialects import hami_annotations
from vgpu_operator.dialects.containers import PodContainer, ResourceDialect

MAX_COUNT = 64
_EXPECTED = f"a number of instances, 1 to {MAX_COUNT}"


def resource_names(config: ClusterConfig) -> tuple[str, ...]:
    """The resources of this dialect; none where they are not ours."""
    return tuple(config.nvidia.mig_resources)


def asks(container: Container, config: ClusterConfig) -> bool:
    """Whether the container asks for instances; 0 of them are none."""
    return any(_is_asked(container, name) for name in config.nvidia.mig_resources)


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """What one container asks for.

    Raises:
        BadInput: the number cannot be read, or a second profile stands beside the first.
    """
    profiles = config.nvidia.mig_resources
    first, *others = [name for name in profiles if _is_asked(place.container, name)]
    if others:
        raise BadInput(
            field=place.resource_path(others[0]),
            value=place.container.asked(others[0]),
            expected=f"allowed beside {first}: a container has instances of one profile; ask for "
            "the others in another container of the pod",
        )
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        count=_count(place, first),
        mode="MIG",
        mig_profile=profiles[first],
        selector=hami_annotations.selector(pod),
    )


def _is_asked(container: Container, name: str) -> bool:
    given = container.asked(name)
    if given is None:
        return False
    try:
        return quantity.parse(given) != 0
    except QuantityError:
        return True


def _count(place: PodContainer, name: str) -> int:
    given = place.container.asked(name)
    assert given is not None
    try:
        number = quantity.parse(given)
    except QuantityError as error:
        raise BadInput(field=place.resource_path(name), value=given, expected=_EXPECTED) from error
    if number.denominator != 1 or not 1 <= number <= MAX_COUNT:
        raise BadInput(field=place.resource_path(name), value=given, expected=_EXPECTED)
    return number.numerator


DIALECT = ResourceDialect(
    asks=asks,
    request=request,
    placement=hami_annotations.placement,
    resource_names=resource_names,
    in_slots=False,
)
