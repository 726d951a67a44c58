"""Claims mode from the pod to its container: Kubernetes itself, its kubelet and our programs.

Only the container runtime and the devices are simulated.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_node import ObedientDriver, until
from vgpu_api.resources import NODES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, kubeconfig_with, token
from vgpu_local.agent_pod import create_agent_pod
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.cri.runtime import PlayedContainer, PlayedRuntime
from vgpu_local.installed import InstalledCluster
from vgpu_local.real_kubelet import RealKubelet
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.config import AgentConfig
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice

NODE = "n1"
LIMIT_S = 40.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A cluster with one node and a simulated container runtime."""

    api: Api
    runtime: PlayedRuntime

    async def runs(self, name: str) -> dict[str, PlayedContainer]:
        """Wait until a pod runs; return its containers by name."""
        await until(self.api, PODS, name, lambda pod: pod["status"].get("phase") == "Running",
                    limit_s=LIMIT_S)  # fmt: skip
        return {each.place[2]: each for each in self.runtime.running("default", name)}

    async def first_of(self, names: Collection[str]) -> str:
        """Wait until one of these pods runs; return its name."""

        async def running() -> list[str]:
            pods = (await self.api.list(PODS, namespace="default")).items
            found = {p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"}
            return sorted(found.intersection(names))

        return (await soon(running, self.left))[0]

    async def allocation(self, pod: Object) -> Object | None:
        """Return the allocation of a pod's VGPUClaim, or None."""
        for claim in (await self.api.list(VGPU_CLAIMS, namespace="default")).items:
            status = claim.get("status") or {}
            if status.get("reservedFor", {}).get("podUID") == pod["metadata"]["uid"]:
                return status.get("allocation")
        return None

    async def left(self) -> list[str]:
        """Return the namespace's remaining pods and claims, and the nodes' remaining CDI specs."""
        found = [path.name for path in self.runtime.cdi_folder.iterdir()]
        for resource in (PODS, VGPU_CLAIMS, RESOURCE_CLAIMS):
            listing = await self.api.list(resource, namespace="default")
            found += [f"{resource.kind} {each['metadata']['name']}" for each in listing.items]
        return found

    async def delete(self, name: str) -> None:
        await self.api.delete(PODS, name, namespace="default", grace_s=1)

    async def empty(self) -> None:
        """Wait until no object and no file on the node is left."""

        async def is_empty() -> bool:
            return not await self.left()

        await soon(is_empty, self.left)


async def soon(
    look: Callable[[], Awaitable[Any]], otherwise: Callable[[], Awaitable[object]]
) -> Any:
    """Return the result of the condition as soon as it is true."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < end, await otherwise()
        await asyncio.sleep(0.1)
    return found


def values(container: PlayedContainer, prefix: str) -> list[str]:
    return [value for name, value in container.edits.env if name.startswith(prefix)]


@asynccontextmanager
async def a_node(
    plane: ControlPlane,
    api: Api,
    root: Path,
    *,
    devices: Sequence[PhysicalDevice],
    resource_slices: bool,
) -> AsyncIterator[PlayedRuntime]:
    kubelet = RealKubelet(plane.programs / "kubelet", plane.kubeconfig, NODE, root)
    runtime = PlayedRuntime(root / "cdi")
    await runtime.start(kubelet.runtime_socket)
    library = root / "libvgpu.so"
    library.write_bytes(b"")
    config = AgentConfig(
        node_name=NODE,
        state_dir=root / "state",
        library=library,
        kubelet_dir=kubelet.folder,
        device_plugins_dir=kubelet.folder / "device-plugins",
        cdi_dir=runtime.cdi_folder,
        metrics_port=0,
        health_port=0,
        dra=True,
        resource_slices=resource_slices,
        instance="agent-1",
    )
    driver = ObedientDriver(devices)
    try:
        kubelet.start()
        await until(api, NODES, NODE, lambda _: True, limit_s=LIMIT_S)
        await create_agent_pod(api, NODE)
        bearer = await token(api, AGENT, node=NODE)
        own = kubeconfig_with(plane.kubeconfig, root / "agent.kubeconfig", bearer)
        async with Api.connect(str(own)) as of_agent:
            agent = Agent(config, of_agent, driver)
            running = asyncio.ensure_future(agent.run())
            try:
                async with asyncio.timeout(LIMIT_S):
                    while "DRA" in agent.unready() or "not read" in agent.unready():
                        assert not running.done(), running.exception()
                        await asyncio.sleep(0.05)
                yield runtime
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    finally:
        kubelet.stop()
        await runtime.stop()


@asynccontextmanager
async def a_chain(
    version: MinorVersion,
    *,
    devices: Sequence[PhysicalDevice],
    components: Sequence[str] = (),
) -> AsyncIterator[Chain]:
    """Run a cluster in Claims mode with one node, on Kubernetes itself."""
    plane = ControlPlane(Options(controllers=True, version=version))
    cluster = InstalledCluster(
        [], operators=1, webhooks=1, overlay="claims", lease_s=6, plane=plane, components=components
    )
    slices = "resource-slices" in components
    with tempfile.TemporaryDirectory(prefix="ck") as folder:
        try:
            await asyncio.to_thread(plane.start)
            await asyncio.to_thread(cluster.start)
            async with (
                Api.connect(str(plane.kubeconfig)) as api,
                a_node(
                    plane, api, Path(folder), devices=devices, resource_slices=slices
                ) as runtime,
            ):
                yield Chain(api, runtime)
        finally:
            await asyncio.to_thread(cluster.stop)
            await asyncio.to_thread(plane.stop)
