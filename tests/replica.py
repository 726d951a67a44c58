"""A replica of the operator's engine on an in-memory API server, with clocks that tests set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from builders import a_container, a_device, a_node, a_pod, an_agent_pod
from memory_api import MemoryApi
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod, PodGroup, ResourceClaim, ResourceQuota
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_client.object_writer import ObjectWriter
from vgpu_client.recorder import Recorder
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine import events
from vgpu_operator.engine.claims.describe import REPORT_AFTER_S
from vgpu_operator.engine.effector import Effector
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.resource_claims.known import ResourceKey
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.engine.state import State
from vgpu_operator.extender.binding import Binder
from vgpu_operator.ledger import ClaimKey, Ledger
from vgpu_operator.node_filter import StorageObject

CONFIG = ClusterConfig()


class News:
    """The changes that informers would report, handed to the engine."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._versions = 0

    def pod_changed(self, pod: Pod) -> GPUPod | None:
        """Report a version of a pod; return it if it asks for GPUs."""
        self._observe(events.PodObserved(pod))
        return self._replica.engine.pod(pod.metadata.uid)

    def pod_gone(self, uid: str, *, was_seen: bool = True) -> None:
        self._observe(events.PodDeleted(uid, was_seen))

    def pods_listed(self, version: int, uids: Iterable[str], *, after_gap: bool = False) -> None:
        self._observe(events.PodsListed(version, frozenset(uids), after_gap=after_gap))

    def claim_changed(self, claim: VGPUClaim) -> None:
        self._observe(events.ClaimObserved(claim))

    def claim_gone(self, key: tuple[str, str], uid: str) -> None:
        self._observe(events.ClaimDeleted(ClaimKey(*key), uid))

    def claim_unreadable(self, raw: dict[str, Any]) -> None:
        self._observe(events.ClaimUnreadable(raw))

    def node_changed(self, node: Node) -> None:
        self._observe(events.NodeObserved(node))

    def node_gone(self, name: str) -> None:
        self._observe(events.NodeDeleted(name))

    def node_unreadable(self, name: str, uid: str) -> None:
        self._observe(events.NodeUnreadable(name, uid))

    def device_changed(self, device: GPUDevice) -> None:
        self._observe(events.DeviceObserved(device))

    def device_gone(self, name: str) -> None:
        self._observe(events.DeviceDeleted(name))

    def agent_is(self, node: str, *, ready: bool) -> None:
        """Report the readiness of a node's agent, as the kubelet does."""
        self._versions += 1
        self.pod_changed(an_agent_pod(node, ready=ready, resource_version=self._versions))

    def agent_gone(self, node: str) -> None:
        self.pod_gone(an_agent_pod(node).metadata.uid)

    def pod_group_changed(self, group: PodGroup, kind: GroupKind = GroupKind.KUBERNETES) -> None:
        self._observe(events.PodGroupObserved(group, kind))

    def pod_group_gone(
        self, namespace: str, name: str, kind: GroupKind = GroupKind.KUBERNETES
    ) -> None:
        self._observe(events.PodGroupDeleted(GroupKey(namespace, name, kind)))

    def pod_groups_listed(self, kind: GroupKind) -> None:
        self._observe(events.PodGroupsListed(kind))

    def pod_groups_not_served(self, kind: GroupKind) -> None:
        self._observe(events.PodGroupsNotServed(kind))

    def resource_claim_changed(self, claim: ResourceClaim) -> None:
        self._observe(events.ResourceClaimObserved(claim))

    def resource_claim_gone(self, namespace: str, name: str, uid: str) -> None:
        self._observe(events.ResourceClaimDeleted(ResourceKey(namespace, name), uid))

    def quota_changed(self, quota: ResourceQuota) -> None:
        self._observe(events.QuotaObserved(quota))

    def quota_gone(self, namespace: str, name: str) -> None:
        self._observe(events.QuotaDeleted(namespace, name))

    def storage_changed(self, obj: StorageObject) -> None:
        self._observe(events.StorageObserved(obj))

    def storage_gone(self, kind: type[StorageObject], name: str, namespace: str = "") -> None:
        self._observe(events.StorageDeleted(kind, namespace, name))

    def storage_unreadable(
        self, kind: type[StorageObject], name: str, namespace: str = "", why: str = ""
    ) -> None:
        self._observe(events.StorageUnreadable(kind, namespace, name, why))

    def _observe(self, event: events.Event) -> None:
        self._replica.engine.observe(event)
        self._replica.engine.pod("")  # a request applies the observed events first


