"""Objects for tests, written as sentences: `a_claim(requests=[a_request(memory="8Gi")])`.

Each builder returns a valid object with defaults that suit most tests, so a test only names the
fields it is about. Sizes are in MiB unless they are Kubernetes quantities (strings).
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vgpu_api import names
from vgpu_api.conditions import HEALTHY, READY
from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.core import (
    Container,
    Node,
    Pod,
    PodGroup,
    PodSpec,
    PodStatus,
    Taint,
    Toleration,
)
from vgpu_api.core.node import NodeSpec, NodeStatus
from vgpu_api.core.pod import Affinity, ResourceRequirements, SchedulingGroup
from vgpu_api.effective import Use
from vgpu_api.names import (
    HAMI_DEVICE_CORDON,
    HAMI_DEVICE_POLICY,
    HAMI_NODE_POLICY,
    device_object_name,
)
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import (
    AllocatedDevice,
    Allocation,
    Amount,
    Condition,
    GPUDevice,
    GPUDeviceSpec,
    GPUDeviceStatus,
    Metadata,
    Placement,
    VGPUClaim,
    VGPUClaimSpec,
    VGPUClaimStatus,
    VGPURequest,
)
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_api.v1alpha1.gpudevice import DeviceMetadata, DeviceMode, Link, MigStatus
from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement.columns import DeviceFacts, NodeState
from vgpu_operator.placement.fleet import Fleet
from vgpu_operator.placement.mig_geometry import Offer, Profile, geometry
from vgpu_operator.placement.target_workload import Mix, type_of
from vgpu_operator.vendors.parts import Part

NODE = "node-1"
GATE = ClusterConfig(scheduling=SchedulingConfig(mode="Gate"))
"""The configuration of a cluster whose scheduler calls no extender."""
CLAIMS = ClusterConfig(scheduling=SchedulingConfig(mode="Claims"))
"""The configuration of a cluster whose kube-scheduler gets allocated ResourceClaims."""
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "10", "nvidia.com/gpu": "20"}
"""The allocatable resources of a node, which Gate mode checks."""
T4_MIB = 16_384


# The API's objects.


def a_device(
    *,
    uuid: str = "GPU-0",
    node: str = NODE,
    name: str | None = None,
    index: int = 0,
    memory_mib: int = T4_MIB,
    cores: int = 100,
    slots: int | None = None,
    vendor: str = "nvidia",
    model: str = "Tesla T4",
    numa: int | None = 0,
    mode: DeviceMode = "Shared",
    cordoned: bool = False,
    healthy: bool = True,
    ready: bool = True,
    links: Mapping[str, int] | None = None,
    mig: MigStatus | None = None,
    resource_version: int = 1,
) -> GPUDevice:
    """Return a GPUDevice as its node's agent publishes it, by default with 16 GiB and 10 slots."""
    amount = Amount(memory=format_mib(memory_mib), cores=cores, slots=slots or 0)
    return GPUDevice(
        metadata=DeviceMetadata(
            name=name or device_object_name(uuid), resource_version=str(resource_version)
        ),
        spec=GPUDeviceSpec(node_name=node, cordoned=cordoned, mode=mode, slots=slots),
        status=GPUDeviceStatus(
            vendor=vendor,
            index=index,
            uuid=uuid,
            model=model,
            numa_node=numa,
            links=[Link(peer=peer, score=score) for peer, score in (links or {}).items()],
            mig=mig,
            capacity=amount,
            allocatable=amount,
            conditions=[
                Condition(type=READY, status="True" if ready else "False"),
                Condition(type=HEALTHY, status="True" if healthy else "False"),
            ],
        ),
    )


def a_node(
    name: str = NODE,
    *,
    uid: str | None = None,
    ready: bool = True,
    unschedulable: bool = False,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Taint] = (),
    cordoned_uuids: Iterable[str] = (),
    device_policy: str = "",
    node_policy: str = "",
    allocatable: Mapping[str, str] | None = None,
    resource_version: int = 1,
) -> Node:
    """Return a node that is ready and takes pods."""
    annotations = {
        HAMI_DEVICE_CORDON: ",".join(cordoned_uuids),
        HAMI_DEVICE_POLICY: device_policy,
        HAMI_NODE_POLICY: node_policy,
    }
    return Node(
        metadata=Metadata(
            name=name,
            uid=uid or f"uid-of-{name}",
            resource_version=str(resource_version),
            labels=dict(labels or {}),
            annotations={key: value for key, value in annotations.items() if value},
        ),
        spec=NodeSpec(unschedulable=unschedulable, taints=list(taints)),
        status=NodeStatus(
            conditions=[Condition(type="Ready", status="True" if ready else "False")],
            allocatable=dict(allocatable or {}),
        ),
    )


