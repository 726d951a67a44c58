"""A replica with preemption, and pods that run on it, wait for devices and end."""

from __future__ import annotations

import asyncio
from typing import Any

from builders import ROOM, a_device, a_node, a_pod_group
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodDisruptionBudget
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.recorder import Regarding
from vgpu_operator.engine import events
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.extender.wire import BindRequest

MIB = 16384


def with_preemption(mode: str = "Extender", **rules: Any) -> ClusterConfig:
    rules.setdefault("enabled", True)
    return ClusterConfig.model_validate({"scheduling": {"mode": mode, "preemption": rules}})


class Town:
    """A replica with preemption, and the pods that run on it."""

    def __init__(self, devices: int = 1, **rules: Any) -> None:
        self.replica = Replica(config=with_preemption(**rules))
        self.told: list[tuple[str, str, str]] = []
        self.replica.recorder.record = self._record  # type: ignore[method-assign]
        self.replica.engine.observe(events.BudgetsListed())
        for number in range(devices):
            self.replica.device(uuid=f"GPU-{number}", index=number, memory_mib=MIB, slots=4)

    def _record(self, regarding: Regarding, *, reason: str, note: str, **_: str) -> None:
        self.told.append((regarding.name, reason, note))

    async def runs(
        self, name: str, mib: int, priority: int = 0, *, node: str = "", **fields: Any
    ) -> Pod:
        """Return a pod that runs with its devices."""
        limits = {"nvidia.com/gpu": fields.pop("count", 1), "nvidia.com/gpumem": mib}
        pod = self.replica.pod(name, limits=limits, priority=priority, **fields)
        self.replica.offer(pod, *([node] if node else []))
        await self.replica.settle()
        wire = pod.to_wire()
        wire["spec"]["nodeName"] = self.replica.reservation(pod).node
        wire["metadata"]["resourceVersion"] = "2"
        self.replica.news.pod_changed(Pod.model_validate(wire))
        await self.replica.settle()
        return pod

    def device_on(self, *numbers: int, **fields: Any) -> None:
        """Add nodes `node-N` of one device `GPU-N`."""
        for number in numbers:
            node = f"node-{number}"
            self.replica.news.node_changed(a_node(node, allocatable=ROOM))
            device = a_device(uuid=f"GPU-{number}", node=node, memory_mib=MIB, slots=4, **fields)
            self.replica.news.device_changed(device)

    async def gang(self, name: str, mib: int, priority: int, *nodes: str, **group: Any) -> None:
        """Run a gang with a pod on each of these nodes; `group` is more of the PodGroup's spec."""
        replica, limits = self.replica, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        replica.news.pod_group_changed(a_pod_group(name, least=len(nodes), **group))
        pods = [
            replica.pod(f"{name}-{number}", limits=limits, priority=priority, group=name)
            for number in range(len(nodes))
        ]
        placed = list(zip(pods, nodes, strict=True))
        for pod, node in placed:
            replica.offer(pod, node)
        await self._bind(placed)

    async def _bind(self, placed: list[tuple[Pod, str]]) -> None:
        """Bind all these pods at once."""
        replica = self.replica
        asked = [
            BindRequest("default", pod.metadata.name, pod.metadata.uid, n) for pod, n in placed
        ]
        binds = [asyncio.create_task(replica.binder.bind(each)) for each in asked]
        for _ in range(40):
            await asyncio.sleep(0)
        assert await asyncio.gather(*binds) == [""] * len(placed)
        for pod, node in placed:
            wire = pod.to_wire()
            wire["spec"]["nodeName"] = node
            wire["metadata"]["resourceVersion"] = "2"
            replica.news.pod_changed(Pod.model_validate(wire))
        await replica.settle()

    def waits(self, name: str, mib: int, priority: int = 1000, **fields: Any) -> Pod:
        """Return a pod that a Filter has just refused."""
        limits = {"nvidia.com/gpu": fields.pop("count", 1), "nvidia.com/gpumem": mib}
        pod = self.replica.pod(name, limits=limits, priority=priority, **fields)
        self.replica.offer(pod)
        return pod

    def gang_waits(
        self, name: str, sizes: list[int], *, least: int = 0, priority: int = 1000, **fields: Any
    ) -> list[Pod]:
        """Return the pods of a gang, one of each size in MiB, of which kube-scheduler places none.

        Without `least` all must start together.
        """
        self.replica.news.pod_group_changed(a_pod_group(name, least=least or len(sizes)))
        count = fields.pop("count", 1)
        pods = [
            self.replica.pod(
                f"{name}-{number}",
                limits={"nvidia.com/gpu": count, "nvidia.com/gpumem": mib},
                priority=priority,
                group=name,
                **fields,
            )
            for number, mib in enumerate(sizes)
        ]
        self.tries(pods)
        return pods

    def tries(self, pods: list[Pod]) -> list[str]:
        """Ask Filter for one pod after another; return their nodes, empty if refused."""
        outcomes = [self.replica.offer(pod) for pod in pods]
        return [each.node if isinstance(each, Reservation) else "" for each in outcomes]

    async def starts(self, pods: list[Pod]) -> list[str]:
        """Try a gang as kube-scheduler does, bind all its pods, and return their nodes."""
        nodes = self.tries(pods)
        await self._bind(list(zip(pods, nodes, strict=True)))
        return nodes

    def device_of(self, name: str) -> str:
        """Return the UUID of the only device that a running pod has."""
        claim = self.replica.claim_of(self.replica.cache.pod(f"uid-of-{name}").pod)
        (device,) = claim.status.allocation.devices
        return device.uuid

    async def evicted(self, seconds: float = 2.0) -> list[str]:
        """Return the pods evicted within some seconds, in order; no pod ends in that time."""
        before = len(self.replica.api.log)
        end = self.replica.time + seconds
        while self.replica.time < end:
            self.replica.time += 0.5
            await self.replica.settle()
            self._watch()
        return [name for verb, name in self.replica.api.log[before:] if verb == "evict"]

    def _watch(self) -> None:
        """Deliver the deletions that the API server has accepted."""
        for (plural, *_), obj in list(self.replica.api.objects.items()):
            known = self.replica.cache.pod(obj["metadata"]["uid"])
            if plural != PODS.plural or known is None or "deletionTimestamp" not in obj["metadata"]:
                continue
            if known.pod.metadata.deletion_timestamp is None:
                wire = known.pod.to_wire()
                wire["metadata"] |= {
                    "deletionTimestamp": obj["metadata"]["deletionTimestamp"],
                    "resourceVersion": str(int(known.pod.metadata.resource_version) + 1),
                }
                self.replica.news.pod_changed(Pod.model_validate(wire))

    async def ends(self, *pods: Pod) -> None:
        """Let pods end: the agent reports that their devices are unused, and they are gone."""
        for pod in pods:
            raw = self.replica.claim_of(pod).to_wire()
            raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
            stored = self.replica.api.put(VGPU_CLAIMS, raw)
            self.replica.news.claim_changed(VGPUClaim.read(stored))
            self.replica.api.vanish(PODS, pod.metadata.name)
            self.replica.news.pod_gone(pod.metadata.uid)
        await self.replica.bound()

    def budget(self, allowed: int, **labels: str) -> None:
        """Observe a disruption budget for pods with these labels."""
        budget = {
            "metadata": {"name": "budget", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        }
        observed = events.BudgetObserved(PodDisruptionBudget.model_validate(budget))
        self.replica.engine.observe(observed)

    def results(self) -> dict[str, int]:
        return dict(self.replica.state.preemptions.results)
