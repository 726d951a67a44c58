"""The judge reads every write and sees what runs on the nodes, and finds violations.

It counts with `oracle`, which was written from Kubernetes' documentation, and imports nothing from
the product but the types of its API. It knows the truth at each moment: the objects of the API
server, and the containers that run with which pages. It knows nothing about the operator.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oracle import Amounts, ByDevice, after_shrinking, moments, needed_by, total_of
from vgpu_api.core import Container, Node, Pod, PodDisruptionBudget, PodGroup
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_RESOURCES, FINALIZER_IN_USE
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
)
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, GPUDevice, VGPUClaim

from .gangs import Gangs
from .making_way import Limits, MakingWay
from .resource_claims import HandedOver

ALL_CORES = 100
QUOTA = "limits.nvidia.com/gpumem"
"""The one limit of the campaign's quota, in MiB."""
READ_WITHIN_S = 0.5
"""A pod is read for this time before devices are taken off its claim. Another scheduler may bind it
between."""
UNAWARE_S = 20.0
"""The time after a restore in which a replica may still act on what it knew before."""
TOLD_WITHIN_S = 30.0
"""Without faults, the pages of running containers follow their claim within this time."""
_UNIX_AT_0 = 1.7e9


@dataclass(frozen=True, slots=True)
class Write:
    """A change of an object.

    Attributes:
        type: ADDED, MODIFIED or DELETED.
        plural: Which kind.
        obj: After the change; of a deletion the last state.
        by: A replica's name, or `world`.
        at: When, seconds.
        sent_at: When the request for it was sent; the time of the change if it was not one.
    """

    type: str
    plural: str
    obj: Mapping[str, Any]
    by: str
    at: float
    sent_at: float