def a_request(**fields: Any) -> VGPURequest:
    """Return a request; the arguments are the API's fields in snake_case."""
    return VGPURequest(**fields)


def a_spec(requests: Sequence[VGPURequest] | None = None, **fields: Any) -> VGPUClaimSpec:
    """Return a claim's spec, by default for one device with 1 GiB; `placement` may be a dict."""
    placement = fields.pop("placement", None)
    if isinstance(placement, Mapping):
        placement = Placement(**placement)
    return VGPUClaimSpec(
        requests=list(requests) if requests is not None else [a_request(memory="1Gi")],
        placement=placement,
        **fields,
    )


def an_allocated_device(
    *,
    uuid: str = "GPU-0",
    request: str = "",
    index: int = 0,
    memory_mib: int = 1024,
    cores: int = 0,
    of_mib: int = 0,
) -> AllocatedDevice:
    """Return a device in an allocation.

    If the request asked for a percentage of memory, `of_mib` is the memory of the whole device.
    """
    return AllocatedDevice(
        request=request,
        name=device_object_name(uuid),
        uuid=uuid,
        index=index,
        memory=format_mib(memory_mib),
        cores=cores,
        device_memory=format_mib(of_mib) if of_mib else None,
    )


def an_allocation(
    *devices: AllocatedDevice,
    node: str = NODE,
    number: int = 0,
) -> Allocation:
    """Return the `number`th allocation of a claim, by default with a part of device GPU-0."""
    return Allocation(
        node_name=node,
        id=allocation_id(number),
        devices=list(devices) or [an_allocated_device()],
        allocated_time="2026-01-01T00:00:00.000000Z",
    )


def allocation_id(number: int = 0) -> str:
    """Return a UUID made from a number."""
    return str(uuids.UUID(int=number))


def a_claim(
    name: str = "claim-1",
    *,
    namespace: str = "default",
    uid: str | None = None,
    resource_version: int = 1,
    generation: int = 1,
    requests: Sequence[VGPURequest] | None = None,
    allocation: Allocation | None = None,
    status: VGPUClaimStatus | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> VGPUClaim:
    """Return a claim; `spec` and `metadata` are further fields of these parts."""
    return VGPUClaim(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-of-{name}",
            resource_version=str(resource_version),
            generation=generation,
            **(metadata or {}),
        ),
        spec=a_spec(requests, **spec),
        status=status or VGPUClaimStatus(allocation=allocation, conditions=[]),
    )


def a_container(
    name: str = "main",
    *,
    limits: Mapping[str, str | int] | None = None,
    requests: Mapping[str, str | int] | None = None,
    **fields: Any,
) -> Container:
    """Return a container with resource limits, and with requests if they differ."""
    return Container(
        name=name,
        resources=ResourceRequirements(
            limits=dict(limits or {}),
            requests=dict(limits or {}) if requests is None else dict(requests),
        ),
        **fields,
    )


def a_pod(
    name: str = "pod-1",
    *,
    namespace: str = "default",
    uid: str | None = None,
    resource_version: int = 1,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    containers: Sequence[Container] | None = None,
    init_containers: Sequence[Container] = (),
    node: str = "",
    phase: str = "Pending",
    scheduler: str = "vgpu-scheduler",
    node_selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Toleration] = (),
    deletion_timestamp: str | None = None,
    owners: Iterable[OwnerReference] = (),
    resources: ResourceRequirements | None = None,
    overhead: Mapping[str, str] | None = None,
    affinity: Affinity | None = None,
    priority: int | None = None,
    volumes: Iterable[Mapping[str, Any]] = (),
    group: str = "",
    admitted: bool = True,
) -> Pod:
    """Return a pod that is not bound yet, by default with one container without a GPU.

    `admitted` gives it the mark that admission writes on pods that ask for a GPU.
    """
    marks = {names.LABEL_ADMITTED: names.ADMITTED} if admitted else {}
    return Pod(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-of-{name}",
            resource_version=str(resource_version),
            annotations=dict(annotations or {}),
            labels=marks | dict(labels or {}),
            deletion_timestamp=deletion_timestamp,
            owner_references=list(owners),
        ),
        spec=PodSpec(
            node_name=node,
            scheduler_name=scheduler,
            containers=list(containers) if containers is not None else [a_container()],
            init_containers=list(init_containers),
            node_selector=dict(node_selector or {}),
            tolerations=list(tolerations),
            resources=resources,
            overhead=dict(overhead or {}),
            affinity=affinity,
            priority=priority,
            volumes=[dict(volume) for volume in volumes],
            scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
        ),
        status=PodStatus(phase=phase),
    )


