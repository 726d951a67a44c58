"""An agent as a process of its own, with a stand-in kubelet and API server in this one.

Claims and allocations are written by the test, as the operator writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent_node import SLOT, a_slot_container, allocate, create_claim, create_pod
from agent_plane import standin_plane
from vgpu_api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_local.kubelet.folders import NodeFolders, make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.kubelet.pace import Pace
from vgpu_local.nodes import GpuNode, t4_node
from vgpu_local.ports import free_ports
from vgpu_local.programs import FAKE_CTL, agent_command, driver_environment
from vgpu_local.small_disk import a_small_disk, empty_disk, fill_disk
from vgpu_local.wall_clock import a_clock, shift_clock
from vgpu_nodeagent.enforcement.abi import REGION_BYTES

CRDS = sorted((Path(__file__).parents[1] / "crds").glob("vgpu.dev_*.yaml"))
NODE = "n1"
SLOTS_A_DEVICE = 10

DISK_BYTES = 64 << 20
"""The agent's state, beside the usage regions of its pods."""


@dataclass(slots=True)
class Stage:
    """One node and its agent.

    Attributes:
        api: An administrator's client.
        kubelet: The stand-in.
        node: Its devices.
        folders: Where its files are.
        metrics: The address of the agent's metrics.
    """

    api: Api
    kubelet: Kubelet
    node: GpuNode
    folders: NodeFolders
    metrics: str
    _command: Sequence[str]
    _environment: dict[str, str]
    _agent: asyncio.subprocess.Process | None = field(default=None)
    gave_up: int = 0
    clock_shift_s: int = 0
    """The difference between the agent's wall clock and the true time."""
    is_limited: bool = False
    """True if the agent's state is on a small disk of its own, which `fill_disk` can fill."""

    @property
    def pid(self) -> int:
        """Return the agent's process."""
        assert self._agent is not None
        return self._agent.pid

    @property
    def state(self) -> Path:
        """Return the agent's state folder."""
        return self.folders.root / "agent"

    async def start_agent(self) -> None:
        """Start the agent, and return at once."""
        environment = {**os.environ, **self._environment}
        self._agent = await asyncio.create_subprocess_exec(*self._command, env=environment)

    @property
    def has_ended(self) -> bool:
        """Return True if the agent's process has ended by itself."""
        return self._agent is not None and self._agent.returncode is not None

    async def kill_agent(self) -> None:
        """End the agent as the kernel does when memory is short."""
        assert self._agent is not None
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            self._agent.kill()
        await self._agent.wait()

    async def stop_agent(self) -> None:
        """End the agent in order, if it runs."""
        if self._agent is not None and self._agent.returncode is None:
            self._agent.terminate()
            await self._agent.wait()

    async def slow_driver(self, milliseconds: int) -> None:
        """Delay every answer of NVML about the first device by this time."""
        machine = self.folders.root / "machine"
        done = await asyncio.create_subprocess_exec(
            FAKE_CTL, machine, "slow", "0", str(milliseconds)
        )
        assert await done.wait() == 0

    def shift_clock(self, seconds: int) -> None:
        """Set the agent's wall clock this many seconds off the true time."""
        shift_clock(self.folders.root, seconds)
        self.clock_shift_s = seconds

    def fill_disk(self) -> None:
        """Leave no byte free on the disk of the agent's state.

        Raises:
            OSError: For another reason than that it is full.
        """
        fill_disk(self.state)

    def empty_disk(self) -> None:
        """Remove the file that `fill_disk` wrote."""
        empty_disk(self.state)

    async def offers_slots(self) -> bool:
        """Return True if the kubelet counts all slots."""
        node = await self.api.get(NODES, NODE)
        wanted = str(len(self.node.devices) * SLOTS_A_DEVICE)
        return bool(node["status"].get("allocatable", {}).get(SLOT) == wanted)

    async def start_pod(self, number: int, *, memory_mib: int, cores: int = 5) -> dict[str, Any]:
        """Create a bound pod with an allocated claim, both called `p-NUMBER`; return the claim."""
        name = f"p-{number}"
        container = a_slot_container(script="exec sleep 3600")
        pod = await create_pod(self.api, name, container, node=None, claim=name)
        request = {"name": "main", "memory": f"{memory_mib}Mi", "cores": cores}
        claim = await create_claim(self.api, name, requests=[request])
        made = await allocate(
            self.api,
            claim,
            pod,
            devices=[self.device(number, memory_mib, cores=cores)],
            allocation_id=f"00000000-0000-4000-8000-{number:012x}",
        )
        await self.api.bind_pod(
            namespace="default",
            name=name,
            uid=pod["metadata"]["uid"],
            node=NODE,
            annotations={},
        )
        return made

    def device(self, number: int, memory_mib: int, *, cores: int = 5) -> dict[str, Any]:
        """Return the device of the claim with this number; pods use the devices in rotation."""
        index = number % len(self.node.devices)
        return {
            "request": "main",
            "uuid": self.node.devices[index].uuid,
            "memory": f"{memory_mib}Mi",
            "cores": cores,
            "index": index,
        }

    async def phase(self, number: int) -> str:
        """Return a pod's phase; empty once it is gone."""
        try:
            pod = await self.api.get(PODS, f"p-{number}", namespace="default")
        except NotFound:
            return ""
        return str(pod["status"].get("phase", "Pending"))


