"""NVIDIA's resources for existing MIG instances, such as `nvidia.com/mig-1g.10gb: 1`.

They are served if the configuration has `migStrategy: mixed`; otherwise they belong to another
plugin. A container names one profile and the number of instances of it, on one or several GPUs.
`migStrategy: single` adds no resource: the plain count requests instances (`hami.py`). Source: MIG
strategies of NVIDIA's k8s-device-plugin.
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
    """Return the resources of this dialect; none if they belong to another plugin."""
    return tuple(config.nvidia.mig_resources)


def applies(container: Container, config: ClusterConfig) -> bool:
    """Return True if the container requests at least one instance."""
    return any(is_given(container, name) for name in config.nvidia.mig_resources)


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """Return the request of one container.

    Raises:
        BadInput: The number is invalid, or the container names two profiles.
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