@dataclass(frozen=True, slots=True)
class Runs:
    """The running containers of a pod, and the devices that their pages let them use."""

    claim_uid: str
    allocation_id: str
    devices: tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule."""

    rule: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.at:8.2f} {self.rule}: {self.text}"


@dataclass(slots=True)
class Judge:
    """Checks the invariants whenever it is told of a change.

    Attributes:
        limits: The configured limits of preemption.
        has_filters: True in Extender mode.
        findings: The violations found.
        runs: What runs, by the pod's UID.
        pods: Each pod by UID, as it was last.
        there: UIDs of the pods that are there.
        claims: Those that are there, by UID.
        needs: What each claim needs, by its UID.
        calm_since: Since when there are no faults; infinite while there are.
        making_way: Judges who makes way for whom.
        gangs: Judges pods that start together.
        handed_over: Judges ResourceClaims.
    """

    limits: Limits = field(default_factory=Limits)
    has_filters: bool = True
    findings: list[Finding] = field(default_factory=list)
    runs: dict[str, Runs] = field(default_factory=dict)
    _devices: dict[str, GPUDevice] = field(default_factory=dict)  # by UUID; also the removed ones
    _published: dict[str, str] = field(default_factory=dict)  # object's name → UUID, those there
    _nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    claims: dict[str, VGPUClaim] = field(default_factory=dict)
    needs: dict[str, ByDevice] = field(default_factory=dict)
    _quotas: list[tuple[int, int | None]] = field(default_factory=list)  # version, MiB
    _told: defaultdict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _budgets: dict[str, tuple[PodDisruptionBudget, float]] = field(default_factory=dict)
    now: float = 0.0
    _sent_at: float = 0.0
    _bound_past_us: dict[str, float] = field(default_factory=dict)  # pod's UID → when
    calm_since: float = float("inf")
    _behind: dict[str, float] = field(default_factory=dict)  # pod's UID → its pages, since when
    making_way: MakingWay = field(init=False)
    gangs: Gangs = field(init=False)
    handed_over: HandedOver = field(init=False)
    _restored_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.making_way = MakingWay(self, self.limits)
        self.gangs = Gangs(self, self.has_filters)
        self.handed_over = HandedOver(self)

    # Observations.

    def wrote(self, write: Write) -> None:
        """Observe that an object has changed."""
        self.now, self._sent_at = write.at, write.sent_at
        gone = write.type == "DELETED"
        match write.plural:
            case GPU_DEVICES.plural:
                device = GPUDevice.model_validate(write.obj)
                if write.by == "world":
                    self.making_way.node_changed(device.spec.node_name)
                self._device(device, gone=gone)
            case NODES.plural:
                node = Node.model_validate(write.obj)
                self.making_way.node_changed(node.metadata.name)
                self._nodes.pop(node.metadata.name, None)
                if not gone:
                    self._nodes[node.metadata.name] = node
            case RESOURCE_QUOTAS.plural:
                hard = None if gone else write.obj["spec"]["hard"].get(QUOTA)
                version = int(write.obj["metadata"]["resourceVersion"])
                self._quotas.append((version, None if hard is None else int(hard)))
            case PODS.plural:
                self._pod(Pod.model_validate(write.obj), gone=gone, by=write.by)
            case VGPU_CLAIMS.plural:
                self._claim(VGPUClaim.read(dict(write.obj)), gone=gone, by=write.by)
            case POD_DISRUPTION_BUDGETS.plural:
                self._budget(PodDisruptionBudget.model_validate(write.obj), gone=gone)
            case RESOURCE_CLAIMS.plural:
                self.handed_over.resource_claim(write.obj, gone=gone, by=write.by)
            case "podgroups":
                self.gangs.group(PodGroup.model_validate(write.obj), gone=gone)

    def tick(self, at: float) -> None:
        """Check the rules that depend on time."""
        self.now = at
        self.gangs.look()
        self._pages_follow()

    def told(self, who: str, plural: str, version: int, at: float) -> None:
        """Note that a replica has been told of a kind up to this version."""
        if plural == RESOURCE_QUOTAS.plural:
            self._told[who].append((at, version))

    def started(self, pod_uid: str, runs: Runs) -> None:
        """Note that containers run, or that their pages have new amounts."""
        self.runs[pod_uid] = runs

    def ended(self, pod_uid: str) -> None:
        """Note that none of a pod's processes run any more."""
        self.runs.pop(pod_uid, None)

    def restored(
        self, objects: Sequence[tuple[str, Mapping[str, Any]]], version: int, at: float
    ) -> None:
        """Observe that an older state of the API server's data was restored, with its version."""
        self._restored_at = self.now = at
        self.making_way.restored()
        self.claims.clear()
        self.needs.clear()
        self.there.clear()
        self._budgets.clear()
        self._nodes.clear()
        self._published.clear()
        self._quotas.append((version, None))
        for plural, obj in objects:
            if plural == PODS.plural:
                self.pods[obj["metadata"]["uid"]] = Pod.model_validate(obj)
                self.there.add(obj["metadata"]["uid"])
            elif plural == NODES.plural:
                self._nodes[obj["metadata"]["name"]] = Node.model_validate(obj)
            elif plural == GPU_DEVICES.plural:
                self._device(GPUDevice.model_validate(obj), gone=False)
            elif plural == RESOURCE_QUOTAS.plural:
                self._quotas[-1] = version, int(obj["spec"]["hard"][QUOTA])
            elif plural == POD_DISRUPTION_BUDGETS.plural:
                self._budget(PodDisruptionBudget.model_validate(obj), gone=False)
            elif plural == "podgroups":
                self.gangs.group(PodGroup.model_validate(obj), gone=False)
        for plural, obj in objects:
            if plural == VGPU_CLAIMS.plural:
                self._keep(VGPUClaim.read(dict(obj)))
        self.gangs.restored()
        named = {obj["metadata"]["name"]: obj for p, obj in objects if p == RESOURCE_CLAIMS.plural}
        self.handed_over.restored(named)

    def free_mib(self, uuid: str) -> int:
        """Return how much memory of a device no claim needs."""
        return self._limit(uuid).memory_mib - self._use().get(uuid, Amounts()).memory_mib

    # Rules about every write.

    def _device(self, device: GPUDevice, *, gone: bool) -> None:
        name = device.metadata.name
        if gone:
            self._published.pop(name, None)
        elif device.status.uuid and device.status.allocatable is not None:
            self._published[name] = device.status.uuid
            self._devices[device.status.uuid] = device

    def _pod(self, pod: Pod, *, gone: bool, by: str) -> None:
        uid = pod.metadata.uid
        before = self.pods.get(uid)
        self.pods[uid] = pod
        (self.there.discard if gone else self.there.add)(uid)
        self.making_way.pod(pod, gone=gone)
        self.gangs.pod(pod, gone=gone, by=by)
        node = node_of(pod)
        if by == "world" and pod.is_bound and not (before is not None and before.is_bound):
            self._bound_past_us[uid] = self.now
        if gone or by == "world" or not node or (before is not None and node_of(before)):
            return
        nodes = {each.node_name for _, each in self.allocations_of(uid)}
        if _asking(pod) and node not in nodes and not self.may_be_unaware:
            had = ", ".join(sorted(nodes)) or "no node"
            self.broken("bound", f"{_name(pod)} to {node}, its devices on {had}")

    def _claim(self, claim: VGPUClaim, *, gone: bool, by: str) -> None:
        uid = claim.metadata.uid
        before, needed = self.claims.pop(uid, None), self.needs.pop(uid, {})
        if not gone:
            self._keep(claim)
            self._is_granted_rightly(claim, needed, by)
            reserved = claim.status.reserved_for
            self.making_way.claim(claim, by)
            self.gangs.claim(claim, None if reserved is None else self.pods.get(reserved.pod_uid))
        self._is_kept_while_it_runs(claim, before)
        if before is not None:
            self._is_kept_while_bound(before, None if gone else claim)

    def _keep(self, claim: VGPUClaim) -> None:
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self.pods.get(reserved.pod_uid)
        self.claims[claim.metadata.uid] = claim
        self.handed_over.claim(claim)
        self.needs[claim.metadata.uid] = needed_by(claim, pod)

    def _is_granted_rightly(self, claim: VGPUClaim, before: ByDevice, by: str) -> None:
        """Check room, compute and quota if the claim has more than before."""
        name, needs = claim.metadata.name, self.needs[claim.metadata.uid]
        more = {
            uuid: amounts
            for uuid, amounts in needs.items()
            if not amounts.is_within(before.get(uuid, Amounts()))
        }
        if not more or self.may_be_unaware:
            return
        if FINALIZER_IN_USE not in claim.metadata.finalizers:
            self.broken("finalizer", f"{name} is allocated without it")
        total = total_of(self.needs.values())
        for uuid in more:
            limit = self._limit(uuid)
            if not total[uuid].is_within(limit):
                self.broken("capacity", f"{uuid} has {limit}, {total[uuid]} with {name}")
            if others := self._shared_though_alone(uuid):
                self.broken("exclusive", f"{uuid} by {others}")
        memory = {uid: sum(each.memory_mib for each in n.values()) for uid, n in self.needs.items()}
        if memory[claim.metadata.uid] > sum(each.memory_mib for each in before.values()):
            used, most = sum(memory.values()), self._quota_at(by, claim)
            if most is not None and used > most:
                self.broken("quota", f"{used} of {most} MiB with {name}")

    def _limit(self, uuid: str) -> Amounts:
        device = self._devices.get(uuid)
        if device is None or device.status.allocatable is None:
            return Amounts()
        amount = device.status.allocatable
        return Amounts(amount.memory_mib, amount.cores, amount.slots)

    def _shared_though_alone(self, uuid: str) -> str:
        """Return the claims on a device if there are several and one has all of its compute."""
        holders, alone = [], False
        for claim in self.claims.values():
            parts = [
                device
                for device in (claim.status.allocation or Allocation()).devices
                if device.uuid == uuid
            ]
            if parts:
                holders.append(claim.metadata.name)
                alone = alone or any(part.cores >= ALL_CORES for part in parts)
        return ", ".join(sorted(holders)) if alone and len(holders) > 1 else ""

    def _quota_at(self, by: str, claim: VGPUClaim) -> int | None:
        """Return the largest limit since the version that the writer knew, or None without any."""
        told = self._told[by]
        decided = self.now - 30.0  # the time of a growth is not recorded
        allocation = claim.status.allocation
        if allocation is not None and allocation.allocated_time and claim.metadata.generation < 2:
            decided = self.decided_at(allocation)
        index = bisect_right(told, decided, key=lambda each: each[0])
        version = told[index - 1][1] if index else 0
        known = [hard for at, hard in self._quotas if at <= version][-1:] or [None]
        limits = known + [hard for at, hard in self._quotas if at > version]
        return None if None in limits else max(hard for hard in limits if hard is not None)

    def decided_at(self, allocation: Allocation) -> float:
        """Return when the devices were chosen."""
        if not allocation.allocated_time:
            return self.now
        stamp = datetime.fromisoformat(str(allocation.allocated_time))
        return min(self.now, stamp.timestamp() - _UNIX_AT_0)

    def _budget(self, budget: PodDisruptionBudget, *, gone: bool) -> None:
        name, allowed = budget.metadata.name, budget.status.disruptions_allowed
        before = self._budgets.pop(name, None)
        if not gone:
            is_same = before is not None and before[0].status.disruptions_allowed == allowed
            since = before[1] if before is not None and is_same else self.now
            self._budgets[name] = budget, since

    def is_protected(self, pod: Pod, for_s: float) -> bool:
        """Return True if a budget has allowed no disruption of the pod for this many seconds.

        With an infinite time: if a budget may protect the pod at any moment.
        """
        for budget, since in self._budgets.values():
            wanted = (budget.spec.selector or {}).get("matchLabels", {})
            if wanted.items() <= pod.metadata.labels.items():
                is_used_up = budget.status.disruptions_allowed < 1 and self.now - since > for_s
                if is_used_up or for_s == float("inf"):
                    return True
        return False

    def _is_kept_while_it_runs(self, claim: VGPUClaim, before: VGPUClaim | None) -> None:
        """Check that devices which containers may use are held, even if their pod is gone.

        If the node on which the devices were allocated is gone as well, the operator cannot know of
        them.
        """
        now = self.claims[claim.metadata.uid].status.allocation if self._is_there(claim) else None
        for pod_uid, runs in list(self.runs.items()):
            if runs.claim_uid != claim.metadata.uid:
                continue
            pod = self.pods[pod_uid]
            if pod_uid not in self.there and before is not None and self._lost_its_node(before):
                del self.runs[pod_uid]
            elif now is None or (now.id, now.node_name) != (runs.allocation_id, pod.spec.node_name):
                has = "nothing" if now is None else f"{now.id} on {now.node_name}"
                self.broken("in use", f"{claim.metadata.name} has {has} while {_name(pod)} runs")
            elif lacks := [part for part in runs.devices if not _is_covered(part, now.devices)]:
                text = ", ".join(f"{part.memory} of {part.uuid}" for part in lacks)
                self.broken("in use", f"{claim.metadata.name} lacks {text} that {_name(pod)} uses")

    def _pages_follow(self) -> None:
        """Check that no running container has pages of a former version of its claim for long."""
        behind = {uid for uid, runs in self.runs.items() if self._is_behind(runs)}
        since = {uid: self._behind.get(uid, self.now) for uid in behind}
        self._behind = since
        for uid in behind:
            if self.now - max(since[uid], self.calm_since) > TOLD_WITHIN_S:
                since[uid] = float("inf")  # said once
                self.broken("pages", f"{_name(self.pods[uid])} has those of an older claim")

    def _is_behind(self, runs: Runs) -> bool:
        claim = self.claims.get(runs.claim_uid)
        allocation = None if claim is None else claim.status.allocation
        if claim is None or allocation is None or allocation.id != runs.allocation_id:
            return False
        due = {_of_page(device) for device in after_shrinking(claim)}
        return any(_of_page(page) not in due for page in runs.devices)

    def _is_there(self, claim: VGPUClaim) -> bool:
        return claim.metadata.uid in self.claims

    def _lost_its_node(self, claim: VGPUClaim) -> bool:
        allocation = claim.status.allocation
        node = None if allocation is None else self._nodes.get(allocation.node_name)
        return allocation is not None and (node is None or node.metadata.uid != allocation.node_uid)

    def _is_kept_while_bound(self, before: VGPUClaim, after: VGPUClaim | None) -> None:
        """Check that a bound pod's devices stay: it may start at any moment with an old claim."""
        had, reserved = before.status.allocation, before.status.reserved_for
        if had is None or reserved is None or reserved.pod_uid not in self.there:
            return
        pod, released = self.pods[reserved.pod_uid], before.status.released
        if pod.is_terminal or node_of(pod) != had.node_name:
            return
        if self._bound_past_us.get(reserved.pod_uid, 0.0) > self._sent_at - READ_WITHIN_S:
            return  # unknown to the operator: the agent refuses the pod, which gets devices again
        if released is not None and released.allocation_id == had.id:
            return  # its containers have ended, and the kubelet will remove it
        has = None if after is None else after.status.allocation
        if has is None or has.id != had.id:
            self.broken("bound pod", f"{before.metadata.name} was taken from {_name(pod)}")

    # Rules about a settled cluster, without faults and after enough time.

    def at_rest(self, at: float) -> None:
        """Check that everything that fits is placed, and that nothing is held in vain."""
        self.now = at
        for claim in self.claims.values():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None:
                continue
            pod = self.pods.get(reserved.pod_uid)
            name = claim.metadata.name
            if reserved.pod_uid not in self.there:
                self.broken("leak", f"{name} is held by a pod that is gone")
            elif pod is not None and pod.is_bound and pod.spec.node_name != allocation.node_name:
                text = f"{name} on {allocation.node_name}, its pod on {pod.spec.node_name}"
                self.broken("elsewhere", text)
        self.making_way.at_rest()
        self.gangs.at_rest()
        self.handed_over.at_rest()
        for pod in self.waiting():
            if pod.is_bound or not self.gangs.may_start_alone(pod):
                continue
            places = self._room_for(pod, self._use())
            if places and (places := places - self.may_be_kept(pod.spec.priority or 0)):
                text = f"{_name(pod)} though there is room on {', '.join(sorted(places))}"
                self.broken("waits", text)

    def emptied(self, at: float) -> None:
        """Check that every pod and every user's claim is gone, and that nothing is left of them."""
        self.now = at
        for claim in self.claims.values():
            self.broken("leak", f"claim {claim.metadata.name} is left")
        self.handed_over.emptied()

    def unplaced(self, at: float) -> None:
        """Check that all pods have a node, each of which asks for a device of its own."""
        self.now = at
        for uid in sorted(self.there):
            if not self.pods[uid].is_bound:
                self.broken("leak", f"no device is free for {_name(self.pods[uid])}")

    def _use(self) -> ByDevice:
        return total_of(self.needs.values())

    def waiting(self) -> list[Pod]:
        """Return the pods that have no devices and keep waiting."""
        return [
            pod
            for uid, pod in sorted(self.pods.items())
            if uid in self.there
            and not pod.is_terminal
            and pod.metadata.deletion_timestamp is None
            and not self.allocations_of(uid)
        ]

    def may_be_kept(self, priority: int) -> frozenset[str]:
        """Return the nodes of which a device may be kept from requests of this priority.

        One that is as important starves until the device is empty, either on its pod's node or on
        any node.
        """
        nodes = frozenset(self._nodes)
        if self.has_waiting_claims and priority <= 0:
            return nodes
        found: set[str] = set()
        if any(self.gangs.starving(priority)):
            return nodes
        for pod in self.waiting():
            if not self.gangs.may_start_alone(pod) or (pod.spec.priority or 0) < priority:
                continue
            if pod.is_bound:
                found.add(pod.spec.node_name)
            elif not self._room_for(pod, self._use()) and self._could_ever_fit(pod):
                return nodes
        return frozenset(found)

    def _could_ever_fit(self, pod: Pod) -> bool:
        return len(_asking(pod)) != 1 or bool(self._room_for(pod, {}))

    def _room_for(
        self, pod: Pod, total: ByDevice, charged: ByDevice | None = None
    ) -> frozenset[str]:
        """Return the nodes where a waiting pod fits, by trying each device; empty: none is sure.

        The quota is charged with what all claims need, unless it is given.

        One with several containers is sure to fit where all of them fit on one empty device.
        """
        asking = _asking(pod)
        if not asking:
            return frozenset()
        found = defaultdict[str, int](int)
        for uuid in self._published.values():
            device = self._devices[uuid]
            used, limit = total.get(uuid, Amounts()), self._limit(uuid)
            if _is_sound(device) and self._takes(asking, pod, used, limit):
                found[device.spec.node_name] += 1
        all_of_one = max(self._limit(uuid).memory_mib for uuid in self._devices)
        wants = sum(ask.devices * (ask.mib or all_of_one) for ask in asking.values())
        if wants > self._quota_left(self._use() if charged is None else charged):
            return frozenset()
        count = max(ask.devices for ask in asking.values())
        return frozenset(node for node, number in found.items() if number >= count)

    def _quota_left(self, charged: ByDevice) -> float:
        """Return how many MiB the quota still allows."""
        most = next((hard for _, hard in reversed(self._quotas)), None)
        held = sum(amounts.memory_mib for amounts in charged.values())
        return float("inf") if most is None else most - held

    @staticmethod
    def _takes(asking: Mapping[str, _Ask], pod: Pod, used: Amounts, limit: Amounts) -> bool:
        is_sure = used == Amounts() and all(ask.cores < ALL_CORES for ask in asking.values())
        if len(asking) > 1 and not is_sure:
            return False
        peak = Amounts()
        for running in moments(pod):
            here = Amounts()
            for ask in (asking[name] for name in running if name in asking):
                here = here.plus(Amounts(ask.mib or limit.memory_mib, ask.cores, 1))
            peak = peak.most(here)
        alone = peak.cores < ALL_CORES or used == Amounts()
        has_compute = peak.cores > 0 or used.cores < ALL_CORES
        return alone and has_compute and used.plus(peak).is_within(limit)

    # Queries for the rules about several pods.

    @property
    def is_calm(self) -> bool:
        """Return True while there are no faults."""
        return self.now >= self.calm_since

    @property
    def has_quota(self) -> bool:
        """Return True if the namespace has a limit."""
        return bool(self._quotas) and self._quotas[-1][1] is not None

    @property
    def has_waiting_claims(self) -> bool:
        """Return True if a claim waits for devices of its own."""
        return any(
            claim.spec.binding_mode == "Immediate" and claim.status.allocation is None
            for claim in self.claims.values()
        )

    def asks_for_gpus(self, pod: Pod) -> bool:
        """Return True if the pod asks for devices, by its containers or by a claim."""
        return bool(_asking(pod)) or ANNOTATION_CLAIM in pod.metadata.annotations

    def is_countable(self, pod: Pod) -> bool:
        """Return True if exactly one container requests GPUs.

        Then it is certain which devices the pod fits on.
        """
        return len(_asking(pod)) == 1

    def room_without(
        self, pod: Pod, claims: Collection[str], *, frees_quota: bool
    ) -> frozenset[str]:
        """Return the nodes where a countable pod fits if these claims hold nothing."""
        needs = [each for uid, each in self.needs.items() if uid not in claims]
        total = total_of(needs)
        return self._room_for(pod, total, total if frees_quota else None)

    def copies_of(self, pod: Pod, *, without: Collection[str] = ()) -> int:
        """Return how many pods like this one, which asks for one device, fit together.

        These claims count as if they held nothing.
        """
        (ask,) = _asking(pod).values()
        total, found = total_of(n for uid, n in self.needs.items() if uid not in without), 0
        left = self._quota_left(total)
        for uuid in self._published.values():
            limit, used = self._limit(uuid), total.get(uuid, Amounts())
            if not _is_sound(self._devices[uuid]):
                continue
            more = Amounts(ask.mib or limit.memory_mib, ask.cores, 1)
            while self._takes(_asking(pod), pod, used, limit) and left >= more.memory_mib:
                found, used, left = found + 1, used.plus(more), left - more.memory_mib
        return found

    # Parts.

    @property
    def may_be_unaware(self) -> bool:
        """Return True if a restore was so recent that a replica may not have listed since."""
        return self.now - self._restored_at < UNAWARE_S

    def allocations_of(self, pod_uid: str) -> list[tuple[VGPUClaim, Allocation]]:
        found = []
        for claim in self.claims.values():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is not None and reserved is not None and reserved.pod_uid == pod_uid:
                found.append((claim, allocation))
        return found

    def broken(self, rule: str, text: str) -> None:
        self.findings.append(Finding(rule, text, self.now))


