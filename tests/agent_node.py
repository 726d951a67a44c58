"""A node with an agent on it, for tests: stand-in API server and kubelet, a driver of values.

The agent runs in the test's own loop on a driver made of values, so that a test can make a device
fail without a library; the tests of the real pynvml on the simulated driver start the agent's
process instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.names import ANNOTATION_CLAIM
from vgpu_api.resources import (
    NODES,
    PODS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_local.agent_pod import mark_agent_pod
from vgpu_local.kubelet.folders import make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.kubelet.pace import Pace
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.config import AgentConfig
from vgpu_nodeagent.discovery.drivers.base import (
    DeviceEvent,
    DeviceUsage,
    MigInstance,
    PhysicalDevice,
)
from vgpu_nodeagent.errors import (
    DriverUnavailable,
    InstanceInUse,
    InstanceLost,
    LimitsUnsupported,
    PlaceTaken,
)

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent
SLOT = "nvidia.com/gpu"
GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU_1 = "GPU-11111111-1111-1111-1111-111111111111"
T4_MIB = 16384


class ObedientDriver:
    """Devices made of values; a test changes them.

    Instances are made in two steps as in a real driver, and `fault` may happen between any of them.
    """

    vendor = "nvidia"

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.present = tuple(devices)
        self.error: str | None = None
        self.events: asyncio.Queue[DeviceEvent] = asyncio.Queue()
        self.processes: dict[str, dict[int, int]] = {}
        self.memory_limits: dict[Path, dict[str, int]] | None = None
        self.peaks: dict[str, dict[int, int]] = {}
        self.compute: dict[str, dict[int, float]] = {}
        self.instances_in_use: set[str] = set()
        self.fault: Callable[[str], None] = lambda step: None
        self._made = 0

    async def devices(self) -> tuple[PhysicalDevice, ...]:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        return self.present

    async def usage(self) -> Mapping[str, DeviceUsage]:
        return {device.uuid: DeviceUsage(0, 0) for device in self.present}

    async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
        return self.processes

    async def compute_since(self, marks: dict[str, int]) -> Mapping[str, Mapping[int, float]]:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        return self.compute

    async def process_peaks(self) -> Mapping[str, Mapping[int, int]]:
        return self.peaks

    async def limit_memory(self, cgroup: Path, limits: Mapping[str, int]) -> None:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        if self.memory_limits is None:
            raise LimitsUnsupported("driver 570.86 limits no memory by cgroup")
        self.memory_limits[cgroup] = dict(limits)

    def _device(self, uuid: str) -> PhysicalDevice:
        return next(device for device in self.present if device.uuid == uuid)

    def cut(self, uuid: str, instances: Sequence[MigInstance]) -> None:
        """Put a device into MIG mode with these instances."""
        self.present = tuple(
            replace(device, mig_enabled=True, mig_instances=tuple(instances))
            if device.uuid == uuid
            else device
            for device in self.present
        )

    async def instance_at(self, device: str, wanted: MigInstance) -> MigInstance | None:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        place = (wanted.profile, wanted.start, wanted.size)
        there = self._device(device).mig_instances
        return next((i for i in there if (i.profile, i.start, i.size) == place), None)

    async def check_place(self, device: str, wanted: MigInstance) -> None:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        self.fault("before")
        for old in self._device(device).mig_instances:
            if old.overlaps(wanted.start, wanted.size):
                raise PlaceTaken(f"{old} is not ours")

    async def make_instance(
        self, device: str, wanted: MigInstance, *, known: str | None
    ) -> MigInstance:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        self.fault("before")
        there = list(self._device(device).mig_instances)
        at = [i for i in there if i.overlaps(wanted.start, wanted.size)]
        if known and (not at or not at[0].uuid):
            raise InstanceLost("it is not there any more")
        if at:
            (old,) = at if len(at) == 1 else (replace(wanted, profile="several"),)
            same = (old.profile, old.start) == (wanted.profile, wanted.start)
            if not same or known is None or (known and old.uuid != known):
                raise PlaceTaken(f"{old} is not ours")
            there.remove(old)
        else:
            old = replace(wanted, uuid="", gpu_instance=len(there) + 1)
            self.cut(device, [*there, old])
            self.fault("halfway")
        if not old.uuid:
            self._made += 1
            old = replace(old, uuid=f"MIG-{self._made}")
        self.cut(device, [*there, old])
        self.fault("after")
        return old

    async def remove_instance(self, device: str, instance: MigInstance) -> None:
        if self.error is not None:
            raise DriverUnavailable(self.error)
        self.fault("before")
        there = self._device(device).mig_instances
        for old in there:
            if (old.profile, old.start) != (instance.profile, instance.start) or (
                instance.uuid and old.uuid not in ("", instance.uuid)
            ):
                continue
            if old.uuid in self.instances_in_use:
                raise InstanceInUse(f"{old} is in use")
            rest = [other for other in there if other is not old]
            self.cut(device, [*rest, replace(old, uuid="")])
            self.fault("halfway")
            self.cut(device, rest)
        self.fault("after")

    async def next_event(self) -> DeviceEvent:
        return await self.events.get()

    def close(self) -> None:
        pass


def a_driver_device(uuid: str = GPU_0, index: int = 0, memory_mib: int = T4_MIB) -> PhysicalDevice:
    return PhysicalDevice(
        index=index, uuid=uuid, model="Tesla T4", memory_mib=memory_mib, minor=index
    )


@dataclass(slots=True)
class AgentNode:
    """One node: its kubelet, and its agent while it runs."""

    api: Api
    kubelet: Kubelet
    driver: ObedientDriver
    config: AgentConfig
    _agent: asyncio.Task[None] | None = field(default=None)

    @property
    def name(self) -> str:
        return self.kubelet.shape.name

    async def start_agent(self) -> None:
        """Start the agent; return once the kubelet offers its slots."""
        agent = Agent(self.config, self.api, self.driver)
        self._agent = asyncio.ensure_future(agent.run())
        registered = asyncio.ensure_future(agent.registered.wait())
        await asyncio.wait({self._agent, registered}, return_when=asyncio.FIRST_COMPLETED)
        if self._agent.done():
            registered.cancel()
            self._agent.result()
        await self.offers_slots()

    async def run_agent(self) -> None:
        """Run an agent in the caller's task, whether or not it ever offers slots."""
        await Agent(self.config, self.api, self.driver).run()

    async def offers_slots(self) -> None:
        """Wait until the node's status shows slots."""
        await until(
            self.api,
            NODES,
            self.name,
            lambda n: n["status"].get("allocatable", {}).get(SLOT, "0") != "0",
        )

    async def stop_agent(self) -> None:
        """End the agent as a kill would: nothing is cleaned up in the cluster or on disk."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


@asynccontextmanager
async def an_agent_node(
    api: Api, folder: Path, *, name: str = "n1", devices: Sequence[PhysicalDevice] | None = None
) -> AsyncIterator[AgentNode]:
    """A node with a running kubelet and agent."""
    folders = make_folders(folder / name)
    pace = Pace(first_retry=0.2, retry=30, first_restart=0.05, last_restart=0.1, write_retry=0.05)
    kubelet = Kubelet(api, NodeShape(name), folders, environment={}, pace=pace)
    library = folder / "libvgpu.so"
    library.write_bytes(b"")
    node = AgentNode(
        api,
        kubelet,
        ObedientDriver(devices or (a_driver_device(),)),
        AgentConfig(
            node_name=name,
            state_dir=folder / f"{name}-state",
            library=library,
            cluster=ClusterConfig(),
            kubelet_dir=folders.sockets,
            device_plugins_dir=folders.device_plugins,
            cdi_dir=folders.cdi,
            metrics_port=0,
            health_port=0,
        ),
    )
    marks = asyncio.ensure_future(mark_agent_pod(api, name))
    try:
        await kubelet.start()
        await node.start_agent()
        yield node
    finally:
        marks.cancel()
        await asyncio.gather(marks, return_exceptions=True)
        await node.stop_agent()
        await kubelet.stop()


async def until(
    api: Api, resource: Resource, name: str, holds: Callable[[Json], bool], *, limit_s: float = 20
) -> Json:
    """Return the object as soon as it satisfies `holds`."""
    namespace = "default" if resource.namespaced else None
    last: Json = {}
    try:
        async with asyncio.timeout(limit_s):
            listing = await api.list(resource, namespace=namespace)
            for item in listing.items:
                if item["metadata"]["name"] == name:
                    last = item
                    if holds(item):
                        return item
            stream = api.watch(
                resource, resource_version=listing.resource_version, namespace=namespace
            )
            async with aclosing(stream) as events:
                async for event in events:
                    item = event["object"]
                    if event["type"] == "BOOKMARK" or item["metadata"]["name"] != name:
                        continue
                    last = {"deleted": event["type"] == "DELETED", **item}
                    if holds(last):
                        return last
    except TimeoutError as error:
        raise AssertionError(f"{resource.kind} {name} never was so; it is {last}") from error
    raise AssertionError("the watch ended")


def condition(obj: Json, type_: str) -> Json:
    """Return a condition of an object; empty if it has none of that type."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == type_), {})


