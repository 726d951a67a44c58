"""The cluster's configuration: one document with resource names, defaults and policies.

The `nvidia` section uses HAMi's own keys, and HAMi's documents can be read unchanged (`hami`). Each
of their keys that has no effect here is reported in a notice.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from vgpu_api import names
from vgpu_api.config import hami
from vgpu_api.errors import BadInput
from vgpu_api.field_errors import field_errors, path
from vgpu_api.v1alpha1.gpudevice import CorePolicy
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_api.vendors import kinds

ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=316)]


def _either_spelling(value: Any, words: tuple[str, ...], aliases: Mapping[str, str]) -> Any:
    """Return our spelling of a word that HAMi's chart spells differently (`numa-first`)."""
    if not isinstance(value, str):
        return value
    plain = value.strip().replace("-", "").lower()
    plain = aliases.get(plain, plain)
    return next((word for word in words if word.lower() == plain), value)


def _node_word(value: Any) -> Any:
    return _either_spelling(value, get_args(NodePolicy), {})


def _device_word(value: Any) -> Any:
    return _either_spelling(value, get_args(DevicePolicy), {"topologyaware": "topology"})


def _core_word(value: Any) -> Any:
    return "Default" if value == "" else _either_spelling(value, get_args(CorePolicy), {})


def _mig_word(value: Any) -> Any:
    return "none" if value == "" else value


MigStrategy = Annotated[Literal["none", "single", "mixed"], BeforeValidator(_mig_word)]


def _one_for_none(value: Any) -> Any:
    """Return 1 for 0, which HAMi reads as not set."""
    return 1 if value in (0, "0") else value


class _Section(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,  # all but one are only parts of others
    )


MigProfileName = Annotated[str, Field(pattern=r"^[0-9]+g\.[0-9]+gb(\+[a-z.]+)?$", max_length=32)]

KNOWN_MIG_PROFILES = (
    *("1g.5gb", "1g.5gb+me", "1g.6gb", "1g.6gb+me", "1g.10gb", "1g.10gb+me", "1g.12gb"),
    *("1g.12gb+me", "1g.18gb", "1g.18gb+me", "1g.20gb", "1g.23gb", "1g.23gb+me", "1g.24gb"),
    *("1g.24gb+me", "1g.35gb", "1g.45gb", "1g.47gb", "2g.10gb", "2g.12gb", "2g.12gb+me"),
    *("2g.20gb", "2g.24gb", "2g.35gb", "2g.45gb", "2g.47gb", "2g.48gb", "3g.20gb", "3g.40gb"),
    *("3g.47gb", "3g.48gb", "3g.71gb", "3g.90gb", "3g.93gb", "4g.20gb", "4g.24gb", "4g.40gb"),
    *("4g.47gb", "4g.48gb", "4g.71gb", "4g.90gb", "4g.93gb", "4g.96gb", "7g.40gb", "7g.80gb"),
    *("7g.94gb", "7g.96gb", "7g.141gb", "7g.180gb", "7g.186gb"),
)
"""The profiles of A30 to GB200. Source: NVIDIA's MIG User Guide, Supported MIG Profiles."""


