"""Warns about parts of a pod that have no effect in this project.

HAMi's library reads these variables, and ACK and Volcano read these annotations and labels, but
nothing here does. Users would take silence for consent, so admission returns a warning, which
kubectl prints. Warnings also cover values in the wrong place: names of another vendor, a label that
should be an annotation, an amount without a count. kube-scheduler ignores our resources, so nothing
else would report them. Source: the getenv calls of HAMi-core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from vgpu_api import names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import VgpuError
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_api.vendors import NOT_SERVED, Kind, kind_of, kinds
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects import ack, hami, native, read, volcano
from vgpu_operator.dialects.containers import PodContainer, each_container, is_given
from vgpu_operator.dialects.hami_annotations import annotation_field
from vgpu_operator.dialects.moved import restored
from vgpu_operator.dialects.numa_spec import EXPECTED, numa_spec
from vgpu_operator.dialects.pod_demand import PodDemand
from vgpu_operator.dialects.pod_groups import named_groups
from vgpu_operator.dialects.reading import is_left_alone
from vgpu_operator.dialects.resource_claims import scheduler_entry

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
    "CUDA_MEM_LIMIT": "ask with the resource nvidia.com/gpumem",
    "CUDA_CORE_LIMIT": "ask with the resource nvidia.com/gpucores",
}
"""The recommended replacement, by variable."""

NPU_TEMPLATE = "huawei.com/npu-template"
"""Mentioned in a guide to HAMi, but no version of HAMi reads it."""

COSCHEDULING_LABELS = (names.COSCHEDULING_GROUP, names.COSCHEDULING_FORMER_GROUP)
"""Labels with which the Coscheduling scheduler plugin names a pod's group."""
_SET_BY_LIMIT_RANGE = re.compile(
    r"(?P<names>[^;:]+) (?P<kind>request|limit) for (?:init )?container (?P<container>[a-z0-9-]+)"
)
"""Source: mergeContainerResources in Kubernetes' plugin/pkg/admission/limitranger."""
_LARGEST_MIB = 256 << 10
"""More memory than any device has; a larger amount was meant in another unit."""

CHOOSING = (*names.HAMI_CHOICES, names.ANNOTATION_DEVICE_SELECTOR, names.ACK_NUMA_SPEC)
"""Annotations that select devices for pods that request resources."""
PREFERRING = (names.HAMI_NODE_POLICY, names.HAMI_DEVICE_POLICY, names.HAMI_DEVICE_WEIGHTS)
"""Those of them that only rank devices."""

OF_NODES = (names.ACK_NODE_SCHEDULE, names.ACK_NODE_PLACEMENT, names.HAMI_DEVICE_CORDON)
"""Names that have an effect only on a Node."""
OF_LABELS = (names.HAMI_WEBHOOK_LABEL, names.ACK_GPU_COUNT_LABEL)
"""Names that have an effect only as labels of a pod."""
_NVIDIAS = "nvidia"
_FULL = 100
_OF_INSTANCES = "a MIG instance has its own compute, which nothing else uses"