async def claim_is(api: Api, name: str, type_: str, status: str = "True") -> Json:
    return await until(
        api, VGPU_CLAIMS, name, lambda c: condition(c, type_).get("status") == status
    )


async def pod_is(api: Api, name: str, phase: str) -> Json:
    return await until(api, PODS, name, lambda pod: pod["status"].get("phase") == phase)


async def pod_is_refused(api: Api, name: str) -> str:
    """Wait until the kubelet has failed to start a container; return its message."""

    def waiting(pod: Json) -> Json:
        statuses = pod["status"].get("containerStatuses") or []
        statuses += pod["status"].get("initContainerStatuses") or []
        for status in statuses:
            found: Json = status.get("state", {}).get("waiting", {})
            if found.get("reason") in ("CreateContainerConfigError", "CreateContainerError"):
                return found
        return {}

    pod = await until(api, PODS, name, lambda pod: bool(waiting(pod)))
    return str(waiting(pod)["message"])


def a_slot_container(name: str = "main", script: str = "sleep 600", slots: int = 1) -> Json:
    limits = {"resources": {"limits": {SLOT: str(slots)}}} if slots else {}
    return {"name": name, "image": "none", "command": ["sh", "-c", script], **limits}


async def create_pod(
    api: Api,
    name: str,
    *containers: Json,
    node: str | None = "n1",
    claim: str | None = None,
    **spec: Any,
) -> Json:
    """Create a pod that names a claim; by default, pod `p1` names claim `c1`."""
    return await api.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {ANNOTATION_CLAIM: claim or f"c{name.removeprefix('p')}"},
            },
            "spec": {
                **({"nodeName": node} if node else {}),
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": list(containers) or [a_slot_container()],
                **spec,
            },
        },
    )