@dataclass(frozen=True, slots=True)
class _Ask:
    """A container's request; `mib` is None if it asks for all of the device's memory."""

    devices: int
    mib: int | None
    cores: int


def _ask(container: Container, moved: Mapping[str, Any]) -> _Ask:
    limits = {**container.resources.limits, **moved.get(container.name, {})}
    mib = limits.get("nvidia.com/gpumem")
    return _Ask(
        int(limits.get("nvidia.com/gpu", 0)),
        None if mib is None else int(mib),
        int(limits.get("nvidia.com/gpucores", 0)),
    )


def _asking(pod: Pod) -> dict[str, _Ask]:
    """Return the containers' requests by name; empty if the pod names a claim."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    moved = json.loads(pod.metadata.annotations.get(ANNOTATION_RESOURCES, "{}"))
    asks = {each.name: _ask(each, moved) for each in containers}
    return {name: ask for name, ask in asks.items() if ask.devices}


def node_of(pod: Pod) -> str:
    """Return the pod's node, or the node that its affinity named when its gate was removed."""
    affinity = pod.spec.affinity
    if pod.is_bound or pod.spec.scheduling_gates or affinity is None:
        return pod.spec.node_name
    of_node = affinity.node_affinity
    terms = of_node.required.terms if of_node is not None and of_node.required is not None else []
    named = {name for term in terms for field in term.match_fields for name in field.values}
    return named.pop() if len(named) == 1 else ""


def _name(pod: Pod) -> str:
    return f"pod {pod.metadata.name}"


def _is_sound(device: GPUDevice) -> bool:
    said = {condition.type: condition.status for condition in device.status.conditions}
    return said.get("Healthy") == said.get("Ready") == "True" and not device.spec.cordoned


def _of_page(device: AllocatedDevice) -> tuple[str, str, int, int]:
    return device.request, device.uuid, device.memory_mib, device.cores


def _is_covered(part: AllocatedDevice, held: Iterable[AllocatedDevice]) -> bool:
    """Return True if everything that a page grants a container is held for it."""
    return any(
        (device.request, device.uuid) == (part.request, part.uuid)
        and device.memory_mib >= part.memory_mib
        and device.cores >= part.cores
        for device in held
    )
