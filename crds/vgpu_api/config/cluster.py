"""The cluster's configuration: resource names, defaults and policies, one document.

The `nvidia` section uses HAMi's own keys: that section of its `device-config.yaml` reads unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy

ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=316)]


class _Section(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class NvidiaConfig(_Section):
    """NVIDIA's resource names and defaults, in HAMi's words."""

    resource_count_name: ResourceName = "nvidia.com/gpu"
    resource_memory_name: ResourceName = "nvidia.com/gpumem"
    resource_memory_percentage_name: ResourceName = "nvidia.com/gpumem-percentage"
    resource_core_name: ResourceName = "nvidia.com/gpucores"
    resource_priority_name: ResourceName = "nvidia.com/priority"
    device_split_count: Annotated[int, Field(ge=1, le=1000)] = 10
    """Requests that one card serves at most, unless the device's spec says otherwise."""
    device_memory_scaling: Annotated[float, Field(gt=0, le=100)] = 1.0
    device_core_scaling: Annotated[float, Field(gt=0, le=100)] = 1.0
    default_memory: Annotated[int, Field(ge=0)] = Field(
        default=0, validation_alias=AliasChoices("defaultMem", "defaultMemory", "default_memory")
    )
    """MiB per card for a request that gives no memory; 0: all of it."""
    default_cores: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of compute for a request that gives none; 0: no reservation."""
    default_gpu_num: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, validation_alias=AliasChoices("defaultGPUNum", "default_gpu_num")
    )
    """Cards for a request that names memory or cores only."""
    memory_factor: Annotated[int, Field(ge=1)] = 1
    """MiB that one unit of the memory resource stands for."""


class AliyunConfig(_Section):
    """Alibaba ACK's resource names."""

    resource_memory_name: ResourceName = "aliyun.com/gpu-mem"
    """GiB, for all cards of the container together."""
    resource_core_name: ResourceName = "aliyun.com/gpu-core.percentage"
    resource_count_name: ResourceName = "aliyun.com/gpu-count"
    gpu_count_means: Literal["percent", "cards"] = "percent"
    """What the count means beside memory: percent of a card's compute, or cards. Alone: cards."""


class VolcanoConfig(_Section):
    """Volcano's resource names."""

    resource_count_name: ResourceName = "volcano.sh/vgpu-number"
    resource_memory_name: ResourceName = "volcano.sh/vgpu-memory"
    resource_memory_percentage_name: ResourceName = "volcano.sh/vgpu-memory-percentage"
    resource_core_name: ResourceName = "volcano.sh/vgpu-cores"
    memory_factor: Annotated[int, Field(ge=1)] = 1
    """MiB that one unit of the memory resource stands for."""


class SchedulingConfig(_Section):
    """What holds where a claim, pod or node says nothing."""

    node_policy: NodePolicy = "Binpack"
    device_policy: DevicePolicy = "Spread"
    max_claim_priority: int = 1000
    """The highest `schedulingPriority` of a claim: it is compared with the priorities of pods."""
    starvation_after_seconds: Annotated[int, Field(ge=0)] = 60
    """After waiting this long for room, a request gets cards held as they become free. 0: never."""
    scheduler_name: str = "vgpu-scheduler"
    """Set on pods that ask for a GPU and name no scheduler. Empty: leave them alone."""
    scheduler_aliases: tuple[str, ...] = ("volcano",)
    """Names of other schedulers that GPU pods may carry: `schedulerName` takes their place, except
    in a pod of a Volcano PodGroup, which only Volcano starts together with the others."""


class ViewsConfig(_Section):
    """What is written for people and tools that read other systems' records; never read back."""

    hami_node_register: bool = True
    """Each agent lists its node's cards in the Node's annotation `hami.io/node-nvidia-register`."""
    hami_metrics: bool = True
    """Each agent shows use under HAMi's metric names beside ours."""


class LoggingConfig(_Section):
    """What our processes log. Taken up live, without a restart."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None = None
    """None: what each process was started with (`--log-level`)."""


class ClusterConfig(_Section):
    """The whole document."""

    nvidia: NvidiaConfig = Field(default_factory=NvidiaConfig)
    aliyun: AliyunConfig = Field(default_factory=AliyunConfig)
    volcano: VolcanoConfig = Field(default_factory=VolcanoConfig)
    scheduling: SchedulingConfig = Field(default_factory=SchedulingConfig)
    views: ViewsConfig = Field(default_factory=ViewsConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)

    def managed_resources(self) -> dict[str, bool]:
        """What a KubeSchedulerConfiguration names as ours, and whether the scheduler ignores it.

        The count is never ignored: a kubelet that knows no such resource admits without asking.
        """
        nvidia, aliyun, volcano = self.nvidia, self.aliyun, self.volcano
        ignored = (
            *(nvidia.resource_memory_name, nvidia.resource_memory_percentage_name),
            *(nvidia.resource_core_name, nvidia.resource_priority_name),
            *(aliyun.resource_memory_name, aliyun.resource_core_name, aliyun.resource_count_name),
            *(volcano.resource_count_name, volcano.resource_memory_name),
            *(volcano.resource_memory_percentage_name, volcano.resource_core_name),
        )
        return {nvidia.resource_count_name: False, **dict.fromkeys(ignored, True)}


def read_cluster_config(document: Any) -> ClusterConfig:
    """A parsed document as configuration.

    Raises:
        BadInput: names the path, the value and what is wrong, for the first of the errors.
    """
    try:
        return ClusterConfig.model_validate(document or {})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]) or "document"
        raise BadInput(
            field=path, value=first["input"], expected=f"right: {first['msg']}"
        ) from error


def load_cluster_config(path: Path | None) -> ClusterConfig:
    """The configuration in a YAML file; the defaults when there is none.

    Raises:
        BadInput: the file is not YAML, or something in it is wrong.
        OSError: it cannot be read.
    """
    if path is None:
        return ClusterConfig()
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise BadInput(field=str(path), value=str(error), expected="a YAML document") from error
    return read_cluster_config(document)
