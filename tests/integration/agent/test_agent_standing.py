"""An agent notices that another plugin has taken its place with a kubelet whose socket stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent_node import (
    GPU_0,
    SLOT,
    AgentNode,
    a_slot_container,
    allocate,
    an_agent_node,
    condition,
    create_claim,
    create_pod,
    pod_is,
    until,
)
from vgpu_api.names import device_object_name
from vgpu_api.resources import GPU_DEVICES, NODES
from vgpu_client.api import Api
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc

NAME_0 = device_object_name(GPU_0)


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    async with an_agent_node(api, tmp_path) as node:
        yield node


async def offers(api: Api, count: int) -> None:
    await until(
        api, NODES, "n1", lambda n: n["status"].get("allocatable", {}).get(SLOT) == str(count)
    )


class OneDevice(dp_grpc.DevicePluginServicer):
    """Another vendor's plugin: one whole GPU."""

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return dp.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield dp.ListAndWatchResponse(devices=[dp.Device(ID=GPU_0, health="Healthy")])
        await asyncio.Event().wait()


@asynccontextmanager
async def another_plugin(node: AgentNode) -> AsyncIterator[None]:
    """Start a plugin that registers our resource, as NVIDIA's plugin does when it starts."""
    sockets = node.config.kubelet_socket.parent
    server = grpc.aio.server()
    dp_grpc.add_DevicePluginServicer_to_server(OneDevice(), server)
    server.add_insecure_port(f"unix://{sockets / 'other.sock'}")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix://{node.config.kubelet_socket}") as channel:
            await dp_grpc.RegistrationStub(channel).Register(
                dp.RegisterRequest(version="v1beta1", endpoint="other.sock", resource_name=SLOT)
            )
        yield
    finally:
        await server.stop(None)


async def a_pod_runs(api: Api) -> None:
    """Start a pod, to show that the kubelet calls this agent and no other plugin."""
    claim = await create_claim(api, "c1")
    await allocate(api, claim, await create_pod(api, "p1", a_slot_container()))
    await pod_is(api, "p1", "Running")


async def test_the_name_is_taken_back_from_another_plugin_and_the_devices_say_so_until_then(
    api: Api, node: AgentNode
) -> None:
    async with another_plugin(node):
        await offers(api, 1)
        device = await until(
            api, GPU_DEVICES, NAME_0, lambda d: condition(d, "Ready").get("status") == "False"
        )
        assert condition(device, "Ready")["reason"] == "PluginReplaced"
        assert GPU_0 in condition(device, "Ready")["message"]
        assert condition(device, "Healthy")["status"] == "True"
        await offers(api, 10)
        await until(
            api, GPU_DEVICES, NAME_0, lambda d: condition(d, "Ready").get("status") == "True"
        )
        await a_pod_runs(api)


async def test_slots_are_offered_again_after_another_plugin_came_and_went(
    api: Api, node: AgentNode
) -> None:
    async with another_plugin(node):
        await offers(api, 1)
    await offers(api, 10)
    await a_pod_runs(api)


async def test_slots_are_offered_again_after_the_kubelet_ended_the_stream_and_kept_its_socket(
    api: Api, node: AgentNode
) -> None:
    await node.kubelet.lose_plugin(SLOT)
    await offers(api, 0)
    await offers(api, 10)
    await a_pod_runs(api)


async def test_a_plugin_that_ends_after_the_name_was_taken_back_takes_the_agent_with_it_once(
    api: Api, node: AgentNode
) -> None:
    """The kubelet ends the current registration together with an older stream of its name."""
    async with another_plugin(node):
        await offers(api, 1)
        await offers(api, 10)
    await offers(api, 0)
    await offers(api, 10)
    await a_pod_runs(api)
