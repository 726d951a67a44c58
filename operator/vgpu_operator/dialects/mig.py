"""NVIDIA's words for MIG instances that there are: `nvidia.com/mig-1g.10gb: 1`.

They are ours where the configuration's `migStrategy` is `mixed`, and another plugin's where it is
not. A container names one profile; how many instances of it, on one GPU or several, is the number.
Under `single` no word is added: the count alone asks for instances (`hami.py`). Source: NVIDIA's
k8s-device-plugin, MIG strategies.
"""

from __future__ import annotations

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.dialects import hami_annotations
from vgpu_operator.dialects.containers import PodContainer, ResourceDialect, is_given

MAX_COUNT = 64
_EXPECTED = f"a number of instances, 1 to {MAX_COUNT}"


def resource_names(config: ClusterConfig) -> tuple[str, ...]:
    """The resources of this dialect; none where they are not ours."""
    return tuple(config.nvidia.mig_resources)


def applies(container: Container, config: ClusterConfig) -> bool:
    """Whether the container asks for instances; 0 of them are none."""
    return any(is_given(container, name) for name in config.nvidia.mig_resources)


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """What one container asks for.

    Raises:
        BadInput: the number cannot be read, or a second profile stands beside the first.
    """
    profiles = config.nvidia.mig_resources
    first, *others = [name for name in profiles if is_given(place.container, name)]
    if others:
        raise BadInput.forbidden(
            place.resource_path(others[0]),
            f"a container has instances of one profile, here {first}; ask for the others in "
            "another container of the pod",
        )
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        count=_count(place, first),
        mode="MIG",
        mig_profile=profiles[first],
        selector=hami_annotations.selector(pod),
    )


def _count(place: PodContainer, name: str) -> int:
    number = place.number(name, _EXPECTED)
    assert number is not None
    return place.whole(name, number, 1, MAX_COUNT, _EXPECTED)


DIALECT = ResourceDialect(
    applies=applies,
    request=request,
    placement=hami_annotations.placement,
    resource_names=resource_names,
    in_slots=False,
)
