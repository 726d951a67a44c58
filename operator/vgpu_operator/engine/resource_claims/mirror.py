"""Repeats in a VGPUClaim what kube-scheduler has allocated in a ResourceClaim.

On nodes with the label `vgpu.dev/allocator: Scheduler` kube-scheduler allocates. The operator
decides nothing there: as soon as a pod is bound, its VGPUClaim gets the devices and the amounts
that its ResourceClaim shows. From then on all is as for other claims: the agent enforces what the
VGPUClaim says, and frees it. kube-scheduler frees a device earlier than its agent does if a pod is
deleted by force, so the VGPUClaim waits until the ledger has room. The agent prepares no container
before that.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_api import dra, names, quantity
from vgpu_api.core import ResourceClaim
from vgpu_api.core.resource_claim import DeviceResult
from vgpu_api.effective import effective_use
from vgpu_api.errors import QuantityError
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, GPUDevice, VGPUClaimSpec, VGPURequest
from vgpu_client.clock import rfc3339
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.resource_claims.known import resource_claim_of
from vgpu_operator.engine.resource_claims.named import requests_for
from vgpu_operator.engine.scheduling.places import take_as_given
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import refusal_of, spec_for
from vgpu_operator.engine.state import State

_MEMORY, _CORES = "memory", "cores"


def mirror(state: State, pod: GPUPod) -> None:
    """Have the claim of a bound pod written as its ResourceClaim says, or record why it cannot.

    A refusal is judged again every second: other claims may end.
    """
    if state.reservations.of_pod(pod.uid) is not None:
        return
    claim, found = state.cache.claim(pod.claim), spec_for(state, pod)
    if claim is not None and not isinstance(found, Refusal):
        found = refusal_of(state, claim, pod) or found
    allocation = found if isinstance(found, Refusal) else _allocation(state, pod, found)
    if isinstance(found, Refusal) or isinstance(allocation, Refusal):
        assert isinstance(allocation, Refusal)
        state.pods.blocked[pod.uid] = allocation
        state.gates.waiting[pod.uid] = None
        state.claims.look_at(pod.claim)
        return
    state.pods.blocked.pop(pod.uid, None)
    state.gates.waiting.pop(pod.uid, None)
    take_as_given(state, pod, found, allocation)


def _allocation(state: State, pod: GPUPod, spec: VGPUClaimSpec) -> Allocation | Refusal:
    """Return the allocation that the pod's ResourceClaim shows, or why it is not repeated."""
    node = state.cache.nodes.get(pod.pod.spec.node_name)
    if node is None:
        return Refusal(Reason.NODE_NOT_READY, f"node {pod.pod.spec.node_name} is not known")
    if node.metadata.labels.get(names.LABEL_ALLOCATOR) != names.ALLOCATOR_SCHEDULER:
        text = (
            f"kube-scheduler has allocated GPUs of node {node.metadata.name}, which lacks the "
            f"label {names.LABEL_ALLOCATOR}: {names.ALLOCATOR_SCHEDULER}, so they are not given to "
            "the pod; label the node, or create the pod anew"
        )
        return Refusal(Reason.NOT_ALLOCATED_HERE, text)
    claim = state.cache.resource_claims.get(resource_claim_of(pod))
    if claim is None or not claim.results:
        text = f"ResourceClaim {pod.resource_claim or 'of the pod'} is not allocated"
        return Refusal(Reason.CLAIM_MISSING, text)
    users = [each.uid for each in claim.status.reserved_for]
    if users != [pod.uid]:
        text = (
            f"ResourceClaim {claim.metadata.name} is reserved for {len(users)} pods, and serves "
            "one; name a ResourceClaimTemplate, and each pod gets a claim of its own"
        )
        return Refusal(Reason.CLAIM_IN_USE, text)
    devices = _devices(state, pod, spec, claim)
    if isinstance(devices, Refusal):
        return devices
    return _without_room(state, spec, devices) or Allocation(
        node_name=node.metadata.name,
        node_uid=node.metadata.uid,
        id=state.new_id(),
        devices=list(devices),
        allocated_time=rfc3339(state.unix),
        resource_claim_uid=claim.metadata.uid,
    )


