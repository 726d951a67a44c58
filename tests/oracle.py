"""The oracle of the campaigns: what containers use of devices at each moment, computed from pods.

It was written from Kubernetes' documentation of init containers and sidecar containers and from the
rules in `docs/architecture.md`, and it shares no code with the product but the types of its API
(`tests/packaging/test_oracles.py`). So a wrong rule in the product is not wrong here, too.

The kubelet starts init containers one by one. An ordinary one has ended when the next one starts; a
sidecar (`restartPolicy: Always`) keeps running as long as the pod. Then all app containers start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim


class Amounts(NamedTuple):
    """Amounts of one device, in use or available."""

    memory_mib: int = 0
    cores: int = 0
    slots: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum, amount by amount."""
        return Amounts(*(mine + its for mine, its in zip(self, other, strict=True)))

    def most(self, other: Amounts) -> Amounts:
        """Return the greater value of each amount."""
        return Amounts(*(max(mine, its) for mine, its in zip(self, other, strict=True)))

    def is_within(self, limit: Amounts) -> bool:
        """Return True if no amount is greater than the limit's."""
        return all(mine <= its for mine, its in zip(self, limit, strict=True))


ByDevice = Mapping[str, Amounts]
"""Amounts by the device's UUID."""


def ordinary_init(pod: Pod) -> frozenset[str]:
    """Return the names of the containers that must end before the next one starts."""
    return frozenset(c.name for c in pod.spec.init_containers if c.restart_policy != "Always")


def moments(pod: Pod) -> Iterator[frozenset[str]]:
    """Yield the names of the containers that run together, at each step of the pod's start."""
    sidecars: list[str] = []
    for container in pod.spec.init_containers:
        yield frozenset((*sidecars, container.name))
        if container.restart_policy == "Always":
            sidecars.append(container.name)
    yield frozenset((*sidecars, *(container.name for container in pod.spec.containers)))


def last_moment(pod: Pod) -> frozenset[str]:
    """Return the names of the containers that run once all init containers have ended."""
    return tuple(moments(pod))[-1]


def used_by(devices: Iterable[AllocatedDevice], running: Collection[str]) -> dict[str, Amounts]:
    """Return what these containers of a pod use of the devices that are allocated to it.

    A request without a name is the only one of its claim, so its container always counts.
    """
    total: dict[str, Amounts] = {}
    for device in devices:
        if not device.request or device.request in running:
            more = Amounts(device.memory_mib, device.cores, 1)
            total[device.uuid] = total.get(device.uuid, Amounts()).plus(more)
    return total


def needed_by(claim: VGPUClaim, pod: Pod | None) -> dict[str, Amounts]:
    """Return the most that a claim's pod uses of each device, now or at a later moment.

    Args:
        claim: Its current version.
        pod: The pod that it is reserved for; None: no pod is known, as for a claim that was
            allocated before any pod came. Its requests then stand for containers.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return {}
    together = list(moments(pod)) if pod is not None else list(_moments_of(claim))
    unknown = {device.request for device in allocation.devices}.difference(*together)
    most: dict[str, Amounts] = {}
    for running in together:
        for uuid, amounts in used_by(allocation.devices, running | unknown).items():
            most[uuid] = most.get(uuid, Amounts()).most(amounts)
    return most


def _moments_of(claim: VGPUClaim) -> Iterator[frozenset[str]]:
    """Yield the requests whose containers run together; they follow the pod's order."""
    running = frozenset[str]()
    for request in claim.spec.requests:
        yield running | {request.name}
        if request.phase != "Init":
            running |= {request.name}


def total_of(each: Iterable[ByDevice]) -> dict[str, Amounts]:
    """Return the sum of several uses, device by device."""
    total: dict[str, Amounts] = {}
    for uses in each:
        for uuid, amounts in uses.items():
            total[uuid] = total.get(uuid, Amounts()).plus(amounts)
    return total


def of_init(allocation: Allocation, claim: VGPUClaim, pod: Pod | None) -> list[AllocatedDevice]:
    """Return the devices that only ordinary init containers use."""
    if pod is not None:
        init = ordinary_init(pod)
        sole = claim.spec.requests[0]
        if not sole.name and sole.phase == "Init":
            init |= {""}
    else:
        init = frozenset(r.name for r in claim.spec.requests if r.phase == "Init")
    return [device for device in allocation.devices if device.request in init]


def after_shrinking(claim: VGPUClaim) -> list[AllocatedDevice]:
    """Return the devices with the amounts that the pages may have once a smaller request is met.

    MIG instances and whole devices keep what they have; larger amounts need the operator first.
    """
    asked = {request.name: request for request in claim.spec.requests}
    allocation = claim.status.allocation
    shrunk = []
    for device in allocation.devices if allocation is not None else ():
        request = asked.get(device.request)
        if request is None or device.mig is not None or request.mode == "Exclusive":
            shrunk.append(device)
            continue
        mib, cores = request.memory_mib, request.cores
        if request.memory_percent is not None and device.device_memory is not None:
            all_of_it = device.model_copy(update={"memory": device.device_memory}).memory_mib
            mib = all_of_it * request.memory_percent // 100
        shrunk.append(
            device.model_copy(
                update={
                    "memory": f"{min(device.memory_mib, mib or device.memory_mib)}Mi",
                    "cores": min(device.cores, device.cores if cores is None else cores),
                }
            )
        )
    return shrunk


def init_has_ended(claim: VGPUClaim) -> bool:
    """Return True if the agent reports the end of the init containers that the allocation is for.

    A report of an earlier round is none, and a later report that they run again withdraws it.
    """
    allocation, status = claim.status.allocation, claim.status
    if allocation is None or status.init_released is None:
        return False
    this = allocation.id, allocation.init_round
    again = status.init_wanted
    is_wanted = again is not None and (again.allocation_id, again.round) == this
    released = status.init_released.allocation_id, status.init_released.round
    return released == this and not is_wanted
