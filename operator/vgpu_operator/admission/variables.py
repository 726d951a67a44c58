"""Words of a pod that have no effect here: warnings for the person who applies it.

HAMi's library reads these variables, ACK and Volcano these annotations and labels. Nothing here
does, so admission returns a warning, which kubectl prints: silence would look like consent.
Source: the getenv calls of HAMi-core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import VgpuError
from vgpu_operator.admission.rawpod import read_pod
from vgpu_operator.dialects import ack, native, read, volcano
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.hami_annotations import annotation_field
from vgpu_operator.dialects.moved import restored
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

CHOOSING_IN_HAMIS_WORDS = (
    names.NVIDIA_USE_TYPE,
    names.NVIDIA_NOUSE_TYPE,
    names.NVIDIA_USE_UUID,
    names.NVIDIA_NOUSE_UUID,
    names.NVIDIA_NUMA_BIND,
    names.NVIDIA_MODE,
    names.HAMI_NODE_POLICY,
    names.HAMI_DEVICE_POLICY,
    names.HAMI_DEVICE_WEIGHTS,
)
CHOOSING = (*CHOOSING_IN_HAMIS_WORDS, names.ACK_NUMA_SPEC)
"""Annotations that choose devices for pods that ask by resources."""


def without_effect(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Words without effect of a pod that asks for a GPU; empty for one that cannot be read."""
    try:
        pod = read_pod(raw_pod)
        if is_left_alone(pod) or read(pod, config) is None:
            return []
        pod = restored(pod, config)
    except VgpuError:
        return []  # refused, and with a better sentence
    return [*_metadata(pod, config), *_beside_a_claim(pod), *_variables(pod)]


def _metadata(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Annotations and labels that mean something to other schedulers, or in other words only."""
    annotations, containers = pod.metadata.annotations, list(each_container(pod))
    if names.ACK_CPUSET in annotations:
        yield (
            f"{annotation_field(names.ACK_CPUSET)}: has no effect: the kubelet pins CPUs, with "
            "cpuManagerPolicy static and whole CPUs as requests and limits"
        )
    in_volcanos = any(volcano.asks(place.container, config) for place in containers)
    if names.VOLCANO_MODE in annotations and not in_volcanos:
        yield (
            f"{annotation_field(names.VOLCANO_MODE)}: has no effect: no container asks for "
            f"{config.volcano.resource_count_name}; write {names.NVIDIA_MODE}"
        )
    memory = config.aliyun.resource_memory_name
    spreads = any(
        ack.asks(place.container, config) and place.container.asked(memory) is not None
        for place in containers
    )
    if names.ACK_GPU_COUNT_LABEL in pod.metadata.labels and not spreads:
        yield (
            f"metadata.labels[{names.ACK_GPU_COUNT_LABEL}]: has no effect: it spreads {memory} "
            "over several GPUs, and no container asks for that"
        )


def _beside_a_claim(pod: Pod) -> Iterator[str]:
    """Annotations of the other dialects on a pod whose claim decides everything."""
    if native.named_claim(pod) is None:
        return
    for key in CHOOSING:
        if key in pod.metadata.annotations:
            yield (
                f"{annotation_field(key)}: has no effect: the pod names a claim, whose requests "
                "and placement say what it gets"
            )


def _variables(pod: Pod) -> Iterator[str]:
    for place in each_container(pod):
        for variable in place.container.env:
            if variable.name in WITHOUT_EFFECT:
                path = place.env_path(variable.name)
                yield f"{path}: has no effect: {WITHOUT_EFFECT[variable.name]}"
