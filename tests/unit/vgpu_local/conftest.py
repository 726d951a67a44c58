from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer
from vgpu_local.kubelet.folders import NodeFolders
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_nodeagent.kubelet.api import podresources_pb2 as pr
from vgpu_nodeagent.kubelet.api import podresources_pb2_grpc as pr_grpc

RESOURCE = "ex.dev/gpu"


class Plugin(dp_grpc.DevicePluginServicer):
    """A device plugin that decides late: Allocate names a device, PreStart confirms it.

    Attributes:
        allocated: ids of each Allocate call.
        started: ids of each PreStartContainer call.
        holders: what PodResources reported about these ids in each PreStartContainer call.
        refuse_start: text of the error PreStartContainer answers with, while set.
        refuse_allocate: the same for Allocate.
        withhold: PreStartContainer succeeds but writes no spec, while set.
        gate: what PreStartContainer waits for first.
    """

    def __init__(self, folders: NodeFolders, slots: int) -> None:
        self.folders = folders
        self.health = {f"slot-{i}": "Healthy" for i in range(slots)}
        self.allocated: list[list[str]] = []
        self.started: list[list[str]] = []
        self.holders: list[list[tuple[str, str]]] = []
        self.refuse_start = ""
        self.refuse_allocate = ""
        self.withhold = False
        self.gate: asyncio.Event | None = None
        self._names: dict[str, list[str]] = {}
        self._changed = asyncio.Event()
        self._server = grpc.aio.server()

    async def serve(self, name: str = "plugin.sock") -> None:
        dp_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.folders.device_plugins / name}")
        await self._server.start()

    async def register(
        self, name: str = "plugin.sock", *, version: str = "v1beta1", resource: str = RESOURCE
    ) -> None:
        target = f"unix://{self.folders.device_plugins / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(target) as channel:
            await dp_grpc.RegistrationStub(channel).Register(
                dp.RegisterRequest(version=version, endpoint=name, resource_name=resource)
            )

    async def stop(self) -> None:
        await self._server.stop(None)

    def set_health(self, slot: str, health: str) -> None:
        self.health[slot] = health
        self._changed.set()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return dp.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        while True:
            self._changed.clear()
            devices = [dp.Device(ID=slot, health=health) for slot, health in self.health.items()]
            yield dp.ListAndWatchResponse(devices=devices)
            await self._changed.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.refuse_allocate:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse_allocate)
        (asked,) = request.container_requests
        ids = sorted(asked.devices_ids)
        self.allocated.append(ids)
        name = f"lease-{len(self.allocated)}"
        for slot in ids:
            self._names.setdefault(slot, []).append(name)
        answer = dp.ContainerAllocateResponse(envs={"FROM_ALLOCATE": name})
        answer.cdi_devices.append(dp.CDIDevice(name=f"{RESOURCE}={name}"))
        return dp.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        ids = sorted(request.devices_ids)
        self.started.append(ids)
        self.holders.append(await self.held(ids))
        if self.gate is not None:
            await self.gate.wait()
        if self.refuse_start:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse_start)
        if not self.withhold:
            self.write_specs(ids)
        return dp.PreStartContainerResponse()

    def write_specs(self, ids: list[str]) -> None:
        """Record what every allocation of these slots is: two of them may still be to start."""
        for name in {name for slot in ids for name in self._names[slot]}:
            edits = {"env": [f"GRANT={name}", f"SLOTS={','.join(ids)}"]}
            spec = {
                "cdiVersion": "0.6.0",
                "kind": RESOURCE,
                "devices": [{"name": name, "containerEdits": edits}],
            }
            path = self.folders.cdi / f"{name}.json"
            path.with_suffix(".tmp").write_text(json.dumps(spec))
            os.replace(path.with_suffix(".tmp"), path)

    async def pods(self) -> list[Any]:
        target = f"unix://{self.folders.pod_resources / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(target) as channel:
            stub = pr_grpc.PodResourcesListerStub(channel)
            return list((await stub.List(pr.ListPodResourcesRequest())).pod_resources)

    async def held(self, ids: list[str]) -> list[tuple[str, str]]:
        """Return (pod, container) of every entry that has one of these ids."""
        return [
            (pod.name, container.name)
            for pod in await self.pods()
            for container in pod.containers
            for entry in container.devices
            if set(entry.device_ids) & set(ids)
        ]


@pytest.fixture
async def make_plugin() -> AsyncIterator[Callable[..., Plugin]]:
    plugins: list[Plugin] = []

    def make(folders: NodeFolders, *, slots: int = 4) -> Plugin:
        plugins.append(Plugin(folders, slots))
        return plugins[-1]

    yield make
    for plugin in plugins:
        await plugin.stop()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A stand-in API server for one test."""
    with ApiServer() as server:
        yield server


@pytest.fixture
async def api(server: ApiServer, tmp_path: Path) -> AsyncIterator[Api]:
    """A client of it."""
    async with Api.connect(str(server.kubeconfig(tmp_path / "kubeconfig"))) as api:
        yield api
