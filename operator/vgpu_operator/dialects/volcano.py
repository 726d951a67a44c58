"""Volcano's dialect: HAMi's resources under Volcano's names.

`volcano.sh/vgpu-number`, `-memory` (MiB), `-memory-percentage` and `-cores` mean the same as HAMi's
resources, including annotations. `volcano.sh/vgpu-mode` corresponds to `nvidia.com/vgpu-mode`.
Admission adds a slot to the container, because no plugin registers a resource with Volcano's name.
"""

from __future__ import annotations

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import RequestMode
from vgpu_operator.dialects import hami, hami_annotations
from vgpu_operator.dialects.containers import PodContainer, ResourceDialect


def resource_names(config: ClusterConfig) -> tuple[str, ...]:
    """Return the resources of this dialect, the count first."""
    volcano = config.volcano
    return (
        volcano.resource_count_name,
        volcano.resource_memory_name,
        volcano.resource_memory_percentage_name,
        volcano.resource_core_name,
    )


def applies(container: Container, config: ClusterConfig) -> bool:
    """Return True if the container requests a device by Volcano's resources."""
    if not any(container.requested(name) is not None for name in resource_names(config)):
        return False
    return hami.applies(container, in_hamis_place(config))


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """Return the request of one container.

    Raises:
        BadInput: An amount, a variable or a selecting annotation is invalid.
    """
    requested = hami.request(pod, place, in_hamis_place(config))
    return requested.model_copy(update={"mode": _mode(pod)})


def _mode(pod: Pod) -> RequestMode:
    """Return the mode in Volcano's or HAMi's annotation, which must not differ."""
    own = hami_annotations.mode_of(pod, names.VOLCANO_MODE)
    hamis = hami_annotations.mode_of(pod, names.NVIDIA_MODE)
    if own is not None and hamis is not None and own != hamis:
        raise BadInput(
            field=hami_annotations.annotation_field(names.VOLCANO_MODE),
            value=pod.metadata.annotations[names.VOLCANO_MODE],
            detail=f"{names.NVIDIA_MODE} is {pod.metadata.annotations[names.NVIDIA_MODE]}; "
            "write one of the two",
        )
    return own or hamis or "Any"


def in_hamis_place(config: ClusterConfig) -> ClusterConfig:
    """Return the configuration with Volcano's resource names in place of HAMi's."""
    count, memory, percentage, cores = resource_names(config)
    words = {
        "resource_count_name": count,
        "resource_memory_name": memory,
        "resource_memory_percentage_name": percentage,
        "resource_core_name": cores,
        "memory_factor": config.volcano.memory_factor,
        "mig_strategy": "none",  # the MIG strategies apply to NVIDIA's own resources only
    }
    return config.model_copy(update={"nvidia": config.nvidia.model_copy(update=words)})


DIALECT = ResourceDialect(
    applies=applies,
    request=request,
    placement=hami_annotations.placement,
    resource_names=resource_names,
    in_slots=False,
)