@asynccontextmanager
async def a_stage(folder: Path, *, devices: int, pods: int, log_level: str) -> AsyncIterator[Stage]:
    """A node whose agent runs and whose slots are offered.

    Args:
        folder: The folder for everything on disk.
        devices: The number of devices.
        pods: The maximum number of pods on the node.
        log_level: The agent's log level.
    """
    node = t4_node(NODE, devices)
    folders = make_folders(folder / NODE)
    (port,) = free_ports(1)
    config = folder / "config.yaml"
    config.write_text("{}\n")
    async with AsyncExitStack() as undo:
        plane = undo.enter_context(standin_plane(folder))
        undo.callback(folders.remove_link)
        api = await undo.enter_async_context(Api.connect(str(plane.kubeconfig)))
        for path in CRDS:
            crd = yaml.safe_load(path.read_text())
            await api.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, field_manager="stage")
        await api.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vgpu-node"}},
        )
        await until(lambda: _serves_claims(api))
        pace = Pace(first_retry=0.2, retry=1.0, write_retry=0.05)
        kubelet = Kubelet(api, NodeShape(NODE, pods=pods), folders, environment={}, pace=pace)
        undo.push_async_callback(kubelet.stop)
        await kubelet.start()
        command = agent_command(
            NODE,
            folders,
            kubeconfig=plane.kubeconfig,
            config=config,
            unused_lease_s=3.0,
            log_level=log_level,
            ports=(port, 0),
        )
        environment = dict(driver_environment(node.write_machine(folders.root)))
        environment |= a_clock(folders.root)
        disk_bytes = DISK_BYTES + pods * REGION_BYTES
        is_limited = undo.enter_context(a_small_disk(folders.root / "agent", disk_bytes))
        url = f"http://127.0.0.1:{port}/metrics"
        stage = Stage(api, kubelet, node, folders, url, command, environment, is_limited=is_limited)
        undo.push_async_callback(stage.stop_agent)
        await stage.start_agent()
        await until(stage.offers_slots)
        yield stage


async def until(
    holds: Callable[[], Awaitable[bool]], *, pause_s: float = 0.02, limit_s: float = 60.0
) -> None:
    """Wait for a condition that no single object shows.

    Raises:
        AssertionError: It is not so within the limit.
    """
    for _ in range(int(limit_s / pause_s)):
        if await holds():
            return
        await asyncio.sleep(pause_s)
    raise AssertionError(f"not within {limit_s:g} s")


async def _serves_claims(api: Api) -> bool:
    try:
        await api.list(VGPU_CLAIMS, namespace="default")
    except NotFound:
        return False
    return True
