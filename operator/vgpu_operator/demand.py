"""The requests of a claim with all defaults filled in: the input of a scheduling decision.

Claims, HAMi's resources and all other dialects are converted to a `Demand`, so that placement deals
with one form only and equal requests are equal values. A `Demand` is hashable, because it is the
key of a request class.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from vgpu_api import quantity
from vgpu_api.v1alpha1 import DeviceKind, DeviceSelector, VGPUClaimSpec, VGPURequest
from vgpu_api.v1alpha1.gpudevice import CorePolicy
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy, NumaPolicy, Phase, RequestMode
from vgpu_api.vendors import Kind, kind_of
from vgpu_api.vendors.model import ChoiceRule, NodeRule
from vgpu_operator.vendors.neighbours import OFFLINE, ONLINE, marks_of

if TYPE_CHECKING:
    from vgpu_api.config import ClusterConfig  # slow to load, and `kubectl vgpu get` needs none

ALL_CORES = 100
"""The percentage of compute that means exclusive use of a device."""
WHOLE_MEMORY = 100
"""The percentage of memory that means whole devices."""
LEAST_MEMORY_MIB = 1
"""The memory in a request for a MIG profile or a part, which has a fixed amount of its own."""


class PartDemand(NamedTuple):
    """The requested part of a device, for nodes that register the parts of their devices.

    Attributes:
        size: The size of the part; 0 for the smallest part that meets the rest of the request.
        memory: The least memory, in GiB or, if that would be far too much, in MiB
            (`vendors.parts.mib_of`); 0 for the memory of the request.
        name: The part that was found on a node; empty until then.
    """

    size: int = 0
    memory: int = 0
    name: str = ""


class KindDemand(NamedTuple):
    """A kind of devices (`DeviceKind`).

    Attributes:
        models: Model names, of which a device must have one; empty for any. They are as the driver
            spells them; likewise `exclude_models`.
        least_mib: The least allocatable memory.
        most_mib: The most allocatable memory, or None.
    """

    models: frozenset[str] = frozenset()
    exclude_models: frozenset[str] = frozenset()
    least_mib: int = 0
    most_mib: int | None = None


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """One container's request, for each of `count` distinct devices.

    Attributes:
        memory_mib: The MiB per device, or None if `memory_percent` is set. 0 means that the request
            takes a slot but no memory; a vendor's table can define that.
        memory_percent: 1 to 100 percent of each device's memory, or None if `memory_mib` is set.
        cores: The percent of a device's compute. 0 reserves nothing, 100 requests exclusive use.
        models: Lower-case substrings of model names; likewise `exclude_models`.
        kinds: The kinds of devices of which one must serve; empty for any.
        cpu_milli: The milli-CPU that the whole pod requests, if the policy Fragmentation needs it,
            else 0.
        choice: The vendor's rule that chooses which devices go together (`vendors.choices`).
        group_mutex: With the policy Mutex, exclude devices that are linked to one in use.
        one_device: All containers of a pod that request this vendor's devices get the same one.
        one_size: Exclude devices with parts of another size.
        numbered_cores: The number of cores per device, if cores are allocated by number.
        mig_profile: The only MIG profile that serves, or `any`. The amounts of the request are then
            the least possible, and those of the instance count.
        neighbours: Its marks, which limit who may share the device (`vendors.neighbours`); 0 for
            none.
        links_first: Prefer the node where the fewest links between devices are cut.
        part: The requested part. On each node, it determines the amounts
            (`placement.part_requests`).
        is_marked: True if the request has numbered cores, neighbours or a part.
        least_cores: The compute that a device must have free. It is 1 even if the request reserves
            none, so that the container gets some; 0 for an Online pod, which the plugin runs before
            all others.
    """

    name: str
    phase: Phase
    count: int
    memory_mib: int | None
    memory_percent: int | None
    cores: int
    vendor: str
    mode: RequestMode
    core_policy: CorePolicy
    priority: int | None
    models: tuple[str, ...] = ()
    exclude_models: tuple[str, ...] = ()
    uuids: frozenset[str] = frozenset()
    exclude_uuids: frozenset[str] = frozenset()
    kinds: tuple[KindDemand, ...] = ()
    cpu_milli: int = 0
    choice: ChoiceRule | None = None
    group_mutex: bool = False
    one_device: bool = False
    one_size: bool = False
    numbered_cores: int = 0
    mig_profile: str = ""
    neighbours: int = 0
    links_first: bool = False
    part: PartDemand | None = None
    is_marked: bool = field(init=False, repr=False, compare=False, default=False)
    least_cores: int = field(init=False, repr=False, compare=False, default=1)
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if self.numbered_cores or self.neighbours or self.part is not None:
            object.__setattr__(self, "is_marked", True)
        least_cores = 0 if self.neighbours & ONLINE else self.cores or 1
        object.__setattr__(self, "least_cores", least_cores)
        object.__setattr__(self, "_hash", _hash_of(self, _COMPARED_OF_REQUEST))

    def __hash__(self) -> int:
        return self._hash

    @property
    def least_mib(self) -> int:
        """Return the minimum MiB needed on a device; a percentage that rounds to 0 is refused."""
        return 0 if self.memory_mib == 0 else 1

    def memory_on(self, total_mib: int) -> int:
        """Return the MiB to charge on a device with `total_mib` of memory.

        In mode Exclusive there are no limits on the device, so all of its memory is charged, and
        the requested memory is only the least that the device must have.
        """
        if self.mode == "Exclusive":
            return max(total_mib, self.memory_mib or 0)
        if self.memory_mib is not None:
            return self.memory_mib
        return total_mib * (self.memory_percent or WHOLE_MEMORY) // 100


@dataclass(frozen=True, slots=True)
class Demand:
    """All requests of a claim, which are decided together, and the policies that apply.

    Attributes:
        node_policy: The claim's policy or, if `node_may_choose`, the configuration's, which a
            node's own policy overrides.
        device_policies: The claim's policies; if empty, the node's own policy applies, else the
            configuration's.
        by_labels: Use the policies in a node's labels instead of those in its annotations.
        weights: The weights of slots, cores and memory in a device's score.
        node_rule: The vendor's rule that ranks nodes, before usage is compared
            (`vendors.node_ranking`).
    """

    requests: tuple[RequestDemand, ...]
    node_policy: NodePolicy
    node_may_choose: bool = False
    device_policies: tuple[DevicePolicy, ...] = ()
    by_labels: bool = False
    numa: NumaPolicy = "None"
    weights: tuple[int, int, int] = (1, 1, 1)
    node_rule: NodeRule | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", _hash_of(self, _COMPARED_OF_DEMAND))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(
        cls,
        spec: VGPUClaimSpec,
        config: ClusterConfig,
        *,
        cpu_milli: int = 0,
        by_labels: bool = False,
    ) -> Demand:
        """Return the demand of a claim's spec, with the defaults that all dialects share.

        Source: HAMi v2.10.

        Args:
            spec: The claim's spec.
            config: The defaults.
            cpu_milli: The milli-CPU that its pod requests, if there is a pod. It is kept only where
                it affects the decision, so that equivalent demands are equal.
            by_labels: The pod uses ACK's names (`dialects.follows_labels`), so each node's labels
                name the preferred devices.
        """
        placement = spec.placement
        weights = placement.weights if placement is not None else None
        node_policy = (placement and placement.node) or config.scheduling.node_policy
        device_policies = tuple(placement.device) if placement and not by_labels else ()
        if "Fragmentation" not in (node_policy, *device_policies):
            cpu_milli = 0
        requests = tuple(_request(request, config, cpu_milli) for request in spec.requests)
        return cls(
            requests=requests,
            node_policy=node_policy,
            node_may_choose=placement is None or placement.node is None,
            device_policies=device_policies,
            by_labels=by_labels,
            numa=(placement and placement.numa) or "None",
            weights=(weights.slots, weights.cores, weights.memory) if weights else (1, 1, 1),
            node_rule=_node_rule(requests),
        )


_ANY_DEVICE = DeviceSelector()
_COMPARED_OF_REQUEST = tuple(part.name for part in fields(RequestDemand) if part.compare)
_COMPARED_OF_DEMAND = tuple(part.name for part in fields(Demand) if part.compare)


def _hash_of(value: RequestDemand | Demand, compared: tuple[str, ...]) -> int:
    """Compute the hash. The caller stores it, because many caches use demands as keys."""
    return hash(tuple([getattr(value, name) for name in compared]))


def _request(request: VGPURequest, config: ClusterConfig, cpu_milli: int) -> RequestDemand:
    selector = request.selector or _ANY_DEVICE
    vendor = request.vendor.lower()
    kind = None if vendor == "nvidia" else kind_of(vendor)
    is_counted = kind is not None and kind.counted
    memory_mib, memory_percent = (0, None) if is_counted else _memory(request, config)
    neighbours = 0 if kind is None else marks_of(request)
    return RequestDemand(
        name=request.name,
        phase=request.phase,
        count=request.count,
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=_cores(request, whole=memory_percent == WHOLE_MEMORY, config=config),
        vendor=vendor,
        mode=request.mode,
        core_policy=request.core_policy,
        priority=request.compute_priority,
        models=_patterns(selector.models),
        exclude_models=_patterns(selector.exclude_models),
        uuids=frozenset(selector.uuids),
        exclude_uuids=frozenset(selector.exclude_uuids),
        kinds=tuple(map(_kind, selector.kinds)),
        cpu_milli=cpu_milli,
        choice=None if kind is None else _choice(kind, request.cores, neighbours),
        group_mutex=kind is not None and kind.group_mutex,
        one_device=kind is not None and kind.one_device,
        one_size=kind is not None and kind.one_size,
        numbered_cores=0 if kind is None else _numbered_cores(kind, request.cores or 0),
        mig_profile=request.mig_profile or "",
        neighbours=neighbours,
        links_first=request.links_first,
        part=None if kind is None or not kind.in_parts else _part(request),
    )


def _kind(kind: DeviceKind) -> KindDemand:
    return KindDemand(
        frozenset(kind.model_names),
        frozenset(kind.exclude_model_names),
        0 if kind.min_memory is None else quantity.mib(kind.min_memory),
        None if kind.max_memory is None else quantity.mib(kind.max_memory),
    )


def _part(request: VGPURequest) -> PartDemand:
    return PartDemand(request.part_size or 0, request.part_memory or 0)


def _choice(kind: Kind, cores: int | None, neighbours: int) -> ChoiceRule | None:
    """Return the vendor's rule; if it has neighbours, only for requests for all compute."""
    if not neighbours:
        return kind.choice
    if neighbours & ONLINE:
        return "fewestOnline"
    return kind.choice if cores == ALL_CORES and not neighbours & OFFLINE else None


