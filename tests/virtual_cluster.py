"""A cluster in virtual time around the real engine.

News takes a moment. A kube-scheduler sets aside refused pods, and retries them only when they are
requeued or a node changes. Pods run, and end. Only the engine and its Binder are ours.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from builders import a_claim, a_container, a_device, a_node, a_pod, a_request
from engine_world import LateApi, World
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import ResourceQuota, Taint
from vgpu_api.core.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from vgpu_api.core.quota import ResourceQuotaSpec
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resources import PODS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import Metadata, VGPUClaim
from vgpu_operator.engine.slices import SLICE_S, Slices
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest
from virtual_time import VirtualLoop
from wait_observer import Device, PodPlan, WaitObserver

NEWS_TAKE_S = 0.05
FILTER_TAKES_S = 0.02
IDLE_S = 0.001  # a pod for which Filter is never called
KUBELET_TAKES_S = 0.2
FIELD = "limits.nvidia.com/gpumem"


def affinity_to(nodes: Iterable[str]) -> Affinity:
    """Return an affinity as the DaemonSet controller writes it."""
    terms = [
        NodeSelectorTerm(
            match_fields=[
                NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
            ]
        )
        for node in sorted(nodes)
    ]
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms=terms)))


class PromptApi(LateApi):
    """Delivers each change some time after it was made."""

    cluster: VirtualCluster

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> dict[str, Any]:
        stored = super().put(resource, obj)
        self.cluster.loop.call_later(NEWS_TAKE_S, self.cluster.deliver, 1)
        seen = self.cluster.pod_is_seen if resource is PODS else self.cluster.claim_is_seen
        seen(stored)
        return stored

    def vanish(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        super().vanish(resource, name, namespace=namespace)
        self.cluster.loop.call_later(NEWS_TAKE_S, self.cluster.deliver, 1)


class TimedReplica(Replica):
    """A replica whose clock is the loop's."""

    @property
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    @time.setter
    def time(self, value: float) -> None:
        pass