async def create_claim(
    api: Api,
    name: str,
    *,
    requests: Sequence[Json] = ({"name": "main", "memory": "8Gi"},),
) -> Json:
    return await api.create(
        VGPU_CLAIMS,
        {
            "apiVersion": "vgpu.dev/v1alpha1",
            "kind": "VGPUClaim",
            "metadata": {
                "name": name,
                "namespace": "default",
                "finalizers": ["vgpu.dev/in-use"],
            },
            "spec": {"requests": list(requests)},
        },
    )


async def allocate(
    api: Api,
    claim: Json,
    pod: Json,
    *,
    devices: Sequence[Json] = (
        {"request": "main", "uuid": GPU_0, "memory": "8Gi", "cores": 0, "index": 0},
    ),
    node: str = "n1",
    allocation_id: str = "00000000-0000-0000-0000-000000000001",
) -> Json:
    """Write the allocation that the operator would write, reserved for this very pod."""
    status = {
        "allocation": {
            "nodeName": node,
            "devices": list(devices),
            "id": allocation_id,
            "allocatedTime": "2026-01-01T00:00:00.000000Z",
        },
        "reservedFor": {"podName": pod["metadata"]["name"], "podUID": pod["metadata"]["uid"]},
    }
    return await api.merge_patch(
        VGPU_CLAIMS,
        claim["metadata"]["name"],
        {"status": status},
        namespace="default",
        subresource="status",
    )