def _node_rule(requests: tuple[RequestDemand, ...]) -> NodeRule | None:
    """Return the rule that ranks nodes before usage does. Source: HAMi v2.10.0, MetaX sGPU."""
    marked = [request for request in requests if request.neighbours]
    if any(request.neighbours & ONLINE for request in marked):
        return "fewestOnline"
    is_about_links = any(each.links_first and each.cores >= ALL_CORES for each in marked)
    return "linksKept" if is_about_links else None


def _numbered_cores(kind: Kind, percent: int) -> int:
    each = 0 if kind.numbered_cores is None else kind.numbered_cores.each
    return each * percent // ALL_CORES


def _memory(request: VGPURequest, config: ClusterConfig) -> tuple[int | None, int | None]:
    """Return (MiB, percent), one of which is None: the size, the percentage, or the default."""
    if _names_no_amount(request):
        return LEAST_MEMORY_MIB, None
    memory_mib = request.memory_mib
    if memory_mib is not None:
        return memory_mib, None
    if request.memory_percent is not None:
        return None, min(request.memory_percent, WHOLE_MEMORY)
    if config.nvidia.default_memory > 0:
        return config.nvidia.default_memory, None
    return None, WHOLE_MEMORY


def _cores(request: VGPURequest, *, whole: bool, config: ClusterConfig) -> int:
    """Return the percent of compute; a whole device without `cores` means exclusive use."""
    if request.mode == "Exclusive":
        return ALL_CORES
    if request.cores is None and _names_no_amount(request):
        return 0
    if request.cores is not None:
        return min(request.cores, ALL_CORES)
    return ALL_CORES if whole else config.nvidia.default_cores


def _names_no_amount(request: VGPURequest) -> bool:
    """Return True if the request needs no memory: its instance or part has a fixed amount."""
    return request.mig_profile is not None or bool(request.part_size or request.part_memory)


def _patterns(written: list[str]) -> tuple[str, ...]:
    return tuple(pattern for text in written if (pattern := text.strip().lower()))