class DrawnSlices(Slices):
    """Slices that end at random times, so that the real machine's load has no effect."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._now = 0.0

    def now(self) -> float:
        self._now += self._chance.choice((0, 0, SLICE_S / 10, SLICE_S * 3))
        return self._now


class VirtualCluster(World):
    """The whole cluster, in its own event loop.

    Attributes:
        plans: What pods ask for, by name.
        claim_plans: What Immediate claims ask for.
        served_after: Seconds from a pod's coming to its binding.
    """

    def __init__(
        self, devices: Mapping[str, tuple[str, int]], *, starvation_after_s: int, seed: int
    ) -> None:
        self.virtual = VirtualLoop()
        self.seed = seed  # decides where the engine's slices end
        self.config = ClusterConfig.model_validate(
            {"scheduling": {"starvationAfterSeconds": starvation_after_s}}
        )
        self.truth = {
            uuid: Device(node, at, mib) for at, (uuid, (node, mib)) in enumerate(devices.items())
        }
        self.shut: set[str] = set()  # nodes that are not ready, or tainted
        self.quota: int | None = None
        self.plans: dict[str, PodPlan] = {}
        self.active: asyncio.Queue[str] = asyncio.Queue()
        self.born = self.version = 0
        self.claim_plans: dict[str, PodPlan] = {}
        self._read: dict[tuple[str, str], VGPUClaim] = {}
        self.served_after: dict[str, float] = {}
        self.came: dict[str, float] = {}
        self.under_way: deque[Callable[[], object]] = deque()
        self.broken: list[Any] = []
        self.virtual.set_exception_handler(lambda _, context: self.broken.append(context))
        super().__init__(devices)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return self.virtual

    def new_api(self) -> LateApi:
        api = PromptApi()
        api.cluster = self
        return api

    def new_operator(self) -> Replica:
        replica = TimedReplica(self.api, config=self.config)
        replica.engine.slices = DrawnSlices(self.seed)
        return replica

    # Users and nodes.

    def create(self, devices: int, mib: int, cores: int, runs_s: float, **how: Any) -> str:
        self.born += 1
        name = f"pod-{self.born:04}"
        limits = {"nvidia.com/gpu": devices, "nvidia.com/gpumem": mib, "nvidia.com/gpucores": cores}
        plan = self.plans[name] = PodPlan(devices, mib, cores, runs_s, **how)
        self.came[name] = self.loop.time()
        pod = a_pod(
            name,
            containers=[a_container(limits=limits)],
            scheduler="another" if plan.foreign else "vgpu-scheduler",
            affinity=affinity_to(plan.nodes) if plan.is_pinned and plan.nodes else None,
        ).to_wire()
        if plan.volume:
            claim = {"claimName": f"{name}-data"}
            pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        pod["metadata"]["creationTimestamp"] = (
            f"2026-01-01T00:{self.born // 60:02}:{self.born % 60:02}Z"
        )
        self.api.put(PODS, pod)
        if not plan.foreign:
            self.active.put_nowait(name)
        return name

    def create_claim(self, devices: int, mib: int, cores: int, lives_s: float) -> None:
        """Create an Immediate claim that is deleted some time after it has been allocated."""
        self.born += 1
        name = f"claim-{self.born:04}"
        request = a_request(count=devices, memory=f"{mib}Mi", cores=cores)
        claim = a_claim(name, uid=name, requests=[request], binding_mode="Immediate").to_wire()
        claim.pop("status", None)
        self.claim_plans[name] = PodPlan(devices, mib, cores, lives_s)
        self.api.put(VGPU_CLAIMS, claim)

    def claim_is_seen(self, raw: dict[str, Any]) -> None:
        name = raw["metadata"]["name"]
        if name in self.claim_plans and (raw.get("status") or {}).get("allocation"):
            self.loop.call_later(self.claim_plans.pop(name).runs_s, self.delete_claim, name)

    def device(self, uuid: str, **changes: bool) -> None:
        """Let a device become ill or well, or cordon or uncordon it."""
        device = self.truth[uuid]
        for key, value in changes.items():
            setattr(device, key, value)
        self._later(
            lambda: self.operator.news.device_changed(
                a_device(uuid=uuid, node=device.node, index=device.index, memory_mib=device.mib,
                         healthy=device.healthy, cordoned=device.cordoned,
                         resource_version=self._next())
            )
        )  # fmt: skip

    def node(self, name: str, how: str) -> None:
        """Make a node `open`, `down`, `tainted` or `unschedulable`."""
        (self.shut.discard if how == "open" else self.shut.add)(name)
        node = a_node(name, ready=how != "down", unschedulable=how == "unschedulable",
                      taints=[Taint(key="k", effect="NoSchedule")] if how == "tainted" else [],
                      resource_version=self._next())  # fmt: skip
        self._later(lambda: self.operator.news.node_changed(node))
        for pod, plan in self.plans.items():  # kube-scheduler also sees nodes
            if plan.aside:
                self._again(pod, plan)

    def limit(self, mib: int | None) -> None:
        """Set the namespace's quota, or remove it with None."""
        self.quota = mib
        quota = ResourceQuota(
            metadata=Metadata(name="q", namespace="default", resource_version=str(self._next())),
            spec=ResourceQuotaSpec(hard={} if mib is None else {FIELD: mib}),
        )
        self._later(lambda: self.operator.news.quota_changed(quota))

    def _later(self, call: Callable[[], object]) -> None:
        """Call functions in request order, which timers due at one moment do not guarantee."""
        self.under_way.append(call)
        self.loop.call_later(NEWS_TAKE_S, lambda: self.under_way.popleft()())

    def _next(self) -> int:
        self.version += 1
        return self.version + 1

    # kube-scheduler and kubelets.

    def pod_is_seen(self, raw: dict[str, Any]) -> None:
        """Note a pod's version; only the pod's own requeue annotation wakes it."""
        plan = self.plans[raw["metadata"]["name"]]
        stamp = raw["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, "")
        if stamp != plan.requeue:
            plan.requeue = stamp
            if plan.aside:
                self._again(raw["metadata"]["name"], plan)

    def _again(self, name: str, plan: PodPlan) -> None:
        plan.aside = False
        self.loop.call_at(max(self.loop.time(), plan.ready), self.active.put_nowait, name)

    async def schedule(self) -> None:
        """Schedule one pod after the other until cancelled."""
        while True:
            name = await self.active.get()
            pod = self.api.objects.get((PODS.plural, "default", name))
            if pod is None:
                continue
            plan = self.plans[name]
            await asyncio.sleep(FILTER_TAKES_S if plan.nodes is None or plan.nodes else IDLE_S)
            plan.attempts += 1
            plan.tried = self.loop.time()
            nodes = sorted({device.node for device in self.truth.values()} - self.shut)
            if plan.nodes is not None:
                nodes = [node for node in nodes if node in plan.nodes]
            request = FilterRequest.read({"Pod": copy.deepcopy(pod), "NodeNames": nodes})
            chosen = list(filter_nodes(self.operator.engine, request).node_names) if nodes else []
            if chosen and not plan.vetoed:
                self.loop.create_task(self._bind(name, pod["metadata"]["uid"], chosen[0]))
                continue
            plan.aside = True
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self.api.put(PODS, {**pod, "status": {**pod["status"], "conditions": [condition]}})

    async def _bind(self, name: str, uid: str, node: str) -> None:
        plan = self.plans[name]
        if await self.operator.binder.bind(BindRequest("default", name, uid, node)):
            plan.aside = True
            self._again(name, plan)
            return
        self.served_after[name] = self.loop.time() - self.came[name]
        await asyncio.sleep(KUBELET_TAKES_S)
        self.agent_starts_what_it_may()
        await asyncio.sleep(plan.runs_s)
        pod = copy.deepcopy(self.api.objects[PODS.plural, "default", name])
        pod["status"]["phase"] = "Succeeded"
        self.api.put(PODS, pod)
        await asyncio.sleep(KUBELET_TAKES_S)
        self.agent_releases_what_has_ended()
        self.ended(name)

    def ended(self, name: str) -> None:
        """End a pod; one with a controller is replaced by a new one."""

    def claims(self) -> list[VGPUClaim]:
        """Return the claims as in the API, reading each version once."""
        found = []
        for raw in self.api.all(VGPU_CLAIMS):
            key = raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]
            if key not in self._read:
                self._read[key] = VGPUClaim.read(raw)
            found.append(self._read[key])
        return found


def played(
    devices: Mapping[str, tuple[str, int]],
    play: Callable[[VirtualCluster], Awaitable[None]],
    *,
    starvation_after_s: int = 60,
    seed: int = 0,
) -> tuple[VirtualCluster, WaitObserver]:
    """Return a cluster after `play`, with everything else running beside it."""
    cluster = VirtualCluster(devices, starvation_after_s=starvation_after_s, seed=seed)
    wait_observer = WaitObserver(cluster)

    async def run() -> None:
        beside = [
            asyncio.create_task(work)
            for work in (cluster.operator.engine.run(), cluster.schedule(), wait_observer.watch())
        ]
        await play(cluster)
        for task in beside:
            assert not task.done() or task.result() is None
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    try:
        cluster.loop.run_until_complete(run())
    finally:
        cluster.close()
    assert cluster.broken == []
    return cluster, wait_observer