class SetClock(Clock):
    """A clock with the time that a replica's test has set; sleeps end at once and are recorded."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def monotonic(self) -> float:
        return self._replica.time

    def unix(self) -> float:
        return 1.7e9 + self._replica.time

    async def sleep(self, seconds: float) -> None:
        self._replica.slept.append(seconds)
        await asyncio.sleep(0)


class Replica:
    """An operator's engine with its dependencies, on `api` or on its own API server."""

    def __init__(
        self,
        api: Any = None,
        *,
        config: ClusterConfig = CONFIG,
        clock: Clock | None = None,
        engine_type: type[Engine] = Engine,
    ) -> None:
        self.api: Any = MemoryApi() if api is None else api
        self.time = 1000.0
        self.leading = True
        self.slept: list[float] = []
        self.clock = clock or SetClock(self)
        self.writer = ObjectWriter(self.api, clock=SetClock(self))
        self.recorder = Recorder(self.api, "vgpu-operator", clock=self.clock)
        state = State(config, Ledger(config=config), self.api.new_id)
        self.effector = Effector(
            self.api,
            self.writer,
            self.recorder,
            self.clock,
            observe=self._observe,
            leads=lambda: self.leading,
        )
        self.engine = engine_type(state, self.effector, self.clock, lambda: self.leading)
        self.binder = Binder(
            self.api, self.writer, self.engine, unix=self.clock.unix, sleep=self._no_sleep
        )
        self.news = News(self)
        self.ledger, self.cache = state.ledger, state.cache

    @property
    def state(self) -> State:
        """Return the engine's state, which is replaced after the replica has followed."""
        return self.engine.state

    def device(self, **fields: Any) -> None:
        """Add a device to a ready node."""
        device = a_device(**fields)
        self.news.node_changed(a_node(device.spec.node_name))
        self.news.device_changed(device)

    def fleet(self, nodes: int, *, devices: int, memory_mib: int) -> None:
        """Add nodes `node-00000` …, each with equal devices `GPU-0-0` …."""
        for node in range(nodes):
            name = f"node-{node:05d}"
            self.news.node_changed(a_node(name))
            for index in range(devices):
                uuid = f"GPU-{node}-{index}"
                self.news.device_changed(
                    a_device(uuid=uuid, node=name, index=index, memory_mib=memory_mib)
                )

    def pod(self, name: str = "pod-1", **fields: Any) -> Pod:
        """Store a pod as HAMi's users write it, and let the engine observe it."""
        limits = fields.pop("limits", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192})
        fields.setdefault("containers", [a_container(limits=limits)])
        pod = a_pod(name, **fields)
        self.api.put(PODS, pod.to_wire())
        self.news.pod_changed(pod)
        return pod

    def claim(self, claim: VGPUClaim) -> VGPUClaim:
        """Store a claim, and let the engine observe it."""
        stored = VGPUClaim.read(self.api.put(VGPU_CLAIMS, claim.to_wire()))
        self.news.claim_changed(stored)
        return stored

    def claim_of(self, pod: Pod) -> VGPUClaim:
        """Return the claim that was made for a pod, as the API server has it."""
        known = self.cache.pod(pod.metadata.uid)
        assert known is not None
        return VGPUClaim.read(self.api.claim(known.claim.name))

    def offer(self, pod: Pod | GPUPod, *nodes: str) -> Reservation | Refusal | None:
        """Call Filter for a pod with these nodes, or with all nodes if none is named."""
        asked = pod.pod if isinstance(pod, GPUPod) else pod
        return self.engine.filter(asked, frozenset(nodes or self.cache.nodes))

    def offered(self, name: str = "pod-1", **fields: Any) -> Pod:
        """Store a pod and call Filter for it."""
        pod = self.pod(name, **fields)
        self.offer(pod)
        return pod

    def reservation(self, pod: Pod) -> Reservation | None:
        """Return the reservation of a pod, or None; tentative places do not count."""
        held = self.state.reservations.of_pod(pod.metadata.uid)
        return None if held is None or held.is_tentative else held

    def submit(self) -> None:
        """Run one round and submit its effects, without waiting for them."""
        for effects in self.engine.round():
            self.effector.submit(effects)

    async def settle(self) -> None:
        """Run rounds and wait for their writes until nothing is left to do."""
        for _ in range(8):
            self.submit()
            await self.effector.drain()
            await asyncio.sleep(0)
        self.engine.pod("")

    async def scheduled(self) -> list[str]:
        """Settle, and call Filter for each requeued pod as kube-scheduler does.

        Return the names of these pods.
        """
        names: list[str] = []
        while True:
            before = len(self.api.log)
            await self.settle()
            new = [name for verb, name in self.api.log[before:] if verb == "merge"]
            if not new:
                return names
            names += new
            for pod in [pod for pod in self.cache.pods() if pod.pod.metadata.name in new]:
                self.offer(pod)

    async def bound(self) -> None:
        """Do as `scheduled` does, and bind every pod that has devices reserved."""
        await self.scheduled()
        for pod in list(self.cache.pods()):
            held = self.reservation(pod.pod)
            if held is None or not pod.wants_node:
                continue
            wire = pod.pod.to_wire()
            wire["spec"]["nodeName"] = held.node
            version = int(pod.pod.metadata.resource_version) + 1
            wire["metadata"]["resourceVersion"] = str(version)
            self.news.pod_changed(Pod.model_validate(wire))
        await self.scheduled()

    async def told(self) -> None:
        """Settle, and settle again once all refusals are due to be reported."""
        await self.settle()
        self.time += REPORT_AFTER_S
        await self.settle()

    async def follow(self) -> None:
        """Lose the Lease, and wait until every write has an outcome, as the operator does."""
        self.leading = False
        self.engine.pod("")  # Binds that wait for a write get their answer
        await self.binder.drain()
        await self.writer.drain()
        await self.effector.drain()
        self.engine.follow()

    def _observe(self, event: events.Event) -> None:
        """Queue an event and apply it at once, as if the loop had its turn when an effect ends."""
        self.engine.observe(event)
        self.engine.pod("")

    async def _no_sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