def _devices(
    state: State, pod: GPUPod, spec: VGPUClaimSpec, claim: ResourceClaim
) -> Sequence[AllocatedDevice] | Refusal:
    """Return the devices of each request of the pod's claim, in the order of its requests."""
    node = pod.pod.spec.node_name
    devices = [each for each in state.ledger.devices(node) if each.status.uuid]
    there = {dra.device_name(each.status.uuid): each for each in devices}
    requests = requests_for(state, pod)
    found: list[AllocatedDevice] = []
    for request in spec.requests:
        wanted = requests.get(request.name, request.name)
        results = [each for each in claim.results if each.request == wanted]
        for result in results:
            device = there.get(result.device)
            if device is None or (result.driver, result.pool) != (dra.DRIVER, node):
                text = f"{result.driver}/{result.pool}/{result.device} is no GPU of node {node}"
                return Refusal(Reason.ALLOCATION_UNUSABLE, text)
            found.append(_device(state, request.name, device, result))
        if not _agrees(request, results):
            return _mismatch(claim, wanted, results)
    if len(found) != len(claim.results):
        text = f"ResourceClaim {claim.metadata.name} has devices that no container uses"
        return Refusal(Reason.REQUEST_MISMATCH, text)
    return found


def _device(state: State, request: str, device: GPUDevice, result: DeviceResult) -> AllocatedDevice:
    memory, cores = _amounts(result) or (0, 0)
    columns = state.ledger.columns
    return AllocatedDevice(
        request=request,
        name=device.metadata.name,
        uuid=device.status.uuid,
        index=columns.index[columns.number_of(device.metadata.name)],
        memory=quantity.format_mib(memory),
        cores=cores,
    )


def _mismatch(claim: ResourceClaim, request: str, results: Sequence[DeviceResult]) -> Refusal:
    """Return the refusal of an allocation that is not what the pod asks for."""
    name = claim.metadata.name
    if any(_amounts(each) is None for each in results):
        text = (
            f"ResourceClaim {name} is allocated without amounts: switch the feature gate "
            "DRAConsumableCapacity of Kubernetes on"
        )
        return Refusal(Reason.ALLOCATION_UNUSABLE, text)
    text = (
        f"ResourceClaim {name} was allocated with other amounts for request {request} than "
        "admission has read; create the pod anew"
    )
    return Refusal(Reason.REQUEST_MISMATCH, text)


def _amounts(result: DeviceResult) -> tuple[int, int] | None:
    """Return the MiB and percent of compute that a result takes; None if it does not say."""
    taken = result.consumed_capacity
    try:
        memory, cores = quantity.mib(taken[_MEMORY]), quantity.parse(taken[_CORES])
    except (KeyError, QuantityError):
        return None
    return memory, int(cores)


def _agrees(request: VGPURequest, results: Sequence[DeviceResult]) -> bool:
    """Return True if what was allocated is what a request of the pod asks for."""
    taken = [_amounts(each) for each in results]
    return len(taken) == request.count and all(
        each is not None
        and request.memory_mib in (None, each[0])
        and (request.cores or 0) == each[1]
        for each in taken
    )


def _without_room(
    state: State, spec: VGPUClaimSpec, devices: Sequence[AllocatedDevice]
) -> Refusal | None:
    """Return a refusal while other claims still hold what kube-scheduler has allocated again."""
    columns, numbers = state.ledger.columns, state.ledger.columns.number_of
    of_uuid = {each.uuid: numbers(each.name) for each in devices}
    for uuid, use in effective_use(spec, devices).items():
        number = of_uuid[uuid]
        slots, cores, memory = columns.used(number)
        text = f"GPU {uuid} is still held by a claim whose pod ends"
        if memory + use.memory_mib > columns.memory[number]:
            return Refusal(Reason.CARD_INSUFFICIENT_MEMORY, text)
        if use.cores and cores + use.cores > columns.cores[number]:
            return Refusal(Reason.CARD_INSUFFICIENT_CORE, text)
        if slots + use.slots > columns.slots[number]:
            return Refusal(Reason.CARD_TIME_SLICING_EXHAUSTED, text)
    return None
