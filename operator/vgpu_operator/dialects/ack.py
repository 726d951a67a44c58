"""Alibaba ACK's dialect: memory in GiB, compute in percent, or a number of devices.

The names come from Alibaba's container service. A node label defines which kinds of requests the
node accepts. Memory and compute are totals of the container, so several devices share them evenly.
"""

from __future__ import annotations

import re

from vgpu_api import names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Allocation, Placement, VGPURequest
from vgpu_operator.dialects import hami, hami_annotations
from vgpu_operator.dialects.containers import (
    PodContainer,
    ResourceDialect,
    each_container,
    is_given,
)

GIB_IN_MIB = 1024
MAX_GIB = hami.MAX_MEMORY_MIB // GIB_IN_MIB
ALL_CORES = 100
SHARED = frozenset({"cgpu", "share", "mig", "mps"})
ISOLATED = frozenset({"core_mem", "mig", "mps"})
WHOLE = frozenset({"default", "topology"})
KINDS = SHARED | ISOLATED | WHOLE
"""The values of `ack.node.gpu.schedule`.

A node labelled `mig` allocates MIG instances on devices in MIG mode. `mps` needs no MPS daemon,
because the library enforces both limits (docs/design/memory-accounting.md).
"""

_COUNT = re.compile(r"[0-9]{1,3}")


def resource_names(config: ClusterConfig) -> tuple[str, ...]:
    """Return the resources of this dialect, memory first."""
    aliyun = config.aliyun
    return (
        aliyun.resource_memory_name,
        aliyun.resource_core_name,
        aliyun.resource_count_name,
    )


def applies(container: Container, config: ClusterConfig) -> bool:
    """Return True if the container uses this dialect. An amount of 0 requests nothing."""
    return any(is_given(container, name) for name in resource_names(config))


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """Return the request of one container.

    The pod's label `aliyun.com/gpu-count` spreads the memory over several devices, as Alibaba
    documents.

    Raises:
        BadInput: An amount is invalid, or amounts contradict each other.
    """
    memory_name, core_name, count_name = resource_names(config)
    if place.container.requested(count_name) is not None and not is_given(
        place.container, count_name
    ):
        raise place.bad(count_name, "1 or more; leave it out where it has no meaning")
    gib = _amount(place, memory_name, "a whole number of GiB", MAX_GIB)
    cores = _amount(place, core_name, "a whole percentage, 1 to 100", ALL_CORES)
    labelled = None if gib is None else _labelled_count(pod)
    devices = labelled or 1
    if gib is None or config.aliyun.gpu_count_means == "cards":
        number = f"a number of GPUs, 1 to {hami.MAX_COUNT}"
        written = _amount(place, count_name, number, hami.MAX_COUNT)
        if labelled is not None and written not in (None, labelled):
            raise place.bad(
                count_name, f"{labelled}, the value of the label {names.ACK_GPU_COUNT_LABEL}"
            )
        devices = written or devices
    else:
        percent = _amount(place, count_name, "a percentage of a GPU, 1 to 100", ALL_CORES)
        if percent is not None and cores is not None:
            raise BadInput.forbidden(
                place.resource_path(count_name), f"{core_name} has the same meaning"
            )
        cores = percent if cores is None else cores
    if gib is None and cores is not None:
        raise BadInput(
            field=place.resource_path(core_name),
            value=place.container.requested(core_name),
            detail=f"requires {memory_name}",
        )
    # In ACK the amounts are those of the container; ours are those of each device.
    memory_mib = None if gib is None else gib * GIB_IN_MIB // devices
    if cores is not None and cores < devices:
        # A share of 0 % would mean that the compute is not limited at all.
        raise place.bad(core_name, f"at least 1 % for each of {devices} GPUs")
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        count=devices,
        memory=None if memory_mib is None else quantity.format_mib(memory_mib),
        cores=ALL_CORES if memory_mib is None else (cores or 0) // devices,
        mode=hami_annotations.mode(pod),
        core_policy=hami.core_policy(place, config),
        selector=hami_annotations.selector(pod),
    )


