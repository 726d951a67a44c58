"""The judge: reads every write and what runs on the nodes, and finds what must never be.

It counts by `oracle`, which was written from Kubernetes' documentation, and imports nothing from
the product but the types of its API. What it knows is the truth at each moment: what the API server
holds, and which containers run with which pages. It knows nothing of the operator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oracle import Amounts, ByDevice, moments, needed_by, total_of
from vgpu_api.core import Container, Node, Pod
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, RESOURCE_QUOTAS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, GPUDevice, VGPUClaim

ALL_CORES = 100
QUOTA = "limits.nvidia.com/gpumem"
"""The one limit of the campaign's quota, in MiB."""
UNAWARE_S = 20.0
"""The time after a restore in which a replica may still act on what it knew before."""
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
    """

    type: str
    plural: str
    obj: Mapping[str, Any]
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class Runs:
    """The containers of a pod that run, and what of devices their pages let them use."""

    claim_uid: str
    allocation_id: str
    devices: tuple[AllocatedDevice, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken."""

    rule: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.at:8.2f} {self.rule}: {self.text}"


@dataclass(slots=True)
class Judge:
    """Checks the invariants whenever it is told of a change.

    Attributes:
        findings: The violations found.
        runs: What runs, by the pod's UID.
    """

    findings: list[Finding] = field(default_factory=list)
    runs: dict[str, Runs] = field(default_factory=dict)
    _devices: dict[str, GPUDevice] = field(default_factory=dict)  # by UUID; also those that went
    _published: dict[str, str] = field(default_factory=dict)  # object's name → UUID, those there
    _nodes: dict[str, Node] = field(default_factory=dict)
    _pods: dict[str, Pod] = field(default_factory=dict)  # by UID, as each was last
    _there: set[str] = field(default_factory=set)  # UIDs of pods
    _claims: dict[str, VGPUClaim] = field(default_factory=dict)  # by UID
    _needs: dict[str, ByDevice] = field(default_factory=dict)  # claim's UID → what it needs
    _quotas: list[tuple[int, int | None]] = field(default_factory=list)  # version, MiB
    _told: defaultdict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _now: float = 0.0
    _restored_at: float = float("-inf")

    # What it is told.

    def wrote(self, write: Write) -> None:
        """Note that an object has changed."""
        self._now = write.at
        gone = write.type == "DELETED"
        match write.plural:
            case GPU_DEVICES.plural:
                self._device(GPUDevice.model_validate(write.obj), gone=gone)
            case NODES.plural:
                node = Node.model_validate(write.obj)
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
        """Note that an older state of the API server's data was restored, with its version."""
        self._restored_at = at
        self._claims.clear()
        self._needs.clear()
        self._there.clear()
        self._nodes.clear()
        self._published.clear()
        self._quotas.append((version, None))
        for plural, obj in objects:
            if plural == PODS.plural:
                self._pods[obj["metadata"]["uid"]] = Pod.model_validate(obj)
                self._there.add(obj["metadata"]["uid"])
            elif plural == NODES.plural:
                self._nodes[obj["metadata"]["name"]] = Node.model_validate(obj)
            elif plural == GPU_DEVICES.plural:
                self._device(GPUDevice.model_validate(obj), gone=False)
            elif plural == RESOURCE_QUOTAS.plural:
                self._quotas[-1] = version, int(obj["spec"]["hard"][QUOTA])
        for plural, obj in objects:
            if plural == VGPU_CLAIMS.plural:
                self._keep(VGPUClaim.read(dict(obj)))

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
        before = self._pods.get(uid)
        self._pods[uid] = pod
        (self._there.discard if gone else self._there.add)(uid)
        if gone or by == "world" or not pod.is_bound or (before is not None and before.is_bound):
            return
        nodes = {each.node_name for _, each in self._allocations_of(uid)}
        if _asking(pod) and pod.spec.node_name not in nodes and not self._may_be_unaware:
            had = ", ".join(sorted(nodes)) or "no node"
            self._broken("bound", f"{_name(pod)} to {pod.spec.node_name}, its devices on {had}")

    def _claim(self, claim: VGPUClaim, *, gone: bool, by: str) -> None:
        uid = claim.metadata.uid
        before, needed = self._claims.pop(uid, None), self._needs.pop(uid, {})
        if not gone:
            self._keep(claim)
            self._is_granted_rightly(claim, needed, by)
        self._is_kept_while_it_runs(claim, before)
        if before is not None:
            self._is_kept_while_bound(before, None if gone else claim)

    def _keep(self, claim: VGPUClaim) -> None:
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self._pods.get(reserved.pod_uid)
        self._claims[claim.metadata.uid] = claim
        self._needs[claim.metadata.uid] = needed_by(claim, pod)

    def _is_granted_rightly(self, claim: VGPUClaim, before: ByDevice, by: str) -> None:
        """Check room, compute and quota if the claim has more than before."""
        name, needs = claim.metadata.name, self._needs[claim.metadata.uid]
        more = {
            uuid: amounts
            for uuid, amounts in needs.items()
            if not amounts.is_within(before.get(uuid, Amounts()))
        }
        if not more or self._may_be_unaware:
            return
        if FINALIZER_IN_USE not in claim.metadata.finalizers:
            self._broken("finalizer", f"{name} is allocated without it")
        total = total_of(self._needs.values())
        for uuid in more:
            limit = self._limit(uuid)
            if not total[uuid].is_within(limit):
                self._broken("capacity", f"{uuid} has {limit}, {total[uuid]} with {name}")
            if others := self._shared_though_alone(uuid):
                self._broken("exclusive", f"{uuid} by {others}")
        memory = {
            uid: sum(each.memory_mib for each in n.values()) for uid, n in self._needs.items()
        }
        if memory[claim.metadata.uid] > sum(each.memory_mib for each in before.values()):
            used, most = sum(memory.values()), self._quota_at(by, claim)
            if most is not None and used > most:
                self._broken("quota", f"{used} of {most} MiB with {name}")

    def _limit(self, uuid: str) -> Amounts:
        device = self._devices.get(uuid)
        if device is None or device.status.allocatable is None:
            return Amounts()
        amount = device.status.allocatable
        return Amounts(amount.memory_mib, amount.cores, amount.slots)

    def _shared_though_alone(self, uuid: str) -> str:
        """Return the claims on a device if one of several has all of its compute."""
        holders, alone = [], False
        for claim in self._claims.values():
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
        """Return the largest limit since the version that the writer knew; None: no limit."""
        told = self._told[by]
        decided = self._now - 30.0  # a growth: it has no time of its own
        allocation = claim.status.allocation
        if allocation is not None and allocation.allocated_time and claim.metadata.generation < 2:
            stamp = datetime.fromisoformat(str(allocation.allocated_time))
            decided = min(self._now, stamp.timestamp() - _UNIX_AT_0)
        index = bisect_right(told, decided, key=lambda each: each[0])
        version = told[index - 1][1] if index else 0
        known = [hard for at, hard in self._quotas if at <= version][-1:] or [None]
        limits = known + [hard for at, hard in self._quotas if at > version]
        return None if None in limits else max(hard for hard in limits if hard is not None)

    def _is_kept_while_it_runs(self, claim: VGPUClaim, before: VGPUClaim | None) -> None:
        """Check that devices which containers may use are held, even if their pod is gone.

        If the node on which the devices were allocated is gone as well, nobody can know of them.
        """
        now = self._claims[claim.metadata.uid].status.allocation if self._is_there(claim) else None
        for pod_uid, runs in list(self.runs.items()):
            if runs.claim_uid != claim.metadata.uid:
                continue
            pod = self._pods[pod_uid]
            if pod_uid not in self._there and before is not None and self._lost_its_node(before):
                del self.runs[pod_uid]
            elif now is None or (now.id, now.node_name) != (runs.allocation_id, pod.spec.node_name):
                has = "nothing" if now is None else f"{now.id} on {now.node_name}"
                self._broken("in use", f"{claim.metadata.name} has {has} while {_name(pod)} runs")
            elif lacks := [part for part in runs.devices if not _is_covered(part, now.devices)]:
                text = ", ".join(f"{part.memory} of {part.uuid}" for part in lacks)
                self._broken("in use", f"{claim.metadata.name} lacks {text} that {_name(pod)} uses")

    def _is_there(self, claim: VGPUClaim) -> bool:
        return claim.metadata.uid in self._claims

    def _lost_its_node(self, claim: VGPUClaim) -> bool:
        allocation = claim.status.allocation
        node = None if allocation is None else self._nodes.get(allocation.node_name)
        return allocation is not None and (node is None or node.metadata.uid != allocation.node_uid)

    def _is_kept_while_bound(self, before: VGPUClaim, after: VGPUClaim | None) -> None:
        """Check that a bound pod's devices stay: it may start at any moment with an old claim."""
        had, reserved = before.status.allocation, before.status.reserved_for
        if had is None or reserved is None or reserved.pod_uid not in self._there:
            return
        pod, released = self._pods[reserved.pod_uid], before.status.released
        if pod.is_terminal or pod.spec.node_name != had.node_name:
            return
        if released is not None and released.allocation_id == had.id:
            return  # its containers have ended, and the kubelet will remove it
        has = None if after is None else after.status.allocation
        if has is None or has.id != had.id:
            self._broken("bound pod", f"{before.metadata.name} was taken from {_name(pod)}")

    # Rules about a cluster at rest: no faults, and time enough.

    def at_rest(self, at: float) -> None:
        """Check that everything that fits is placed and nothing is held without a user."""
        self._now = at
        for claim in self._claims.values():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None:
                continue
            pod = self._pods.get(reserved.pod_uid)
            name = claim.metadata.name
            if reserved.pod_uid not in self._there:
                self._broken("leak", f"{name} is held by a pod that is gone")
            elif pod is not None and pod.is_bound and pod.spec.node_name != allocation.node_name:
                text = f"{name} on {allocation.node_name}, its pod on {pod.spec.node_name}"
                self._broken("elsewhere", text)
        kept = self._may_be_kept()
        for pod in self._waiting():
            places = self._room_for(pod, self._use()) - kept if not pod.is_bound else frozenset()
            if places:
                text = f"{_name(pod)} though there is room on {', '.join(sorted(places))}"
                self._broken("waits", text)

    def emptied(self, at: float) -> None:
        """Check that all pods and users' claims are gone, and all that they held with them."""
        self._now = at
        for claim in self._claims.values():
            self._broken("leak", f"claim {claim.metadata.name} is left")

    def unplaced(self, at: float) -> None:
        """Check that each pod has a node; each requests a whole device, and there are enough."""
        self._now = at
        for uid in sorted(self._there):
            if not self._pods[uid].is_bound:
                self._broken("leak", f"no device is free for {_name(self._pods[uid])}")

    def _use(self) -> ByDevice:
        return total_of(self._needs.values())

    def _waiting(self) -> list[Pod]:
        """Return the pods that have no devices and go on."""
        return [
            pod
            for uid, pod in sorted(self._pods.items())
            if uid in self._there
            and not pod.is_terminal
            and pod.metadata.deletion_timestamp is None
            and not self._allocations_of(uid)
        ]

    def _may_be_kept(self) -> frozenset[str]:
        """Return the nodes whose devices may be kept for a request that has waited longer.

        The request starves until such a device is empty, either on its pod's node or on any node.
        """
        nodes = frozenset(self._nodes)
        if any(
            claim.spec.binding_mode == "Immediate" and claim.status.allocation is None
            for claim in self._claims.values()
        ):
            return nodes
        found: set[str] = set()
        for pod in self._waiting():
            if pod.is_bound:
                found.add(pod.spec.node_name)
            elif not self._room_for(pod, self._use()) and self._could_ever_fit(pod):
                return nodes
        return frozenset(found)

    def _could_ever_fit(self, pod: Pod) -> bool:
        return len(_asking(pod)) != 1 or bool(self._room_for(pod, {}))

    def _room_for(self, pod: Pod, total: ByDevice) -> frozenset[str]:
        """Return the nodes where a waiting pod fits, by trying each device; empty: none is sure.

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
        most = next((hard for _, hard in reversed(self._quotas)), None)
        held = sum(amounts.memory_mib for each in self._needs.values() for amounts in each.values())
        all_of_one = max(self._limit(uuid).memory_mib for uuid in self._devices)
        wants = sum(ask.devices * (ask.mib or all_of_one) for ask in asking.values())
        if most is not None and held + wants > most:
            return frozenset()
        count = max(ask.devices for ask in asking.values())
        return frozenset(node for node, number in found.items() if number >= count)

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

    # Parts.

    @property
    def _may_be_unaware(self) -> bool:
        """Return True if a restore was so recent that a replica may not have listed since."""
        return self._now - self._restored_at < UNAWARE_S

    def _allocations_of(self, pod_uid: str) -> list[tuple[VGPUClaim, Allocation]]:
        found = []
        for claim in self._claims.values():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is not None and reserved is not None and reserved.pod_uid == pod_uid:
                found.append((claim, allocation))
        return found

    def _broken(self, rule: str, text: str) -> None:
        self.findings.append(Finding(rule, text, self._now))


@dataclass(frozen=True, slots=True)
class _Ask:
    """Return a container's request; no MiB means all memory of the device."""

    devices: int
    mib: int | None
    cores: int


def _ask(container: Container) -> _Ask:
    limits = container.resources.limits
    mib = limits.get("nvidia.com/gpumem")
    return _Ask(
        int(limits.get("nvidia.com/gpu", 0)),
        None if mib is None else int(mib),
        int(limits.get("nvidia.com/gpucores", 0)),
    )


def _asking(pod: Pod) -> dict[str, _Ask]:
    """Return the containers' requests by name; empty if the pod names a claim."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return {each.name: _ask(each) for each in containers if _ask(each).devices}


def _name(pod: Pod) -> str:
    return f"pod {pod.metadata.name}"


def _is_sound(device: GPUDevice) -> bool:
    said = {condition.type: condition.status for condition in device.status.conditions}
    return said.get("Healthy") == said.get("Ready") == "True" and not device.spec.cordoned


def _is_covered(part: AllocatedDevice, held: Iterable[AllocatedDevice]) -> bool:
    """Return True if all that a page lets a container use is held for it."""
    return any(
        (device.request, device.uuid) == (part.request, part.uuid)
        and device.memory_mib >= part.memory_mib
        and device.cores >= part.cores
        for device in held
    )
