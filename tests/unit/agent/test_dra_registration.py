"""The DRA plugin's sockets, its handover during an update, and the health that it reports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from agent_bench import GPU_0
from dra_bench import (
    GO,
    DraNode,
    PlayedKubelet,
    a_claiming_pod,
    a_dra_node,
    a_given_claim,
    a_short_folder,
    serving,
)
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, Severity
from vgpu_nodeagent.draplugin.plugin import DRAPlugin
from vgpu_nodeagent.draplugin.registration import PluginRegistration
from vgpu_nodeagent.events import InventoryChanged
from vgpu_nodeagent.kubelet.api import drahealth_pb2 as health
from vgpu_nodeagent.reporting.metrics import Metrics


@pytest.fixture
def folder() -> Iterator[Path]:
    with a_short_folder() as folder:
        yield folder


@pytest.fixture
async def node(folder: Path) -> DraNode:
    return await a_dra_node(folder)


async def test_the_kubelet_learns_driver_services_and_endpoint(node: DraNode) -> None:
    assert not node.registration.registered.is_set()
    async with node.served() as kubelet:
        assert (kubelet.info.type, kubelet.info.name) == ("DRAPlugin", "vgpu.dev")
        assert list(kubelet.info.supported_versions) == [
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert kubelet.info.endpoint.endswith("/vgpu.dev/pod-uid.sock")
        assert node.registration.registered.is_set()


@pytest.mark.parametrize("which", ["endpoint", "registration"])
async def test_a_socket_that_somebody_removed_is_made_again(
    node: DraNode, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgpu_nodeagent.draplugin.registration._LOOK_S", 0.01)
    serves = asyncio.ensure_future(node.registration.run())
    path: Path = getattr(node.sockets, which)
    await appears(path)
    remove(path)
    await appears(path)
    await appears(node.sockets.registration)  # it is made after the endpoint
    async with PlayedKubelet.of(node.sockets.registration) as kubelet:
        assert await kubelet.unprepare() == ""
    serves.cancel()
    await asyncio.gather(serves, return_exceptions=True)
    assert not node.sockets.endpoint.exists()
    assert not node.sockets.registration.exists()


async def test_an_agent_that_was_killed_serves_on_sockets_of_the_same_names(node: DraNode) -> None:
    """Its pod stays, and so does the UID in their names: after a crash, and after a reboot."""
    paths = (node.sockets.endpoint, node.sockets.registration)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    serves = asyncio.ensure_future(node.registration.run())
    for path in paths:
        await is_served(path)
    async with PlayedKubelet.of(node.sockets.registration) as kubelet:
        assert await kubelet.unprepare() == ""
    serves.cancel()
    await asyncio.gather(serves, return_exceptions=True)


async def is_served(path: Path) -> None:
    for _ in range(500):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nobody listens on {path}")


def remove(path: Path) -> None:
    path.unlink()


def is_there(path: Path) -> bool:
    return path.exists()


async def appears(path: Path) -> None:
    for _ in range(1000):
        if is_there(path):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} never came")


async def test_sockets_of_killed_agents_go_and_those_of_others_stay(
    node: DraNode, folder: Path
) -> None:
    killed = folder / "plugins" / "vgpu.dev" / "killed.sock"
    foreign = folder / "registry" / "csi.example.com-reg.sock"
    for path in (killed, foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    beside = serving(node.bench, folder, instance="beside")
    async with beside.served(), node.served():
        node.registration.remove_left_behind()
        assert not killed.exists()
        assert foreign.exists()
        assert beside.sockets.endpoint.exists()
        assert beside.sockets.registration.exists()


async def test_during_an_update_the_next_agent_answers_once_it_serves(
    node: DraNode, folder: Path
) -> None:
    """Both are registered; the kubelet calls the newest, which waits until the other has ended."""
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    following = DRAPlugin(
        "n1",
        node.preparation,
        devices=node.devices,
        metrics=Metrics(),
        turn_s=20,
    )
    sockets = serving(node.bench, folder, instance="following").sockets
    registration = PluginRegistration(following, sockets)
    async with node.served():
        await registration.start()
        async with PlayedKubelet.of(sockets.registration) as kubelet:
            asking = asyncio.ensure_future(kubelet.prepare())
            await asyncio.sleep(0.05)
            assert not asking.done()
            following.serve()
            assert (await asking).error == ""
    await registration.stop()


async def test_an_agent_that_never_gets_its_turn_says_who_serves(
    node: DraNode, folder: Path
) -> None:
    waits = DRAPlugin(
        "n1",
        node.preparation,
        devices=node.devices,
        metrics=Metrics(),
        turn_s=0.05,
    )
    registration = PluginRegistration(waits, node.sockets)
    await registration.start()
    async with PlayedKubelet.of(node.sockets.registration) as kubelet:
        answer = await kubelet.prepare()
        assert answer.error.startswith("AnotherAgentServes: another agent still serves this node")
        assert (await kubelet.unprepare()).startswith("AnotherAgentServes:")
    await registration.stop()


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_shown_at_once_and_when_it_changes(node: DraNode, version: str) -> None:
    async with (
        node.served(),
        grpc.aio.insecure_channel(f"unix://{node.sockets.endpoint}", options=GO) as channel,
    ):
        watch = channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        stream = watch(health.NodeWatchResourcesRequest())
        first = cast("health.NodeWatchResourcesResponse", await stream.read())
        (device,) = first.devices
        assert (device.device.pool_name, device.device.device_name) == ("n1", GPU_0.lower())
        assert (device.health, device.message) == (health.HEALTHY, "")
        fell = DeviceEvent(GPU_0, Severity.FATAL, "XidError", "Xid 79: fell off the bus")
        node.devices.health.note(fell, devices=[GPU_0], now=0.0)
        node.bench.events.put(InventoryChanged())
        second = cast("health.NodeWatchResourcesResponse", await stream.read())
        (device,) = second.devices
        assert (device.health, device.message) == (health.UNHEALTHY, "Xid 79: fell off the bus")
        stream.cancel()
