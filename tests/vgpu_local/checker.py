"""The checker: replays all writes, and finds every moment at which a rule was broken.

It does not use the operator's ledger, and shares no counting or deciding code with the product.
After every single write it compares the capacity of the GPUDevices with the peak use of the
containers of the claims' pods (`oracle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oracle import Amounts, init_has_ended, needed_by, of_init
from vgpu_api.core import Pod
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import GPU_DEVICES, PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, GPUDevice, VGPUClaim
from vgpu_local.apiserver.storage import WriteEvent

_DEVICES = f"{GPU_DEVICES.plural}.{GPU_DEVICES.group}"
_CLAIMS = f"{VGPU_CLAIMS.plural}.{VGPU_CLAIMS.group}"


@dataclass(frozen=True, slots=True)
class Excess:
    """A device that held more than it may, after the write with this resourceVersion."""

    uuid: str
    resource_version: int
    use: Amounts
    capacity: Amounts


def excesses(history: Iterable[WriteEvent]) -> list[Excess]:
    """Return every moment at which a device was over its capacity.

    A device counts from its first published status on. If claims hold a device that was never
    published, its capacity counts as zero.
    """
    sums = Sums()
    return [excess for write in history for excess in sums(write)]


class Sums:
    """The capacity and use of each device after each write, without any history."""

    def __init__(self) -> None:
        self._capacity: dict[str, Amounts] = {}
        self._claims: dict[str, VGPUClaim] = {}  # allocated ones, by UID
        self._pods: dict[str, Pod] = {}  # by UID; kept while a claim is reserved for it
        self._gone: set[str] = set()  # UIDs of such pods that are no longer there
        self._held: dict[str, dict[str, Amounts]] = {}  # claim UID → device → amounts

    def __call__(self, write: WriteEvent) -> list[Excess]:
        """Apply the next write; return the excesses that it made or left."""
        if write.resource == _DEVICES and write.type != "DELETED":
            device = GPUDevice.model_validate(write.object)
            amount = device.status.allocatable
            if amount is not None and device.status.uuid:
                limit = Amounts(amount.memory_mib, amount.cores, amount.slots)
                self._capacity[device.status.uuid] = limit
        if write.resource == PODS.plural:
            return self._pod(Pod.model_validate(write.object), write)
        if write.resource == _CLAIMS:
            return self._claim(VGPUClaim.read(write.object), write)
        return []

    def _pod(self, pod: Pod, write: WriteEvent) -> list[Excess]:
        """Apply a write of a pod.

        A pod's containers never change, so only a claim that came before its pod is counted again.
        """
        uid = pod.metadata.uid
        owned = [claim for claim in self._claims.values() if _pod_uid(claim) == uid]
        if write.type != "DELETED":
            is_new = self._pods.get(uid) is None
            self._pods[uid] = pod
            return [each for claim in owned if is_new for each in self._count(claim, write)]
        if owned:
            self._gone.add(uid)
        else:
            self._pods.pop(uid, None)
        return []

    def _claim(self, claim: VGPUClaim, write: WriteEvent) -> list[Excess]:
        uid = claim.metadata.uid
        before = self._claims.pop(uid, None)
        self._held.pop(uid, None)
        found: list[Excess] = []
        if write.type != "DELETED" and claim.status.allocation is not None:
            self._claims[uid] = claim
            found = self._count(claim, write)
        left = _pod_uid(before) if before is not None else ""
        if left in self._gone and all(_pod_uid(c) != left for c in self._claims.values()):
            self._gone.remove(left)
            del self._pods[left]
        return found

    def _count(self, claim: VGPUClaim, write: WriteEvent) -> list[Excess]:
        uses = needed_by(claim, self._pods.get(_pod_uid(claim)))
        self._held[claim.metadata.uid] = uses
        found = []
        for uuid in uses:
            limit = self._capacity.get(uuid, Amounts())
            total = Amounts()
            for each in self._held.values():
                total = total.plus(each.get(uuid, Amounts()))
            if not total.is_within(limit):
                found.append(Excess(uuid, write.resource_version, total, limit))
        return found


def _pod_uid(claim: VGPUClaim) -> str:
    reserved = claim.status.reserved_for
    return "" if reserved is None else reserved.pod_uid


def breaches(history: Iterable[WriteEvent], *, slot: str = "nvidia.com/gpu") -> list[str]:
    """Return a text for every write that broke a rule of a claim's life.

    The rules: an allocated claim has our finalizer. An allocation neither goes nor moves to another
    pod while its pod is bound and has not ended. A pod is bound only after it has an allocation on
    that node.

    Args:
        history: The writes in order.
        slot: The resource that makes a pod a GPU pod.
    """
    replay = Replay(slot)
    return [breach for write in history for breach in replay(write)]


class Replay:
    """The pods and claims after each write; those that are gone are forgotten."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._pods: dict[str, Pod] = {}
        self._claims: dict[str, VGPUClaim] = {}

    def __call__(self, write: WriteEvent) -> list[str]:
        """Apply the next write; return a text for each rule that it broke."""
        return [f"{breach} ({write.resource_version})" for breach in self._broken(write)]

    def _broken(self, write: WriteEvent) -> list[str]:
        if write.resource == _CLAIMS:
            return self._claim(VGPUClaim.read(write.object), gone=write.type == "DELETED")
        if write.resource == PODS.plural:
            return self._pod(Pod.model_validate(write.object), gone=write.type == "DELETED")
        return []

    def _claim(self, claim: VGPUClaim, *, gone: bool) -> list[str]:
        breaches = []
        uid, name = claim.metadata.uid, claim.metadata.name
        before = self._claims.pop(uid, None)
        if not gone:
            self._claims[uid] = claim
            if claim.status.allocation and FINALIZER_IN_USE not in claim.metadata.finalizers:
                breaches.append(f"claim {name} is allocated without its finalizer")
        grant = before and _grant(before)
        if before and grant and (gone or _grant(claim) != grant):
            allocation, pod_uid = grant
            pod = self._pods.get(pod_uid)
            in_use = pod and not pod.is_terminal and pod.spec.node_name == allocation.node_name
            kept = (
                pod is not None
                and not gone
                and (
                    _only_init_moved(before, claim, pod)
                    or _only_resized(before, claim)
                    or _only_named(before, claim)
                )
            )
            if pod and in_use and not kept and not _was_unprepared(before, pod):
                breaches.append(f"claim {name} was freed while pod {pod.metadata.name} had it")
        return breaches

    def _pod(self, pod: Pod, *, gone: bool) -> list[str]:
        uid = pod.metadata.uid
        before = self._pods.pop(uid, None)
        if gone:
            return []
        self._pods[uid] = pod
        if not pod.is_bound or (before is not None and before.is_bound):
            return []
        grants = [grant for claim in self._claims.values() if (grant := _grant(claim))]
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        asks = any(container.requested(self._slot) is not None for container in containers)
        if asks and (pod.spec.node_name, uid) not in ((a.node_name, to) for a, to in grants):
            return [f"pod {pod.metadata.name} was bound before a claim gave it devices there"]
        return []


