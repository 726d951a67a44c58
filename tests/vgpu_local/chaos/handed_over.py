"""Judges ResourceClaims in Claims mode, from the writes and, at rest, from the objects.

It shares no deciding or counting code with the product: shareIDs follow from Kubernetes' documents
and `docs/design/dra.md`, and what a pod uses at a moment is the oracle's. Capacity is counted by
the `consumedCapacity` of ResourceClaims, while `checker` counts it by VGPUClaims.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from oracle import Amounts, moments, ordinary_init
from vgpu_api import quantity
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_POD_UID, FINALIZER_IN_USE
from vgpu_api.resources import GPU_DEVICES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import Allocation, GPUDevice, VGPUClaim
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.readiness import plural

_DRIVER = "vgpu.dev"
_ENTRY = "vgpu"
Raw = dict[str, Any]


class Share(NamedTuple):
    """A device of a node, and the share of it that a container gets."""

    node: str
    device: str
    id: str


class Result(NamedTuple):
    """One result of a ResourceClaim."""

    share: Share
    request: str
    amounts: Amounts


def breaches(history: Iterable[WriteEvent]) -> list[str]:
    """Return a text for every write after which a rule was broken.

    The rules: a ResourceClaim shows only what a VGPUClaim has given before, to the MiB, and has our
    finalizer then. It is reserved for its own pod alone. It neither loses nor changes its
    allocation under a pod that is bound and goes on. A pod is bound only while a VGPUClaim gives it
    devices on that node. What the claims of pods that go on consume fits each device.
    """
    replay = Replay()
    return [f"{each} ({write.resource_version})" for write in history for each in replay(write)]


def disagreements(
    resource_claims: Iterable[Raw], claims: Iterable[Raw], pods: Iterable[Raw]
) -> list[str]:
    """Return a text for each ResourceClaim that has not exactly one VGPUClaim like it, or is left.

    It holds for objects at rest: with writes under way they may disagree for a moment.
    """
    by_uid = {pod.metadata.uid: pod for pod in map(Pod.model_validate, pods)}
    allocated = [each for each in map(VGPUClaim.read, claims) if each.status.allocation]
    shown = {raw["metadata"]["uid"]: raw for raw in resource_claims if _results(raw)}
    return [
        *(text for raw in shown.values() for text in _of_shown(raw, allocated, by_uid)),
        *(text for claim in allocated for text in _of_claim(claim, shown, by_uid)),
    ]


def _of_shown(raw: Raw, allocated: Iterable[VGPUClaim], pods: Mapping[str, Pod]) -> Iterator[str]:
    name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
    pod_uid = _served(raw)
    if pod_uid not in pods:
        yield f"ResourceClaim {name} is allocated for a pod that is gone"
        return
    behind = [each for each in allocated if _allocation(each).resource_claim_uid == uid]
    if len(behind) != 1:
        yield f"ResourceClaim {name} has {len(behind)} VGPUClaims"
        return
    init = ordinary_init(pods[pod_uid])
    claim, allocation = behind[0], _allocation(behind[0])
    sole = _results(raw)[0].request
    given = _held(allocation, sole)
    held = {share: amounts for share, request, amounts in given if request not in init}
    there = {each.share: each.amounts for each in _results(raw) if each.request not in init}
    was_resized = (claim.metadata.generation or 1) > 1
    if there.keys() != held.keys() or (there != held and not was_resized):
        yield f"ResourceClaim {name} shows {there}, and VGPUClaim {claim.metadata.name} has {held}"


def _of_claim(claim: VGPUClaim, shown: Mapping[str, Raw], pods: Mapping[str, Pod]) -> Iterator[str]:
    reserved = claim.status.reserved_for
    pod = None if reserved is None else pods.get(reserved.pod_uid)
    if pod is None or not _goes_on(pod) or not pod.is_bound or not _entry(pod):
        return
    if _allocation(claim).resource_claim_uid not in shown:
        yield f"pod {pod.metadata.name} is bound, and its ResourceClaim shows nothing"


class Replay:
    """Pods, claims and devices after each write, and all that VGPUClaims ever gave."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._claims: dict[str, VGPUClaim] = {}
        self._there: dict[str, Raw] = {}
        self._given: defaultdict[Share, set[Amounts]] = defaultdict(set)
        self._capacity: dict[str, Amounts] = {}
        self._init_over: set[str] = set()
        """UIDs of pods whose init containers have ended once: their devices may be given away."""

    def __call__(self, write: WriteEvent) -> Iterator[str]:
        """Apply the next write; yield a text for each rule that it broke."""
        is_gone = write.type == "DELETED"
        if write.resource == plural(GPU_DEVICES):
            self._device(GPUDevice.model_validate(write.object))
        elif write.resource == PODS.plural:
            yield from self._pod(Pod.model_validate(write.object), write.object, is_gone=is_gone)
        elif write.resource == plural(VGPU_CLAIMS):
            self._claim(VGPUClaim.read(write.object), is_gone=is_gone)
        elif write.resource == plural(RESOURCE_CLAIMS):
            yield from self._resource_claim(write.object, is_gone=is_gone)

    def _device(self, device: GPUDevice) -> None:
        amount = device.status.allocatable
        if amount is not None and device.status.uuid:
            limit = Amounts(amount.memory_mib, amount.cores, amount.slots)
            self._capacity[device.status.uuid.lower()] = limit

    def _claim(self, claim: VGPUClaim, *, is_gone: bool) -> None:
        self._claims[claim.metadata.uid] = claim
        if is_gone:
            del self._claims[claim.metadata.uid]
        elif claim.status.allocation is not None:
            for share, _, amounts in _held(claim.status.allocation, self._sole(claim)):
                self._given[share].add(amounts)

    def _sole(self, claim: VGPUClaim) -> str:
        """Return the container that uses the claim of a pod, if it is only one."""
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self._pods.get(reserved.pod_uid)
        containers = () if pod is None else (*pod.spec.init_containers, *pod.spec.containers)
        using = (each.name for each in containers
                 if any(used.name == _ENTRY for used in each.resources.claims))  # fmt: skip
        return next(using, "")

    def _pod(self, pod: Pod, raw: Raw, *, is_gone: bool) -> Iterator[str]:
        uid = pod.metadata.uid
        before = self._pods.pop(uid, None)
        if is_gone:
            self._init_over.discard(uid)
            return
        self._pods[uid] = pod
        if _has_ended_init(raw):
            self._init_over.add(uid)
        was_bound = before is not None and before.is_bound
        if was_bound or not pod.is_bound or not _entry(pod) or not _goes_on(pod):
            return
        given = {
            (claim.status.reserved_for.pod_uid, _allocation(claim).node_name)
            for claim in self._claims.values()
            if claim.status.reserved_for is not None and claim.status.allocation is not None
        }
        if (uid, pod.spec.node_name) not in given:
            yield f"pod {pod.metadata.name} was bound, and no VGPUClaim gave it devices there"

    def _resource_claim(self, raw: Raw, *, is_gone: bool) -> Iterator[str]:
        name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
        before = self._there.pop(uid, None)
        was = [] if before is None else _results(before)
        now = [] if is_gone else _results(raw)
        if was and now != was and before is not None:
            yield from self._taken_away(name, before)
        if is_gone:
            return
        self._there[uid] = raw
        if now and now != was:
            yield from self._allocated(name, raw, now)
        others = {user["uid"] for user in _users(raw)} - {_served(raw)}
        if now and others:
            yield f"ResourceClaim {name} is reserved for {sorted(others)}, which it does not serve"
        yield from self._over_capacity({each.share.device for each in now})

    def _allocated(self, name: str, raw: Raw, results: Iterable[Result]) -> Iterator[str]:
        if FINALIZER_IN_USE not in raw["metadata"].get("finalizers", ()):
            yield f"ResourceClaim {name} is allocated without its finalizer"
        for each in results:
            if each.amounts not in self._given.get(each.share, ()):
                yield f"ResourceClaim {name} shows {each}, which no VGPUClaim gave before"

    def _taken_away(self, name: str, before: Raw) -> Iterator[str]:
        pod = self._pods.get(_served(before))
        node = next((each.share.node for each in _results(before)), "")
        if pod is not None and _goes_on(pod) and pod.spec.node_name == node:
            yield f"ResourceClaim {name} lost its allocation while {pod.metadata.name} had it"

    def _over_capacity(self, devices: Iterable[str]) -> Iterator[str]:
        uses = [self._consumed(raw) for raw in self._there.values()]
        for device in devices:
            total = Amounts()
            for use in uses:
                total = total.plus(use.get(device, Amounts()))
            limit = self._capacity.get(device, Amounts())
            if not total.is_within(limit):
                yield f"ResourceClaims consume {total} of {device}, which has {limit}"

    def _consumed(self, raw: Raw) -> Mapping[str, Amounts]:
        """Return the most that a ResourceClaim's pod uses of each device from now on."""
        pod = self._pods.get(_served(raw))
        if pod is None or not _goes_on(pod) or not _users(raw):
            return {}
        together = list(moments(pod))
        if pod.metadata.uid in self._init_over:
            together = together[-1:]
        most: dict[str, Amounts] = {}
        for running in together:
            used: dict[str, Amounts] = {}
            for each in _results(raw):
                if each.request in running:
                    device = each.share.device
                    used[device] = used.get(device, Amounts()).plus(each.amounts)
            for device, amounts in used.items():
                most[device] = most.get(device, Amounts()).most(amounts)
        return most