class MigProfiles(_Section):
    """The MIG profiles allowed on devices whose model name contains one of `models`."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    profiles: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[0-9]+g\..+$")], ...], Field(min_length=1)
    ]


class NvidiaConfig(_Section):
    """NVIDIA's resource names and defaults, under HAMi's keys."""

    resource_count_name: ResourceName = "nvidia.com/gpu"
    resource_memory_name: ResourceName = "nvidia.com/gpumem"
    resource_memory_percentage_name: ResourceName = "nvidia.com/gpumem-percentage"
    resource_core_name: ResourceName = "nvidia.com/gpucores"
    resource_priority_name: ResourceName = "nvidia.com/priority"
    device_split_count: Annotated[int, Field(ge=1, le=1000)] = 10
    """The most requests that one device serves, unless the device's spec sets its own number."""
    device_memory_scaling: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Factor from a device's memory to its allocatable memory, unless its spec sets its own."""
    device_core_scaling: Annotated[float, Field(gt=0, le=100)] = 1.0
    """The same factor for compute."""
    pre_configured_device_memory: Annotated[int, Field(ge=0, le=64 << 20)] = 0
    """Memory in MiB of a device whose driver does not report it (GB10), unless the device's spec
    sets it. With 0, no memory of such a device is allocated."""
    default_memory: Annotated[int, Field(ge=0)] = Field(
        default=0,
        validation_alias=AliasChoices("defaultMem", "defaultMemory", "default_memory"),
        serialization_alias="defaultMem",
    )
    """MiB per device for a request that sets no memory. 0 means all of the device's memory."""
    default_cores: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of compute for a request that sets none. 0 means no reservation."""
    default_gpu_num: Annotated[int, BeforeValidator(_one_for_none), Field(ge=1, le=64)] = Field(
        default=1,
        validation_alias=AliasChoices("defaultGPUNum", "default_gpu_num"),
        serialization_alias="defaultGPUNum",
    )
    """The number of devices for a request that names only memory or cores."""
    memory_factor: Annotated[int, BeforeValidator(_one_for_none), Field(ge=1)] = 1
    """The number of MiB in one unit of the memory resource."""
    gpu_core_policy: Annotated[CorePolicy, BeforeValidator(_core_word)] = "Default"
    """The core policy of containers that do not set the variable: when their limit is enforced."""
    disable_core_limit: bool = False
    """Count compute shares but never enforce them, whatever `gpuCorePolicy` says."""
    runtime_class_name: Annotated[str, Field(max_length=253)] = ""
    """The runtime class set on pods that ask for a GPU and name none. Empty: do not set one."""
    mig_profile_allowlist: tuple[MigProfiles, ...] = ()
    """MIG profiles that may be used, by model. A model that no row names may use all its
    profiles."""
    mig_strategy: MigStrategy = "none"
    """The use of devices in MIG mode. none: instances are made on demand. single, mixed: the
    instances that an administrator made are handed out; pods ask by the count alone (single) or by
    `nvidia.com/mig-<profile>` (mixed)."""
    mig_profiles: tuple[MigProfileName, ...] = KNOWN_MIG_PROFILES
    """The profiles that pods can name in a resource if `migStrategy` is mixed."""

    @property
    def mig_resources(self) -> Mapping[str, str]:
        """Profiles by the resource that names them; empty unless the strategy is mixed."""
        if self.mig_strategy != "mixed":
            return {}
        return {names.mig_resource(profile): profile for profile in self.mig_profiles}

    @property
    def core_policy(self) -> CorePolicy:
        """Return the core policy of containers that set none themselves."""
        return "Disable" if self.disable_core_limit else self.gpu_core_policy

    def usable_profiles(self, model: str, profiles: Iterable[str]) -> frozenset[str]:
        """Return the MIG profiles of a device that may be used.

        The first row that matches a part of the model name decides. If the driver has no profile of
        a listed name, its profiles with the same number of slices are allowed instead, because
        drivers differ in the memory size they put into a name (`7g.79gb`, `7g.80gb`).
        """
        given = frozenset(profiles)
        for row in self.mig_profile_allowlist:
            if any(part.lower() in model.lower() for part in row.models):
                exact = given & frozenset(row.profiles)
                slices = {_slices(name) for name in row.profiles if name not in given}
                return exact | {name for name in given if _slices(name) in slices}
        return given


def _slices(profile: str) -> str:
    return profile.partition(".")[0]


class DeviceFilter(_Section):
    """Devices selected by UUID and by index."""

    uuid: tuple[str, ...] = ()
    index: tuple[Annotated[int, Field(ge=0)], ...] = ()


class NodeConfig(_Section):
    """Settings for one node or for nodes with some labels; unset keys keep the section's value."""

    name: str = ""
    selector: dict[str, str] = Field(default_factory=dict)
    """If there is no name: the labels that a node must have, all of them."""
    device_split_count: Annotated[int, Field(ge=1, le=1000)] | None = None
    device_memory_scaling: Annotated[float, Field(gt=0, le=100)] | None = None
    device_core_scaling: Annotated[float, Field(gt=0, le=100)] | None = None
    pre_configured_device_memory: Annotated[int, Field(ge=0, le=64 << 20)] | None = None
    mig_strategy: MigStrategy | None = None
    """The strategy for the node's devices. The resource names that pods use follow the
    section's."""
    filter_devices: DeviceFilter = Field(default_factory=DeviceFilter)
    """Devices to leave out: they are neither published nor allocated."""

    @model_validator(mode="after")
    def _is_of_some_node(self) -> NodeConfig:
        if bool(self.name) == bool(self.selector):
            raise ValueError("give the name of a node or a selector, not both")
        return self

    def holds_for(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if this entry applies to the node."""
        if self.name:
            return self.name == name
        return self.selector.items() <= dict(labels).items()


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The `nvidia` section as it applies to one node, and the devices left out there."""

    nvidia: NvidiaConfig
    uuids: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()

    def leaves_out(self, uuid: str, index: int) -> bool:
        """Return True if the device is left out on this node."""
        return uuid in self.uuids or index in self.indices


class AliyunConfig(_Section):
    """Alibaba ACK's resource names."""

    resource_memory_name: ResourceName = "aliyun.com/gpu-mem"
    """Memory in GiB, for all devices of the container together."""
    resource_core_name: ResourceName = "aliyun.com/gpu-core.percentage"
    resource_count_name: ResourceName = "aliyun.com/gpu-count"
    gpu_count_means: Literal["percent", "cards"] = "percent"
    """The meaning of the count when memory is asked for too: percent of a device's compute, or a
    number of devices. Without memory it is always a number of devices."""


class VolcanoConfig(_Section):
    """Volcano's resource names."""

    resource_count_name: ResourceName = "volcano.sh/vgpu-number"
    resource_memory_name: ResourceName = "volcano.sh/vgpu-memory"
    resource_memory_percentage_name: ResourceName = "volcano.sh/vgpu-memory-percentage"
    resource_core_name: ResourceName = "volcano.sh/vgpu-cores"
    memory_factor: Annotated[int, Field(ge=1)] = 1
    """The number of MiB in one unit of the memory resource."""


class PreemptionConfig(_Section):
    """Whose devices a pod of higher priority may take while it waits for room."""

    enabled: bool = False
    """Evict less important pods for a pod that does not fit. `kubectl vgpu simulate` and `explain`
    show the victims in either case."""
    budgets: Literal["Respect", "Prefer"] = "Respect"
    """Respect: never evict a pod that a PodDisruptionBudget protects. Prefer: delete such a pod if
    nothing else makes room, as kube-scheduler's own preemption does."""
    min_gap: Annotated[int, Field(ge=0)] = 0
    """A victim's priority must be lower by more than this."""
    per_minute: Annotated[int, Field(ge=1)] = 30
    """The most pods that are evicted for others in a minute, in the whole cluster."""
    scope: Literal["Cluster", "Namespace"] = "Cluster"
    """Namespace: a pod takes devices from pods of its own namespace only."""


class SchedulingConfig(_Section):
    """Defaults for claims, pods and nodes that set no policy of their own."""

    node_policy: Annotated[NodePolicy, BeforeValidator(_node_word)] = "Binpack"
    """The policy that chooses among nodes."""
    device_policy: Annotated[DevicePolicy, BeforeValidator(_device_word)] = "Spread"
    """The policy that chooses among the devices of a node."""
    quota_at: Literal["Scheduling", "Admission"] = "Scheduling"
    """When to check a pod against its namespace's quota. A pod above it waits (Scheduling), or is
    not created (Admission)."""
    max_claim_priority: int = 1000
    """The highest `schedulingPriority` of a claim. It is compared with the priorities of pods."""
    starvation_after_seconds: Annotated[int, Field(ge=0)] = 60
    """After this wait, devices that become free are earmarked for the request. 0 means never."""
    preemption: PreemptionConfig = Field(default_factory=PreemptionConfig)
    mode: Literal["Extender", "Gate", "Claims"] = "Extender"
    """The hand-over of decisions to kube-scheduler. Extender: kube-scheduler calls the extender at
    Filter and Bind. Claims: GPU pods name a ResourceClaim, which the operator makes and allocates
    once their devices are reserved. Gate: GPU pods are created with a scheduling gate, which is
    removed then. Use Claims, or Gate before Kubernetes 1.36, in clusters whose kube-scheduler
    cannot be configured."""
    scheduler_name: str = "vgpu-scheduler"
    """The scheduler set on pods that ask for a GPU and name none. Empty: do not set one. In the
    modes Gate and Claims this scheduler does not run, and pods that name it get
    `default-scheduler`."""
    scheduler_aliases: tuple[str, ...] = ("volcano",)
    """Other scheduler names that GPU pods may carry. They are replaced by `schedulerName`, except
    in a pod of a Volcano PodGroup, because only Volcano starts such pods together."""

    @property
    def decides_first(self) -> bool:
        """True if the operator decides a pod before kube-scheduler looks at it."""
        return self.mode != "Extender"


class ViewsConfig(_Section):
    """Records written for people and tools that expect HAMi's; we never read them back."""

    hami_node_register: bool = True
    """Each agent lists its devices in its Node's annotation `hami.io/node-nvidia-register`."""
    hami_metrics: bool = True
    """Each agent also exports usage under HAMi's metric names."""
    hami_events: bool = False
    """Also write HAMi's events (`FilteringFailed` …): one write per refusal and two per binding."""


class PageConfig(_Section):
    """The web page."""

    prometheus: Annotated[str, Field(max_length=1024)] = ""
    """URL of the Prometheus that scrapes the agents, or of anything that serves its HTTP API, such
    as `http://prometheus.monitoring.svc:9090`: the page shows the use of memory and compute, its
    last 24 hours, and idle claims. Empty: the page asks the agents of up to 256 nodes for the
    present use alone."""
    prometheus_labels: dict[
        Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")],
        Annotated[str, Field(max_length=253)],
    ] = Field(default_factory=dict)
    """Labels that this cluster's series have in a Prometheus that serves several clusters."""

    @field_validator("prometheus")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        # Neither a password, which every reader of the ConfigMap would see, nor a query.
        if value and not re.fullmatch(r"https?://[\w.\-]+(:\d+)?(/[^\s?#]*)?", value, re.ASCII):
            raise ValueError(
                "must be a URL of http or https without a user and a query, such as "
                "http://prometheus.monitoring.svc:9090"
            )
        return value.rstrip("/")

    @model_validator(mode="after")
    def _has_labels_of_something(self) -> PageConfig:
        if self.prometheus_labels and not self.prometheus:
            raise ValueError("prometheusLabels need prometheus")
        return self


class LoggingConfig(_Section):
    """The logging of all our processes. Changes apply without a restart."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None = None
    """None: keep the level that each process was started with (`--log-level`)."""


class VendorsConfig(_Section):
    """Devices of other vendors."""

    leave_alone: tuple[str, ...] = ("amd",)
    """Kinds whose pods are neither changed nor placed by us. The default is `amd`, because AMD's
    own device plugin, which registers no devices, uses the same resource name as HAMi's. Write `[]`
    if HAMi's plugin serves AMD devices."""

    @field_validator("leave_alone")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = [kind.name for kind in kinds()]
        for name in value:
            if name not in known:
                raise ValueError(f"{name} is no kind of device; known kinds: {', '.join(known)}")
        return value


class ClusterConfig(_Section):
    """The whole configuration document."""

    nvidia: NvidiaConfig = Field(default_factory=NvidiaConfig)
    aliyun: AliyunConfig = Field(default_factory=AliyunConfig)
    volcano: VolcanoConfig = Field(default_factory=VolcanoConfig)
    vendors: VendorsConfig = Field(default_factory=VendorsConfig)
    scheduling: SchedulingConfig = Field(default_factory=SchedulingConfig)
    views: ViewsConfig = Field(default_factory=ViewsConfig)
    web: PageConfig = Field(default_factory=PageConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    nodes: tuple[NodeConfig, ...] = ()
    """Settings of single nodes, by name or by labels; HAMi's `nodeconfig`."""

    def on_node(self, name: str, labels: Mapping[str, str]) -> NodeSettings:
        """Return the settings of a node; where several entries match, later ones win key by key."""
        own: dict[str, Any] = {}
        uuids: frozenset[str] = frozenset()
        indices: frozenset[int] = frozenset()
        for entry in self.nodes:
            if entry.holds_for(name, labels):
                keys = (
                    *("device_split_count", "device_memory_scaling", "device_core_scaling"),
                    *("pre_configured_device_memory", "mig_strategy"),
                )
                given = {key: getattr(entry, key) for key in keys}
                own |= {key: value for key, value in given.items() if value}  # HAMi: 0 is not set
                if "filter_devices" in entry.model_fields_set:
                    uuids = frozenset(entry.filter_devices.uuid)
                    indices = frozenset(entry.filter_devices.index)
        return NodeSettings(self.nvidia.model_copy(update=own), uuids, indices)

    def managed_resources(self) -> dict[str, bool]:
        """Return a scheduler configuration's managed resources and their `ignoredByScheduler`.

        The count is never ignored: a kubelet that does not know a resource admits the pod
        unchecked, so the scheduler must check the count. Other vendors' resources are ignored, as
        in HAMi: their plugins register devices on the Node, and only those devices are allocated,
        whatever the kubelet counts.
        """
        nvidia, aliyun, volcano = self.nvidia, self.aliyun, self.volcano
        ignored = (
            *(nvidia.resource_memory_name, nvidia.resource_memory_percentage_name),
            *(nvidia.resource_core_name, nvidia.resource_priority_name),
            *(aliyun.resource_memory_name, aliyun.resource_core_name, aliyun.resource_count_name),
            *(volcano.resource_count_name, volcano.resource_memory_name),
            *(volcano.resource_memory_percentage_name, volcano.resource_core_name),
            *nvidia.mig_resources,
        )
        served = (kind for kind in kinds() if kind.name not in self.vendors.leave_alone)
        others = [name for kind in served for name in kind.resources]
        return {nvidia.resource_count_name: False, **dict.fromkeys([*ignored, *others], True)}

    def request_resources(self) -> frozenset[str]:
        """Return the resource names in the webhooks' expressions: a pod that asks for one is ours.

        For other vendors these are the count and any other resource that asks for devices.
        """
        amounts = {
            name for kind in kinds() for name in kind.resources if name not in kind.requested_by
        }
        return frozenset(self.managed_resources()) - amounts

    def added_resources(self) -> list[str]:
        """Return the names missing from the shipped expressions and scheduler configuration."""
        return sorted(self.managed_resources().keys() - ClusterConfig().managed_resources().keys())


def read_cluster_config(
    document: Any, report: Callable[[hami.Notice], None] | None = None
) -> ClusterConfig:
    """Read a parsed document as configuration, whether it is ours or any of HAMi's.

    Args:
        document: The parsed YAML or JSON.
        report: Called for each key that was accepted and has no effect.

    Raises:
        BadInput: Something is wrong; the first error, with its path, value and what to write
            instead. No notice has been reported in this case.
    """
    found = hami.translated(document)
    try:
        config = ClusterConfig.model_validate(found.document)
    except ValidationError as error:
        raise _bad_input(error, found.origin) from error
    if report is not None:
        for notice in found.notices:
            report(notice)
    return config


def _bad_input(error: ValidationError, origin: Callable[[str], str]) -> BadInput:
    """Return the first error, with the path that its field has in the user's document."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "extra_forbidden":
        field = origin(path(first["loc"]))
        return BadInput.forbidden(field, "unknown key" + _meant(first["loc"]))
    found = field_errors(error)[0]
    return BadInput(
        field=origin(found.field), fault=found.fault, value=found.value, detail=found.detail
    )


def _meant(location: tuple[int | str, ...]) -> str:
    """Return the suggestion `did you mean …?` if a known key resembles the unknown one."""
    model: type[BaseModel] = ClusterConfig
    for part in location[:-1]:
        model = _MODELS.get(str(part), model)
    fields = model.model_fields.items()
    names = [field.serialization_alias or to_camel(name) for name, field in fields]
    near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


_MODELS: Mapping[str, type[BaseModel]] = {
    "nvidia": NvidiaConfig,
    "aliyun": AliyunConfig,
    "volcano": VolcanoConfig,
    "vendors": VendorsConfig,
    "scheduling": SchedulingConfig,
    "views": ViewsConfig,
    "web": PageConfig,
    "nodes": NodeConfig,
    "filterDevices": DeviceFilter,
    "migProfileAllowlist": MigProfiles,
}
