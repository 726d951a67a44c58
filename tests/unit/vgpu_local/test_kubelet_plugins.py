"""Two plugins of one resource, and lost streams: what pkg/kubelet/cm/devicemanager does at v1.36.3.

From `server.Register`, `runClient` and `disconnectClient` (plugin/v1beta1), `PluginConnected`,
`PluginDisconnected` and `genericDeviceUpdateCallback` (manager.go).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vgpu_api.resources import NODES
from vgpu_client.api import Api
from vgpu_local.kubelet.folders import make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.node import NodeShape

if TYPE_CHECKING:
    from conftest import Plugin

RESOURCE = "ex.dev/gpu"


@pytest.fixture
async def kubelet(api: Api, tmp_path: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(api, NodeShape("n1"), make_folders(tmp_path / "node"), environment={})
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


async def offers(api: Api, allocatable: str) -> str:
    """Wait for this many allocatable devices; return the capacity."""
    async with asyncio.timeout(20):
        while True:
            status = (await api.get(NODES, "n1")).get("status", {})
            if status.get("allocatable", {}).get(RESOURCE) == allocatable:
                return str(status["capacity"][RESOURCE])
            await asyncio.sleep(0.01)


@pytest.fixture
async def two(api: Api, kubelet: Kubelet, make_plugin: Callable[..., Any]) -> tuple[Plugin, Plugin]:
    """A plugin with four devices, and one with one device that registered the same name later."""
    first, second = make_plugin(kubelet.folders, slots=4), make_plugin(kubelet.folders, slots=1)
    await first.serve("first.sock")
    await first.register("first.sock")
    await offers(api, "4")
    await second.serve("second.sock")
    await second.register("second.sock")
    await offers(api, "1")
    return first, second


async def test_the_first_plugins_stream_goes_on_and_its_next_list_replaces_the_seconds(
    api: Api, two: tuple[Plugin, Plugin]
) -> None:
    two[0].set_health("slot-3", "Unhealthy")
    assert await offers(api, "3") == "4"


async def test_when_the_second_plugin_ends_nothing_is_healthy_though_the_first_goes_on(
    api: Api, two: tuple[Plugin, Plugin]
) -> None:
    await two[1].stop()
    assert await offers(api, "0") == "1"


async def test_when_the_first_plugin_ends_the_second_is_disconnected(
    api: Api, two: tuple[Plugin, Plugin]
) -> None:
    await two[0].stop()
    assert await offers(api, "0") == "1"


async def test_a_lost_stream_is_not_dialled_again_until_the_plugin_registers(
    api: Api, kubelet: Kubelet, make_plugin: Callable[..., Any]
) -> None:
    plugin = make_plugin(kubelet.folders)
    await plugin.serve()
    await plugin.register()
    await offers(api, "4")
    await kubelet.lose_plugin(RESOURCE)
    assert await offers(api, "0") == "4"
    await plugin.register()
    await offers(api, "4")