def _only_init_moved(before: VGPUClaim, after: VGPUClaim, pod: Pod) -> bool:
    """Return True if only the devices of init containers were released, or allocated again."""
    old, new = before.status.allocation, after.status.allocation
    if old is None or new is None or before.status.reserved_for != after.status.reserved_for:
        return False
    kept = _without(old, of_init(old, before, pod))
    if new == kept:
        return init_has_ended(before)
    rest = _without(new, of_init(new, after, pod))
    return new.init_round > old.init_round and kept == rest.model_copy(
        update={"init_round": old.init_round}
    )


def _without(allocation: Allocation, devices: list[AllocatedDevice]) -> Allocation:
    left = [device for device in allocation.devices if device not in devices]
    return allocation.model_copy(update={"devices": left})


def _was_unprepared(before: VGPUClaim, pod: Pod) -> bool:
    """Return True if the agent has reported the devices of a pod's ResourceClaim free.

    The kubelet unprepares once no container runs, and tells of the pod's end after that.
    """
    allocation, released = before.status.allocation, before.status.released
    return (
        bool(pod.spec.resource_claims)
        and allocation is not None
        and released is not None
        and released.allocation_id == allocation.id
    )


def _only_named(before: VGPUClaim, after: VGPUClaim) -> bool:
    """Return True if only the ResourceClaim was written that an allocation had not named yet."""
    old, new = before.status.allocation, after.status.allocation
    if old is None or new is None or before.status.reserved_for != after.status.reserved_for:
        return False
    named = old.model_copy(update={"resource_claim_uid": new.resource_claim_uid})
    return not old.resource_claim_uid and named == new


def _only_resized(before: VGPUClaim, after: VGPUClaim) -> bool:
    """Return True if an edit changed only amounts.

    They may grow at once, but shrink only after the agent has applied the lower limits.
    """
    old, new = before.status.allocation, after.status.allocation
    if old is None or new is None or before.status.reserved_for != after.status.reserved_for:
        return False
    same_amounts = [
        device.model_copy(update={"memory": former.memory, "cores": former.cores})
        for device, former in zip(new.devices, old.devices, strict=False)
    ]
    was_edited = before.metadata.generation > 1
    if new.model_copy(update={"devices": same_amounts}) != old or not was_edited:
        return False
    shrinks = any(
        device.memory_mib < former.memory_mib or device.cores < former.cores
        for device, former in zip(new.devices, old.devices, strict=True)
    )
    return not shrinks or _agent_is_done(before)


def _agent_is_done(claim: VGPUClaim) -> bool:
    """Return True if the agent reports that limits are not above the amounts of this version."""
    return any(
        (condition.type, condition.status) == ("Resized", "True")
        and condition.observed_generation == claim.metadata.generation
        for condition in claim.status.conditions
    )


def _grant(claim: VGPUClaim) -> tuple[Allocation, str] | None:
    """Return the allocation that a pod may use, and the pod's UID; None if there is none."""
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    if allocation is None or reserved is None or not reserved.pod_uid:
        return None
    return allocation, reserved.pod_uid