def _allocation(claim: VGPUClaim) -> Allocation:
    assert claim.status.allocation is not None
    return claim.status.allocation


def _held(allocation: Allocation, sole: str) -> Iterator[tuple[Share, str, Amounts]]:
    """Yield what a VGPUClaim gives: share, container and amounts.

    A sole request may leave out its container, which is `sole` then.
    """
    for device in allocation.devices:
        container = device.request or sole
        share = str(uuid.uuid5(uuid.UUID(allocation.id), container))
        yield (
            Share(allocation.node_name, device.uuid.lower(), share),
            container,
            Amounts(device.memory_mib, device.cores, 1),
        )


def _results(raw: Raw) -> list[Result]:
    """Return the results of our driver."""
    allocation = (raw.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return [
        Result(
            Share(each["pool"], each["device"], each["shareID"]),
            each["request"],
            Amounts(
                int(quantity.parse(each["consumedCapacity"]["memory"]) / quantity.MIB),
                int(quantity.parse(each["consumedCapacity"]["cores"])),
                1,
            ),
        )
        for each in results
        if each["driver"] == _DRIVER
    ]


def _users(raw: Raw) -> list[Raw]:
    return (raw.get("status") or {}).get("reservedFor") or []


def _served(raw: Raw) -> str:
    return str((raw["metadata"].get("annotations") or {}).get(ANNOTATION_POD_UID, ""))


def _entry(pod: Pod) -> str:
    """Return the ResourceClaim by which a pod gets devices; empty if it has none."""
    named = (each for each in pod.spec.resource_claims if each.name == _ENTRY)
    return next((each.resource_claim_name or "" for each in named), "")


def _goes_on(pod: Pod) -> bool:
    """Return True for a pod that has neither ended nor is being deleted."""
    return not pod.is_terminal and pod.metadata.deletion_timestamp is None


def _has_ended_init(raw: Raw) -> bool:
    """Return True if every ordinary init container of a pod shows its end."""
    init = [each["name"] for each in raw["spec"].get("initContainers") or ()
            if each.get("restartPolicy") != "Always"]  # fmt: skip
    statuses = (raw.get("status") or {}).get("initContainerStatuses") or []
    ended = {each["name"] for each in statuses if "terminated" in each.get("state", {})}
    return set(init) <= ended