def placement(pod: Pod) -> Placement | None:
    """Return the placement. As in ACK, devices are filled one by one unless the pod has a policy.

    Raises:
        BadInput: A policy is unknown.
    """
    written = hami_annotations.placement(pod) or Placement()
    return Placement(
        node=written.node,
        device=written.device or ["Binpack"],
        numa=written.numa,
        weights=written.weights,
    )


def bind_records(
    pod: Pod, allocation: Allocation, config: ClusterConfig, *, device_mib: int, unix_time: int
) -> dict[str, str]:
    """Return ACK's records for a pod that requests memory of one device; none for other pods.

    Source: AliyunContainerService/gpushare-scheduler-extender, which has no format for several
    devices.

    Args:
        pod: The pod that is being bound.
        allocation: Its devices.
        config: The names of resources.
        device_mib: The memory of the first device, in MiB.
        unix_time: The time of the allocation in seconds since 1970.
    """
    memory_name = config.aliyun.resource_memory_name
    requested = [
        _amount(place, memory_name, "a whole number of GiB", MAX_GIB) or 0
        for place in each_container(pod)
        if place.phase == "App" and applies(place.container, config)
    ]
    indexes = {device.index for device in allocation.devices}
    if not sum(requested) or len(indexes) != 1:
        return {}
    return {
        names.ACK_RECORD_INDEX: str(indexes.pop()),
        names.ACK_RECORD_POD: str(sum(requested)),
        names.ACK_RECORD_DEVICE: str(device_mib // GIB_IN_MIB),
        names.ACK_RECORD_ASSIGNED: "true",
        names.ACK_RECORD_TIME: f"{unix_time}000000000",
    }


def node_kinds(pod: Pod, config: ClusterConfig) -> frozenset[str] | None:
    """Return the values of the node label `ack.node.gpu.schedule` that fit this pod.

    None means that the pod does not use this dialect, so the label does not matter. A node without
    the label accepts every pod.
    """
    memory_name, core_name, count_name = resource_names(config)
    kinds: frozenset[str] | None = None
    for place in each_container(pod):
        container = place.container
        if not applies(container, config):
            continue
        if not is_given(container, memory_name):
            kind = WHOLE
        else:
            means_devices = config.aliyun.gpu_count_means == "cards"
            percent = is_given(container, core_name) or (
                not means_devices and is_given(container, count_name)
            )
            kind = ISOLATED if percent else SHARED
        kinds = kind if kinds is None else kinds & kind
    return kinds


def _labelled_count(pod: Pod) -> int | None:
    """Return the number of devices in the pod's label, or None without the label."""
    written = pod.metadata.labels.get(names.ACK_GPU_COUNT_LABEL)
    if written is None:
        return None
    if not _COUNT.fullmatch(written) or not 1 <= int(written) <= hami.MAX_COUNT:
        raise BadInput(
            field=f"metadata.labels[{names.ACK_GPU_COUNT_LABEL}]",
            value=written,
            expected=f"a number of GPUs, 1 to {hami.MAX_COUNT}",
        )
    return int(written)


def _amount(place: PodContainer, name: str, expected: str, most: int) -> int | None:
    """Return a whole number up to `most`, or None if it is absent or 0.

    The API server may rewrite a memory amount with a binary suffix. Such an amount is in bytes.
    """
    given, number = place.container.requested(name), place.number(name, expected)
    if given is None or number is None:
        return None
    if quantity.has_binary_suffix(given):
        number /= quantity.MIB * GIB_IN_MIB
    return place.whole(name, number, 0, most, expected) or None


DIALECT = ResourceDialect(
    applies=applies,
    request=request,
    placement=placement,
    resource_names=resource_names,
    in_slots=False,
)
