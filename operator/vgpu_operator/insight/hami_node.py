"""Decides whether a node can be taken over from HAMi, with the pods that HAMi still runs there.

Nothing is changed here. Each obstacle is a sentence that names the object and says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import NodeSettings, NvidiaConfig
from vgpu_api.core import Node, Pod
from vgpu_api.effective import Use
from vgpu_api.errors import BadInput
from vgpu_operator.insight.hami_records import (
    RecordedPod,
    RegisteredGpu,
    is_recorded,
    read_record,
    read_register,
)


@dataclass(frozen=True, slots=True)
class HamiNode:
    """A node of HAMi's, as it would be taken over.

    Attributes:
        name: The node.
        gpus: Its GPUs in HAMi's register; none if that cannot be read.
        pods: HAMi's pods that run there and can be counted.
        starting: HAMi's pods that are still being given their devices.
        obstacles: Why it cannot be taken over now; none if it can.
    """

    name: str
    gpus: Sequence[RegisteredGpu]
    pods: Sequence[RecordedPod]
    starting: Sequence[RecordedPod]
    obstacles: Sequence[str]


@dataclass(frozen=True, slots=True)
class BothConfigs:
    """HAMi's configuration and ours, in our terms."""

    hami: ClusterConfig
    ours: ClusterConfig

    @property
    def count_resource(self) -> str:
        """Return the resource with which pods ask HAMi for a number of GPUs."""
        return self.hami.nvidia.resource_count_name


def judge(node: Node, pods: Iterable[Pod], configs: BothConfigs) -> HamiNode:
    """Return how a node would be taken over.

    Args:
        node: The node.
        pods: All pods that are bound to it.
        configs: Both configurations.
    """
    obstacles: list[str] = []
    gpus: Sequence[RegisteredGpu] = ()
    try:
        gpus = read_register(node.metadata.annotations)
    except BadInput as error:
        obstacles.append(f"node {node.metadata.name}: {error}")
    recorded: list[RecordedPod] = []
    starting: list[RecordedPod] = []
    for pod in pods:
        if pod.is_terminal:
            continue
        try:
            found = _recorded(pod, configs.count_resource)
        except BadInput as error:
            obstacles.append(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}")
            continue
        if found is not None:
            (starting if found.is_starting else recorded).append(found)
    if gpus:
        obstacles += _of_gpus(gpus, node.metadata.name)
        obstacles += _not_fitting(node, gpus, [*recorded, *starting], configs)
    return HamiNode(node.metadata.name, gpus, recorded, starting, obstacles)


def _recorded(pod: Pod, count_resource: str) -> RecordedPod | None:
    """Return the pod with what it uses; None if it uses nothing of HAMi's.

    Raises:
        BadInput: It uses GPUs, and how much cannot be told.
    """
    if is_recorded(pod):
        return read_record(pod, count_resource=count_resource)
    if pod.metadata.labels.get(names.LABEL_ADMITTED) == names.ADMITTED:
        return None
    asks = any(
        str(container.requested(count_resource) or 0) != "0"
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    )
    if asks:
        raise BadInput.required(
            f"metadata.annotations[{names.HAMI_DEVICES_ALLOCATED}]",
            f"the pod asks for {count_resource}, and HAMi has not recorded which GPUs it uses: "
            "wait until it ends, or delete it",
        )
    return None


def _of_gpus(gpus: Sequence[RegisteredGpu], node: str) -> Iterator[str]:
    for gpu in gpus:
        if not gpu.is_shared:
            yield (
                f"node {node}: GPU {gpu.uuid} is in HAMi's mode {gpu.mode}: end its pods, set "
                "operatingmode hami-core for the node in HAMi's config.json, and let its device "
                "plugin register the node again"
            )


def _not_fitting(
    node: Node,
    gpus: Sequence[RegisteredGpu],
    pods: Sequence[RecordedPod],
    configs: BothConfigs,
) -> Iterator[str]:
    """Yield a sentence for each GPU whose pods use more than we would allocate."""
    name, labels = node.metadata.name, node.metadata.labels
    hamis, ours = configs.hami.on_node(name, labels).nvidia, configs.ours.on_node(name, labels)
    used, users = used_by(pods)
    registered = {gpu.uuid: gpu for gpu in gpus}
    for uuid in sorted(used.keys() - registered.keys()):
        yield f"pod {users[uuid][0]}: uses GPU {uuid}, which node {name} has not registered"
    for uuid, gpu in registered.items():
        if uuid in used:
            yield from _of_one(gpu, used[uuid], users[uuid], hamis, ours)


def _of_one(
    gpu: RegisteredGpu,
    use: Use,
    users: Sequence[str],
    hamis: NvidiaConfig,
    ours: NodeSettings,
) -> Iterator[str]:
    there = f"GPU {gpu.uuid}"
    whose = f"(pods {', '.join(users)})"
    if ours.leaves_out(gpu.uuid, gpu.index):
        yield f"{there} is used {whose}, and filterDevices of our configuration leaves it out"
        return
    if use.memory_mib > gpu.memory_mib:
        yield (
            f"{there}: the records of its pods add up to {use.memory_mib} MiB, and HAMi gives "
            f"away {gpu.memory_mib} MiB {whose}"
        )
        return
    memory = memory_of(gpu, hamis, ours.nvidia)
    if use.memory_mib > memory:
        yield (
            f"{there} has {memory} MiB, and HAMi's deviceMemoryScaling of "
            f"{hamis.device_memory_scaling:g} has let its pods ask for {use.memory_mib} MiB "
            f"{whose}: end some, or set nvidia.deviceMemoryScaling in our configuration"
        )
    cores = int(100 * Fraction(str(ours.nvidia.device_core_scaling)))
    if use.cores > cores:
        yield (
            f"{there}: its pods have {use.cores} % of the compute, and we give away {cores} % "
            f"{whose}: end some, or set nvidia.deviceCoreScaling in our configuration"
        )
    if use.slots > ours.nvidia.device_split_count:
        yield (
            f"{there}: {use.slots} containers share it, and we let "
            f"{ours.nvidia.device_split_count} share a GPU {whose}: end some, or set "
            "nvidia.deviceSplitCount in our configuration"
        )


def memory_of(gpu: RegisteredGpu, hamis: NvidiaConfig, ours: NvidiaConfig) -> int:
    """Return the allocatable MiB of a GPU under our configuration, from HAMi's figure."""
    real = Fraction(gpu.memory_mib) / Fraction(str(hamis.device_memory_scaling))
    return int(real * Fraction(str(ours.device_memory_scaling)))


def used_by(
    pods: Sequence[RecordedPod],
) -> tuple[Mapping[str, Use], Mapping[str, Sequence[str]]]:
    """Return the amounts in use and the places of the pods that use them, by GPU."""
    used: dict[str, Use] = {}
    users: dict[str, Counter[str]] = {}
    for pod in pods:
        for devices in pod.containers.values():
            for device in devices:
                amount = Use(device.memory_mib, device.cores, 1)
                used[device.uuid] = used.get(device.uuid, Use()) + amount
                users.setdefault(device.uuid, Counter())[pod.place] += 1
    return used, {uuid: list(places) for uuid, places in users.items()}
