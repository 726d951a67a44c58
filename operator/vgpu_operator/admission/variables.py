"""What a pod may say and what means nothing here: words for the person who applies it.

HAMi's library reads these variables. Nothing here does, so admission returns a warning, which
kubectl prints: silence would look like consent. Source: the getenv calls of HAMi-core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.errors import VgpuError
from vgpu_operator.admission.rawpod import read_pod
from vgpu_operator.dialects import read
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.reading import is_left_alone

WITHOUT_EFFECT: Mapping[str, str] = {
    "CUDA_TASK_PRIORITY": "the node sets it: ask with the resource nvidia.com/priority, or with "
    "computePriority of a claim's request",
    "LIBCUDA_LOG_LEVEL": "set VGPU_LOG_LEVEL=1 to see why the library denies",
    "ACTIVE_OOM_KILLER": "an allocation above the limit fails; what happens to a claim that gets "
    "past it is the agent's --on-violation",
    "CUDA_OVERSUBSCRIBE": "memory beyond a GPU's own is an administrator's memoryScaling of the "
    "GPUDevice, or deviceMemoryScaling of the configuration",
    "CUDA_REDIRECT": "the library is loaded for every process of the container",
    "RECORD_KERNEL_INTERVAL": "kernels are charged by the GPU time that they take",
}
"""By variable: what to use instead."""


def without_effect(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """What a pod that asks for a GPU says without effect; empty for one that cannot be read."""
    try:
        pod = read_pod(raw_pod)
        if is_left_alone(pod) or read(pod, config) is None:
            return []
    except VgpuError:
        return []  # refused, and with a better sentence
    return [
        f"{place.env_path(variable.name)}: has no effect: {WITHOUT_EFFECT[variable.name]}"
        for place in each_container(pod)
        for variable in place.container.env
        if variable.name in WITHOUT_EFFECT
    ]
