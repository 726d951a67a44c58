"""Volcano's dialect: HAMi's meaning under Volcano's names.

`volcano.sh/vgpu-number`, `-memory` (MiB), `-memory-percentage` and `-cores` are read exactly as
HAMi's resources are, annotations included; `volcano.sh/vgpu-mode` is `nvidia.com/vgpu-mode`. The
container gets a slot of ours at admission, because no plugin registers a resource of Volcano's
name.
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
    """The resources of this dialect, the count first."""
    volcano = config.volcano
    return (
        volcano.resource_count_name,
        volcano.resource_memory_name,
        volcano.resource_memory_percentage_name,
        volcano.resource_core_name,
    )


def applies(container: Container, config: ClusterConfig) -> bool:
    """Whether the container asks for a device in Volcano's words."""
    if not any(container.requested(name) is not None for name in resource_names(config)):
        return False
    return hami.applies(container, in_hamis_place(config))


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """What one container asks for.

    Raises:
        BadInput: an amount, a variable or a selecting annotation cannot be read.
    """
    requested = hami.request(pod, place, in_hamis_place(config))
    return requested.model_copy(update={"mode": _mode(pod)})


def _mode(pod: Pod) -> RequestMode:
    """Volcano's own annotation, or HAMi's; both only where they agree."""
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
    """The configuration with Volcano's resource names where HAMi's are."""
    count, memory, percentage, cores = resource_names(config)
    words = {
        "resource_count_name": count,
        "resource_memory_name": memory,
        "resource_memory_percentage_name": percentage,
        "resource_core_name": cores,
        "memory_factor": config.volcano.memory_factor,
        "mig_strategy": "none",  # NVIDIA's strategies are about its own words
    }
    return config.model_copy(update={"nvidia": config.nvidia.model_copy(update=words)})


DIALECT = ResourceDialect(
    applies=applies,
    request=request,
    placement=hami_annotations.placement,
    resource_names=resource_names,
    in_slots=False,
)
