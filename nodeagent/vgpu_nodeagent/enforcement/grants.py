"""Computes the grant of a container from its claim: limits and environment.

Pure: the same claim on the same devices gives the same grant. HAMi sets the variables
`CUDA_DEVICE_MEMORY_LIMIT_<i>` and `CUDA_DEVICE_SM_LIMIT` in this form, and people read them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from vgpu_api import names
from vgpu_api.core.pod import Container, Pod
from vgpu_api.effective import out_of_order
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim, VGPURequest
from vgpu_nodeagent.discovery.inventory import DEVICE_CORES, DeviceCapacity
from vgpu_nodeagent.enforcement.abi import CorePolicy
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.state.claim_instances import ClaimInstance

_POLICIES = {
    "Default": CorePolicy.DEFAULT,
    "Force": CorePolicy.FORCE,
    "Disable": CorePolicy.DISABLE,
}
_GIB_IN_MIB = 1024
_NUMBER = re.compile(r"[0-9]{1,6}")
_POLICY_WORDS = {CorePolicy.FORCE: "force", CorePolicy.DISABLE: "disable"}


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """The devices and limits of one container.

    Attributes:
        limits: One per device, in the order of the allocation. Empty for a container that got a
            slot before its pod's claim existed, and for which the claim has no request.
        interposed: True if the library enforces the limits. False for whole devices, where there is
            nothing to enforce, and for containers admitted with CUDA_DISABLE_CONTROL, which only a
            labelled namespace allows. In a pod without the mark of admission, nobody has checked
            that label, so the variable is ignored.
    """

    limits: tuple[DeviceLimit, ...]
    interposed: bool
    shown: Mapping[str, str] = field(default_factory=dict)
    """Further variables, for people and programs that read those of ACK."""

    def env(self) -> dict[str, str]:
        """Return the environment variables of the container."""
        if not self.limits:
            return {names.ENV_VISIBLE_DEVICES: "void"}
        env = {
            names.ENV_VISIBLE_DEVICES: ",".join(limit.uuid for limit in self.limits),
            names.ENV_LIMIT_PAGE: names.CONTAINER_LIMITS,
            names.ENV_USAGE_REGION: names.CONTAINER_REGION,
        }
        for number, limit in enumerate(self.limits):
            env[f"{names.ENV_MEMORY_LIMIT}_{number}"] = f"{limit.memory_bytes // MIB}M"
        # HAMi's variables have one value for the container; ours are on the limit page, by device.
        first = self.limits[0]
        if first.cores:
            env[names.ENV_SM_LIMIT] = str(first.cores)
        if first.priority:
            env[names.ENV_TASK_PRIORITY] = str(first.priority)
        if word := _POLICY_WORDS.get(first.policy):
            env[names.ENV_CORE_POLICY] = word
        return {**env, **self.shown}


def container_grant(
    claim: VGPUClaim,
    allocation: Allocation,
    *,
    pod: Pod,
    container: str,
    slot_resource: str,
    capacities: Mapping[str, DeviceCapacity],
    instances: Mapping[tuple[str, int], ClaimInstance] = MappingProxyType({}),
) -> ContainerGrant:
    """Return the grant of a container of the claim's pod.

    Args:
        claim: The claim reserved for the pod.
        allocation: Its allocation on this node.
        pod: The pod.
        container: The container's name.
        slot_resource: The resource by which a container requests a slot.
        capacities: The devices of this node.
        instances: The MIG instances by device and first memory slice.

    Raises:
        Refused: The claim has no request or no device for the container, or an unknown device, or
            its MIG instance does not exist.
    """
    request = _request_for(claim, pod, container, slot_resource)
    if request is None:
        return ContainerGrant((), interposed=False)
    devices = [device for device in allocation.devices if device.request == request.name]
    if not devices:
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"claim {_place(claim)} has no GPU for container {container}",
        )
    _refuse_unknown(devices, capacities)
    limits = tuple(
        _limit(request, device, capacities[device.uuid])
        if device.mig is None
        else _instance_limit(claim, device, instances)
        for device in devices
    )
    # Without the library a container has no overhead and no incompatibility, so it is left out
    # wherever nothing remains to be limited.
    whole = request.mode == "Exclusive" or all(
        _needs_no_library(device, limit, capacities)
        for device, limit in zip(devices, limits, strict=True)
    )
    interposed = not (whole or _control_is_off(pod, container))
    return ContainerGrant(limits, interposed=interposed, shown=_in_acks_words(pod, devices))


def _refuse_unknown(
    devices: Iterable[AllocatedDevice], capacities: Mapping[str, DeviceCapacity]
) -> None:
    unknown = [device.uuid for device in devices if device.uuid not in capacities]
    if unknown:
        raise Refused(Why.UNKNOWN_DEVICE, f"GPU {', '.join(unknown)} is not on this node")


def _needs_no_library(
    device: AllocatedDevice, limit: DeviceLimit, capacities: Mapping[str, DeviceCapacity]
) -> bool:
    if device.mig is not None:
        return True  # the device itself enforces the instance
    return (
        device.memory_mib >= _all_memory(capacities[device.uuid])
        and device.cores == DEVICE_CORES
        and limit.policy is not CorePolicy.FORCE
    )


def _control_is_off(pod: Pod, container: str) -> bool:
    # Any user can set the variable; only admission knows whether the namespace allows it.
    if pod.metadata.labels.get(names.LABEL_ADMITTED) != names.ADMITTED:
        return False
    found = (c for c in (*pod.spec.init_containers, *pod.spec.containers) if c.name == container)
    return any(c.env_value(names.ENV_DISABLE_CONTROL) in names.TRUE for c in found)


def _in_acks_words(pod: Pod, devices: Sequence[AllocatedDevice]) -> dict[str, str]:
    """Return the variables of a container whose pod has records of ACK; they limit nothing.

    Source: AliyunContainerService/gpushare-device-plugin.
    """
    written = pod.metadata.annotations
    keys = (names.ACK_RECORD_INDEX, names.ACK_RECORD_POD, names.ACK_RECORD_DEVICE)
    shown = {key: number for key in keys if _NUMBER.fullmatch(number := written.get(key, ""))}
    if len(shown) < len(keys):
        return {}
    gib = sum(device.memory_mib for device in devices) // _GIB_IN_MIB
    return {**shown, names.ENV_ACK_CONTAINER: str(gib)}


def _all_memory(capacities: DeviceCapacity) -> int:
    """Return the MiB of a whole device: an oversubscribed one has no memory for one claim alone."""
    return max(capacities.capacity.memory_mib, capacities.allocatable.memory_mib)


def _request_for(
    claim: VGPUClaim, pod: Pod, container: str, slot_resource: str
) -> VGPURequest | None:
    """Return the container's request, after checking that it suits the kind of container.

    None if admission gave several containers slots and the claim leaves this one out.
    """
    init = {c.name for c in pod.spec.init_containers if not c.is_sidecar}
    request = _named_or_sole(claim, pod, container, slot_resource, init)
    if request is None:
        recorded = _recorded(pod)
        if len(recorded) > 1 and container in recorded:
            return None
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"claim {_place(claim)} has no request named {container!r}",
        )
    phase = "Init" if container in init else "App"
    if request.phase != phase:
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"request {request.name!r} of claim {_place(claim)} has phase {request.phase}, "
            f"but container {container} is of phase {phase}",
        )
    if phase == "Init":  # for other containers the order makes no difference
        _refuse_another_order(claim, pod)
    return request


def _named_or_sole(
    claim: VGPUClaim, pod: Pod, container: str, slot_resource: str, init: Collection[str]
) -> VGPURequest | None:
    by_name = {request.name: request for request in claim.spec.requests}
    if container in by_name:
        return by_name[container]
    sole = by_name.get("")
    if sole is None:
        return None
    first = _first_requesting(pod, slot_resource, init, phase=sole.phase)
    return sole if container == first else None


def _refuse_another_order(claim: VGPUClaim, pod: Pod) -> None:
    """Refuse an init container next to a sidecar if the claim was not summed in that order."""
    turned = out_of_order(claim.spec, [request.name for request in claim.spec.requests], pod)
    if turned is not None:
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"container {turned[0]} starts before container {turned[1]}, and claim "
            f"{_place(claim)} has their requests in the opposite order",
        )


def _recorded(pod: Pod) -> list[str]:
    """Return the containers to which admission added a slot."""
    text = pod.metadata.annotations.get(names.ANNOTATION_SLOTS_ADDED, "")
    return [name for part in text.split(",") if (name := part.strip())]


def _first_requesting(
    pod: Pod, slot_resource: str, init: Collection[str], *, phase: str
) -> str | None:
    """Return the container for a request that names none: the first of its phase that has a slot.

    Admission records the containers to which it added a slot; app containers come before init
    containers.
    """
    recorded = _recorded(pod)
    containers: tuple[Container, ...] = (*pod.spec.containers, *pod.spec.init_containers)
    if len(recorded) > 1:
        is_init = phase == "Init"
        fitting = (c.name for c in containers if (c.name in init) == is_init)
        return next((name for name in fitting if name in recorded), None)
    if recorded:
        return recorded[0]
    return next((c.name for c in containers if _asks(c, slot_resource)), None)


def _asks(container: Container, slot_resource: str) -> bool:
    """True for a container that requests a slot or uses a ResourceClaim."""
    is_slot_requested = container.requested(slot_resource) not in (None, 0, "0")
    return is_slot_requested or bool(container.resources.claims)


def _instance_limit(
    claim: VGPUClaim, device: AllocatedDevice, instances: Mapping[tuple[str, int], ClaimInstance]
) -> DeviceLimit:
    """Return a limit for all of an instance, under the UUID of the instance."""
    start = device.mig.start if device.mig is not None else 0
    claim_instance = instances.get((device.uuid, start))
    if claim_instance is None or claim_instance.claim_uid != claim.metadata.uid:
        raise Refused(
            Why.MIG_PLACE_MISSING,
            f"the instance at slice {start} of GPU {device.uuid} is not made for claim "
            f"{_place(claim)}",
        )
    return DeviceLimit(
        uuid=claim_instance.instance.uuid, memory_bytes=device.memory_mib * MIB, cores=0
    )


def _limit(
    request: VGPURequest, device: AllocatedDevice, capacities: DeviceCapacity
) -> DeviceLimit:
    if capacities.in_mig_mode:
        raise Refused(
            Why.MIG_PLACE_MISSING,
            f"GPU {device.uuid} is in MIG mode, and no instance of it was given",
        )
    policy = _stricter(request.core_policy, capacities.core_policy)
    has, gives = capacities.capacity.memory_mib, capacities.allocatable.memory_mib
    return DeviceLimit(
        uuid=device.uuid,
        memory_bytes=device.memory_mib * MIB,
        cores=device.cores,
        policy=_POLICIES[policy],
        priority=request.compute_priority or 0,
        # The device is oversubscribed: the claim gets its proportion of what exists.
        physical_bytes=device.memory_mib * MIB * has // gives if gives > has else 0,
    )


def _stricter(of_request: str, of_device: str) -> str:
    """Return the policy: an administrator's Force, else the tenant's, else the device's."""
    if "Force" in (of_request, of_device):
        return "Force"
    return of_request if of_request != "Default" else of_device


def _place(claim: VGPUClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"