def an_agent_pod(
    node: str, *, ready: bool = True, name: str = "", mark: str = "", resource_version: int = 1
) -> Pod:
    """Return the pod of a node's agent."""
    pod = a_pod(
        name or f"agent-of-{node}",
        namespace=names.AGENT_NAMESPACE,
        labels=names.AGENT_LABELS,
        annotations={names.ANNOTATION_REQUEUE: mark} if mark else {},
        node=node,
        phase="Running",
        admitted=False,
        resource_version=resource_version,
    )
    is_ready = Condition(type="Ready", status="True" if ready else "False")
    return pod.model_copy(update={"status": PodStatus(phase="Running", conditions=[is_ready])})


def a_pod_group(
    name: str, *, least: int | None = None, namespace: str = "default", **spec: Any
) -> PodGroup:
    """Return a PodGroup: a gang with this minimum number of pods, or a group without a minimum."""
    policy = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    metadata = {"name": name, "namespace": namespace}
    return PodGroup.model_validate(
        {"metadata": metadata, "spec": {"schedulingPolicy": policy, **spec}}
    )


# Placement's values.


def an_ask(
    *requests: VGPURequest,
    config: ClusterConfig | None = None,
    cpu_milli: int = 0,
    **placement: Any,
) -> Demand:
    """Return the demand of requests with defaults applied; `placement` is as in a claim's spec."""
    spec = a_spec(requests or None, placement=placement or None)
    return Demand.of(spec, config or ClusterConfig(), cpu_milli=cpu_milli)


def device_facts(
    uuid: str = "GPU-0",
    *,
    node: str = NODE,
    index: int = 0,
    vendor: str = "nvidia",
    model: str = "tesla t4",
    mode: DeviceMode = "Shared",
    numa: int = 0,
    slots: int = 10,
    cores: int = 100,
    memory_mib: int = T4_MIB,
    healthy: bool = True,
    cordoned: bool = False,
    duplicate: bool = False,
    links: Mapping[str, int] | None = None,
    product: str = "",
    profiles: tuple[Profile, ...] = (),
    parts: tuple[Part, ...] = (),
) -> DeviceFacts:
    """Return a device as placement sees it."""
    return DeviceFacts(
        name=device_object_name(uuid),
        node=node,
        uuid=uuid,
        index=index,
        vendor=vendor,
        model=model,
        mode=mode,
        numa=numa,
        slots=slots,
        cores=cores,
        memory_mib=memory_mib,
        healthy=healthy and not duplicate,
        duplicate=duplicate,
        cordoned=cordoned,
        links=dict(sorted((links or {}).items())),
        product=product,
        profiles=profiles if mode == "MIG" else (),
        parts=parts,
    )


def a_geometry(*offers: tuple[str, int, int, int, Iterable[int]]) -> tuple[Profile, ...]:
    """Return MIG profiles from tuples of name, MiB, cores, memory slices and possible starts."""
    return geometry(
        Offer(name, memory, cores, int(name[0]), tuple((start, size) for start in starts))
        for name, memory, cores, size, starts in offers
    )


def bits(slices: Iterable[int]) -> int:
    """Return slices as the bit mask that columns keep."""
    return sum(1 << number for number in set(slices))


def give_mix(
    mix: Mix, types: Iterable[tuple[float, RequestDemand]], *, without_devices: float = 0.0
) -> None:
    """Replace the observed mix by these typical requests and their frequencies."""
    mix.set_types(tuple((weight, type_of(request)) for weight, request in types), without_devices)


def some_columns(
    *devices: DeviceFacts,
    used: Mapping[str, Use] | None = None,
    states: Mapping[str, NodeState] | None = None,
    slices: Mapping[str, Iterable[int]] | None = None,
) -> Fleet:
    """Return a fleet of these devices.

    `used` and `slices` are by UUID; `states` is for nodes that are not simply ready.
    """
    columns = Fleet()
    for device in devices:
        number = columns.put_device(device)
        use = (used or {}).get(device.uuid, Use())
        columns.set_used(
            number,
            slots=use.slots,
            cores=use.cores,
            memory=use.memory_mib,
            slices=bits((slices or {}).get(device.uuid, ())),
        )
    for node in dict.fromkeys(device.node for device in devices):
        columns.put_node(node, (states or {}).get(node, NodeState(ready=True)))
    return columns


def use_of(ledger: Ledger, uuid: str) -> Use:
    """Return the amounts of a device that claims hold, including assumptions."""
    return sum((holder.use for holder in ledger.holders(uuid)), Use())