def without_effect(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return warnings for a pod that requests a GPU; none if the pod is invalid."""
    try:
        pod = read_pod(raw_pod)
        demand = None if is_left_alone(pod) else read(pod, config)
        if demand is None:
            return []
        pod = restored(pod, config)
        found = [*_metadata(pod, config), *_beside_a_claim(pod), *_out_of_place(pod)]
        found += [*_choosing_others(pod, demand, config), *_of_gangs(pod, raw_pod, config)]
        found += [*_of_neighbours(pod, demand), *_of_limit_ranges(pod, config)]
        found += [*_of_numa(pod), *_of_templates(pod), *_in_other_units(pod, demand)]
        return [*found, *_amounts(pod, config), *_variables(pod), *_switches(pod, demand)]
    except VgpuError:
        return []  # validation refuses the pod with a better message


def unanswered(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return warnings about other vendors' resources in a pod that requests no device.

    For a pod that does, `without_effect` returns the same warnings.

    Raises:
        Denied: The pod or its request is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
        if is_left_alone(pod) or read(pod, config) is not None:
            return []
    return [*_others_amounts(pod, config), *_not_served(pod, config), *_of_templates(pod)]


def _metadata(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Yield annotations and labels that only other schedulers or dialects use."""
    annotations, containers = pod.metadata.annotations, list(each_container(pod))
    if names.ACK_CPUSET in annotations:
        yield (
            f"{annotation_field(names.ACK_CPUSET)}: has no effect: the kubelet pins CPUs, with "
            "cpuManagerPolicy static and whole CPUs as requests and limits"
        )
    in_volcanos = any(volcano.applies(place.container, config) for place in containers)
    if names.VOLCANO_MODE in annotations and not in_volcanos:
        yield (
            f"{annotation_field(names.VOLCANO_MODE)}: has no effect: no container asks for "
            f"{config.volcano.resource_count_name}; write {names.NVIDIA_MODE}"
        )
    memory = config.aliyun.resource_memory_name
    spreads = any(
        ack.applies(place.container, config) and place.container.requested(memory) is not None
        for place in containers
    )
    if names.ACK_GPU_COUNT_LABEL in pod.metadata.labels and not spreads:
        yield (
            f"metadata.labels[{names.ACK_GPU_COUNT_LABEL}]: has no effect: it spreads {memory} "
            "over several GPUs, and no container asks for that"
        )


def _beside_a_claim(pod: Pod) -> Iterator[str]:
    """Yield annotations of other dialects on a pod whose claim decides everything."""
    why = ""
    if native.named_claim(pod) is not None:
        why = "the pod names a claim, whose requests and placement say what it gets"
    elif scheduler_entry(pod):
        why = "kube-scheduler chooses this pod's GPUs, by its ResourceClaim"
    for key in CHOOSING:
        if why and key in pod.metadata.annotations:
            yield f"{annotation_field(key)}: has no effect: {why}"


def _variables(pod: Pod) -> Iterator[str]:
    for place in each_container(pod):
        for variable in place.container.env:
            if variable.name in WITHOUT_EFFECT:
                path = place.env_path(variable.name)
                yield f"{path}: has no effect: {WITHOUT_EFFECT[variable.name]}"


def _switches(pod: Pod, demand: PodDemand) -> Iterator[str]:
    """Yield compute variables and priorities in containers that request no share of compute."""
    requests = {each.name: each for each in (() if demand.spec is None else demand.spec.requests)}
    for place in each_container(pod):
        control = place.container.env_value(names.ENV_DISABLE_CONTROL) or ""
        if control not in (names.TRUE | names.FALSE | {""}):
            path = place.env_path(names.ENV_DISABLE_CONTROL)
            yield f"{path}: has no effect: neither true nor false"
        request = requests.get(place.name)
        policy = (place.container.env_value(names.ENV_CORE_POLICY) or "").strip().lower()
        why = None if not policy else _why_no_policy(request, policy, demand)
        if why is not None:
            yield f"{place.env_path(names.ENV_CORE_POLICY)}: has no effect: {why}"
        if request is not None and request.mode == "MIG" and request.compute_priority is not None:
            resource = next(n for n in _named(place) if n.endswith("/priority"))
            yield f"{place.resource_path(resource)}: has no effect: {_OF_INSTANCES}"


def _why_no_policy(request: VGPURequest | None, policy: str, demand: PodDemand) -> str | None:
    """Return why a container's core policy has no effect, or None if it has."""
    if request is None:
        by_claim = "the claim's request has the corePolicy"
        return "the container asks for no GPU" if demand.native is None else by_claim
    if request.vendor != _NVIDIAS:
        return "the library limits NVIDIA's GPUs alone"
    if request.mode == "MIG":
        return _OF_INSTANCES
    if policy == "force" and not request.cores:
        return "the container asks for no share of compute, so there is no limit to enforce"
    return None


def _of_limit_ranges(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Yield resources that the pod got from a LimitRange and not from its author.

    A LimitRange with a `max` and no `default` gives every container the maximum.
    """
    written = pod.metadata.annotations.get(names.LIMIT_RANGER, "")
    if not written:
        return
    known = config.managed_resources()
    by_name = {place.name: place for place in each_container(pod)}
    for found in _SET_BY_LIMIT_RANGE.finditer(written):
        place = by_name.get(found["container"])
        if found["kind"] != "limit" or place is None:
            continue
        for name in found["names"].split(","):
            given = place.container.requested(name.strip())
            if name.strip() in known and given is not None:
                yield (
                    f"{place.resource_path(name.strip())}: {given} was given to container "
                    f"{place.name!r} by a LimitRange of the namespace, not by the pod: write 0 "
                    "where it needs none, or give the LimitRange a default of 0"
                )


def _of_numa(pod: Pod) -> Iterator[str]:
    """Yield keys of Alibaba's annotation that have no effect."""
    spec = numa_spec(pod)
    for key in () if spec is None else spec.unknown:
        yield f"{annotation_field(names.ACK_NUMA_SPEC)}: key {key[:63]!r} has no effect: {EXPECTED}"


def _of_templates(pod: Pod) -> Iterator[str]:
    if NPU_TEMPLATE in pod.metadata.annotations:
        yield (
            f"{annotation_field(NPU_TEMPLATE)}: has no effect: the memory that a container asks "
            "for, such as huawei.com/Ascend910B3-memory, chooses the template"
        )


def _in_other_units(pod: Pod, demand: PodDemand) -> Iterator[str]:
    """Yield amounts that no device has in the vendor's unit, because they were meant in MiB."""
    places = {place.name: place for place in each_container(pod)}
    for request in () if demand.spec is None else demand.spec.requests:
        kind = kind_of(request.vendor)
        if kind is None or kind.memory is None or kind.memory.unit_mib == 1:
            continue
        memory, place = kind.memory, places[request.name]
        if request.memory is not None and quantity.read_mib(request.memory) > _LARGEST_MIB:
            given = place.container.requested(memory.resource)
            gib = quantity.read_mib(request.memory) >> 10
            yield (
                f"{place.resource_path(memory.resource)}: {given} units of {memory.unit_mib} MiB "
                f"are {gib} GiB of each device: write a size with its unit, such as 8Gi, if MiB "
                "were meant"
            )


def _out_of_place(pod: Pod) -> Iterator[str]:
    """Yield annotations given as labels, labels given as annotations, and names meant for Nodes."""
    annotations, labels = pod.metadata.annotations, pod.metadata.labels
    for key in names.POD_ANNOTATIONS:
        if key in labels:
            yield f"metadata.labels[{key}]: has no effect: write it as an annotation"
    for key in OF_LABELS:
        if key in annotations:
            yield f"{annotation_field(key)}: has no effect: write it as a label"
    if names.LABEL_DISABLE_CONTROL in labels:
        field = f"metadata.labels[{names.LABEL_DISABLE_CONTROL}]"
        yield f"{field}: has no effect: it acts on a Namespace"
    for key in OF_NODES:
        if key in labels:
            yield f"metadata.labels[{key}]: has no effect: it acts on a Node"
        if key in annotations:
            yield f"{annotation_field(key)}: has no effect: it acts on a Node"


@lru_cache(maxsize=1)
def _readers_of_choice() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return, for each selecting annotation, the kinds that read it and their count resources.

    NVIDIA's count is omitted, because it depends on the configuration.
    """
    of_nvidia = set(names.HAMI_CHOICES) - {names.HAMI_NODE_POLICY, names.HAMI_DEVICE_POLICY}
    of_nvidia -= {
        names.HAMI_DEVICE_WEIGHTS,
        names.NVIDIA_NUMA_BIND,
    }  # these annotations apply to the devices of all vendors
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for kind in kinds():
        for key in _choices_of(kind):
            vendors, counts = found.get(key, ((), ()))
            found[key] = ((*vendors, kind.name), (*counts, kind.count))
    of_nvidia.add(names.ANNOTATION_DEVICE_SELECTOR)
    return found | dict.fromkeys(of_nvidia, ((_NVIDIAS,), ()))


def _choices_of(kind: Kind) -> frozenset[str]:
    chosen = (
        *kind.selection.model_dump().values(),
        *kind.unsupported.annotations,
        *kind.of_neighbours,
    )
    return frozenset(key for key in chosen if key is not None)


@lru_cache(maxsize=8)
def _count_of_amount(leave_alone: tuple[str, ...]) -> Mapping[str, str]:
    """Return the count resource that belongs to each amount of another vendor."""
    return {
        name: kind.count
        for kind in kinds()
        if kind.name not in leave_alone
        for name in (*kind.resources, *kind.unsupported.resources)
        if name not in kind.requested_by
    }


def _choosing_others(pod: Pod, demand: PodDemand, config: ClusterConfig) -> Iterator[str]:
    """Yield annotations that select devices of a kind that no container requests."""
    requested = (
        {_NVIDIAS} if demand.spec is None else {each.vendor for each in demand.spec.requests}
    )
    known = _readers_of_choice()
    for key in pod.metadata.annotations:
        if key not in known:
            continue
        vendors, counts = known[key]
        if requested.isdisjoint(vendors):
            count = counts[0] if counts else config.nvidia.resource_count_name
            like = " or the like" if len(counts) > 1 else ""
            yield f"{annotation_field(key)}: has no effect: no container asks for {count}{like}"


def _of_neighbours(pod: Pod, demand: PodDemand) -> Iterator[str]:
    """Yield policies, compute and links in requests for which they have no meaning."""
    for request in () if demand.spec is None else demand.spec.requests:
        kind = kind_of(request.vendor)
        if kind is None or kind.neighbours is None or kind.cores is None:
            continue
        of, annotations = kind.neighbours, pod.metadata.annotations
        (place,) = (each for each in each_container(pod) if each.name == request.name)
        if request.app_class == "Online":
            online = f"a pod with {of.app_class} goes before the others on its device"
            if of.qos_policy in annotations:
                yield f"{annotation_field(of.qos_policy)}: has no effect: {online}"
            if place.container.requested(kind.cores.resource) is not None:
                path = place.resource_path(kind.cores.resource)
                yield f"{path}: has no effect: {online} and reserves no compute"
        if request.links_first and request.cores != _FULL:
            yield (
                f"{annotation_field(of.links_first)}: has no effect: container {request.name!r} "
                "does not ask for all compute of its devices"
            )


def _of_gangs(pod: Pod, raw_pod: dict[str, Any], config: ClusterConfig) -> Iterator[str]:
    """Yield groups of pods that should start together, and that nothing starts so."""
    if config.scheduling.decides_first:
        yield from _of_gated_groups(pod, raw_pod, config)
        return
    scheduler = pod.spec.scheduler_name
    if scheduler not in {config.scheduling.scheduler_name, *names.SCHEDULER_ALIASES}:
        return
    by_itself = f"{scheduler} starts each pod by itself"
    if names.VOLCANO_GROUP in pod.metadata.annotations:
        yield (
            f"{annotation_field(names.VOLCANO_GROUP)}: has no effect: {by_itself}; with "
            f"schedulerName volcano Volcano starts the group together"
        )
    for key in (*COSCHEDULING_LABELS, names.COSCHEDULING_FIRST_GROUP):
        if key in pod.metadata.labels:
            yield f"metadata.labels[{key}]: has no effect: {by_itself}"
    # The operator follows the tries of kube-scheduler for `schedulingGroup`. The field
    # `workloadRef` was replaced by it in Kubernetes 1.36.
    if raw_pod["spec"].get("workloadRef"):
        yield f"spec.workloadRef: has no effect: {by_itself}"


def _of_gated_groups(pod: Pod, raw_pod: dict[str, Any], config: ClusterConfig) -> Iterator[str]:
    """Yield all groups but the one with which the pod starts, in Gate mode."""
    found = named_groups(pod, config)
    for each in found[1:]:
        if (each.kind, each.name) != (found[0].kind, found[0].name):
            yield f"{each.field}: has no effect: {found[0].field} names the pod's group"
    instead = f"name the group in {annotation_field(names.ANNOTATION_GROUP)}"
    if names.COSCHEDULING_FIRST_GROUP in pod.metadata.labels:
        key = names.COSCHEDULING_FIRST_GROUP
        yield f"metadata.labels[{key}]: has no effect: its PodGroups are not read; {instead}"
    if raw_pod["spec"].get("workloadRef"):
        yield f"spec.workloadRef: has no effect: Workloads are not read; {instead}"


def _amounts(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Yield amounts without a count, and amounts that another amount overrides."""
    yield from _others_amounts(pod, config)
    yield from _not_served(pod, config)
    for place in each_container(pod):
        priority = config.nvidia.resource_priority_name
        if place.container.requested(priority) is not None and not hami.applies(
            place.container, config
        ):
            yield (
                f"{place.resource_path(priority)}: has no effect: the container does not ask for "
                f"{config.nvidia.resource_count_name}"
            )
        nvidia, volcanos = config.nvidia, config.volcano
        yield from _percentage_beside(
            place, nvidia.resource_memory_name, nvidia.resource_memory_percentage_name
        )
        yield from _percentage_beside(
            place, volcanos.resource_memory_name, volcanos.resource_memory_percentage_name
        )


def _others_amounts(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Yield amounts of other vendors' devices without the count that requests them."""
    counts = _count_of_amount(config.vendors.leave_alone)
    for place in each_container(pod):
        for name in _named(place):
            count = counts.get(name)
            if count is not None and not is_given(place.container, count):
                yield (
                    f"{place.resource_path(name)}: has no effect: the container does not ask for "
                    f"{count}"
                )


def _not_served(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    """Yield devices from HAMi's documents that this project serves under no scheduler."""
    scheduler = pod.spec.scheduler_name
    is_ours = scheduler in {config.scheduling.scheduler_name, *names.SCHEDULER_ALIASES}
    by, instead = (
        (f"by {scheduler}", "leave the pod the scheduler of HAMi or of the vendor")
        if is_ours
        else ("by vgpu", "it waits where the vendor's plugin is not installed")
    )
    for place in each_container(pod):
        for name in _named(place):
            if name in NOT_SERVED:
                yield (
                    f"{place.resource_path(name)}: not served {by}: {NOT_SERVED[name]}; {instead}"
                )


def _named(place: PodContainer) -> Iterator[str]:
    """Yield the resources of a container without duplicates."""
    resources = place.container.resources
    yield from dict.fromkeys((*resources.limits, *resources.requests))


def _percentage_beside(place: PodContainer, amount: str, percentage: str) -> Iterator[str]:
    """Yield a memory percentage next to an amount. 100 % still requests exclusive use."""
    if place.container.requested(percentage) is None or not is_given(place.container, amount):
        return
    if place.number(percentage, "a whole percentage, 0 to 100") != _FULL:
        yield f"{place.resource_path(percentage)}: has no effect: {amount} is given too, and wins"
