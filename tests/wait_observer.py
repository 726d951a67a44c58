"""Observes a cluster in virtual time and counts by itself which pods could have devices.

It judges by the objects in the API, by reservations, and by the true state of devices and nodes,
and never asks `placement`. Devices that are earmarked for a pod that waited longer count as taken.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import Allocation

if TYPE_CHECKING:
    from virtual_cluster import VirtualCluster

SLOTS = 10
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 10.0  # kube-scheduler's own back-off
Used: TypeAlias = dict[str, tuple[int, int, int]]
"""Slots, MiB and cores in use, by UUID."""


@dataclass(slots=True)
class PodPlan:
    """A pod's request, its duration, and kube-scheduler's opinion of it."""

    devices: int
    mib: int
    cores: int
    runs_s: float
    vetoed: bool = False  # kube-scheduler never binds it, for reasons of its own
    volume: bool = False  # it has one of a PersistentVolumeClaim
    nodes: frozenset[str] | None = None  # the nodes that kube-scheduler offers; None for all
    is_pinned: bool = False  # its affinity also has them, like a DaemonSet's
    foreign: bool = False  # it names another scheduler, which does not exist
    attempts: int = 0
    tried: float = 0.0
    aside: bool = False
    requeue: str = ""
    since: float | None = None  # the time from which it could run

    @property
    def ready(self) -> float:
        """Return the time from which kube-scheduler may try the pod again."""
        backoff = min(FIRST_BACKOFF_S * 2 ** (self.attempts - 1), LAST_BACKOFF_S)
        return self.tried + backoff if self.attempts else 0.0


@dataclass(slots=True)
class Device:
    """The true state of a device."""

    node: str
    index: int
    mib: int
    healthy: bool = True
    cordoned: bool = False


class WaitObserver:
    """Checks the cluster from time to time.

    Attributes:
        longest_s: For how long a pod that could have run waited, at worst, kube-scheduler's own
            back-off aside.
        longest_in_all_s: The same with it.
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self.longest_s = self.longest_in_all_s = 0.0

    async def watch(self, every_s: float = 0.5) -> None:
        """Check until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        """Record which pods wait although there is room, and since when."""
        cluster, standing = self._cluster, self._standing()
        used, reserved = self._used(standing), self._reserved()
        for name, plan in cluster.plans.items():
            pod = cluster.api.objects.get((PODS.plural, "default", name))
            bound = pod is None or pod["spec"].get("nodeName") or name in cluster.served_after
            waits = not (bound or plan.vetoed or plan.foreign)
            self._note(plan, waits and (name in reserved or self._fits(plan, used)))
        for name, plan in cluster.claim_plans.items():
            self._note(plan, standing.get(name) is None and self._fits(plan, used))

    def _note(self, plan: PodPlan, waits_in_vain: bool) -> None:
        now = self._cluster.loop.time()
        if not waits_in_vain:
            plan.since = None
            return
        plan.since = now if plan.since is None else plan.since
        self.longest_s = max(self.longest_s, now - max(plan.since, plan.ready))
        self.longest_in_all_s = max(self.longest_in_all_s, now - plan.since)

    def _reserved(self) -> set[str]:
        """Return pods for which devices are reserved on a node that takes them."""
        return {
            held.reserved_for.pod_name
            for held in self._cluster.operator.state.reservations
            if held.reserved_for is not None and held.node not in self._cluster.shut
        }

    def _standing(self) -> dict[str, Allocation | None]:
        """Return the allocation that each claim has or is about to get."""
        standing = {c.metadata.name: c.status.allocation for c in self._cluster.claims()}
        for held in self._cluster.operator.state.reservations:
            standing[held.key.name] = held.allocation or standing.get(held.key.name)
        return standing

    def _used(self, standing: dict[str, Allocation | None]) -> Used:
        used: Used = dict.fromkeys(self._cluster.truth, (0, 0, 0))
        for allocation in standing.values():
            for device in allocation.devices if allocation is not None else ():
                slots, mib, cores = used[device.uuid]
                used[device.uuid] = (slots + 1, mib + device.memory_mib, cores + device.cores)
        self._taken_mib = sum(mib for _, mib, _ in used.values())
        for earmark in self._cluster.operator.state.earmarks:
            for uuid in used:
                if any(device.endswith(uuid.lower()) for device in earmark.devices):
                    used[uuid] = (SLOTS, self._cluster.truth[uuid].mib, 100)
        return used

    def _fits(self, plan: PodPlan, used: Used) -> bool:
        cluster = self._cluster
        if cluster.quota is not None and self._taken_mib + plan.devices * plan.mib > cluster.quota:
            return False
        able: dict[str, int] = {}
        for uuid, device in cluster.truth.items():
            slots, mib, cores = used[uuid]
            roomy = slots < SLOTS and mib + plan.mib <= device.mib and cores + plan.cores <= 100
            alone = plan.cores < 100 or not slots
            usable = device.healthy and not device.cordoned and device.node not in cluster.shut
            usable = usable and (plan.nodes is None or device.node in plan.nodes)
            if usable and roomy and alone and (plan.cores or cores < 100):
                able[device.node] = able.get(device.node, 0) + 1
        return any(count >= plan.devices for count in able.values())
