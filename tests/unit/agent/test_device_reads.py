"""GPUDevices are read by name when the mark on the agent's pod differs from the copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from builders import a_device, a_pod, an_agent_pod
from vgpu_api.agent_pods import device_mark
from vgpu_api.core.pod import Pod
from vgpu_api.resources import Resource
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_client.errors import NotFound, Unreachable
from vgpu_client.reads import Listing
from vgpu_nodeagent.events import DeviceChanged, Events, PodChanged
from vgpu_nodeagent.state import device_reads
from vgpu_nodeagent.state.device_reads import DeviceReads
from vgpu_nodeagent.state.node_view import NodeView

NODE = "node-1"


def a_version(name: str, version: int, *, generation: int = 1, node: str = NODE) -> dict[str, Any]:
    raw = a_device(name=name, uuid=f"GPU-{name}", node=node).to_wire()
    raw["metadata"] |= {"resourceVersion": str(version), "generation": generation}
    return raw


class Devices:
    """An API server with devices that records its requests."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 10
        self.asked: list[str] = []
        self.is_up = True
        self.listed = asyncio.Event()

    def put(self, raw: dict[str, Any]) -> None:
        self.objects[raw["metadata"]["name"]] = raw

    @property
    def mark(self) -> str:
        """Return the mark that the operator would write on the agent's pod."""
        return device_mark(GPUDevice.read(raw) for raw in self.objects.values())

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if not self.is_up:
            raise Unreachable("no answer")
        if name not in self.objects:
            raise NotFound(f"no device {name}", status=404)
        return self.objects[name]

    async def list(self, resource: Resource, **selection: Any) -> Listing:
        self.asked.append("list")
        self.listed.set()
        assert selection == {"field_selector": f"spec.nodeName={NODE}", "not_older_than": "0"}
        here = [raw for raw in self.objects.values() if raw["spec"]["nodeName"] == NODE]
        return Listing(here, str(self.version))


class Node:
    """An agent with a view of the devices `one` and `two`."""

    def __init__(self) -> None:
        self.api = Devices()
        for name in ("one", "two"):
            self.api.put(a_version(name, 5))
        self.view = NodeView(NODE, Events())
        api: Any = self.api
        self.reads = DeviceReads(api, self.view)
        self._pod: Pod | None = None

    def shows(self, mark: str) -> None:
        """Let the watch show another mark on the agent's pod."""
        new = an_agent_pod(NODE, mark=mark)
        self.reads.observe(PodChanged(self._pod, new))
        self._pod = new

    async def until(self, **versions: str) -> None:
        """Wait until the agent knows exactly these versions."""
        async with asyncio.timeout(5):
            while self.known != versions:
                await self.view.events.take()

    @property
    def known(self) -> dict[str, str]:
        objects = self.view.devices.objects
        return {name: device.metadata.resource_version for (_, name), device in objects.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "_FIRST_S", 0.01)
    monkeypatch.setattr(device_reads, "_LIST_AFTER_S", 0.05)


@asynccontextmanager
async def a_node() -> AsyncIterator[Node]:
    node = Node()
    running = asyncio.create_task(node.reads.run())
    try:
        await node.until(one="5", two="5")
        assert node.api.asked == ["list"]
        node.api.asked.clear()
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_mark_of_what_is_known_asks_for_nothing() -> None:
    async with a_node() as node:
        node.shows(node.api.mark)
        await settle()
        assert node.api.asked == []


async def test_a_marked_change_is_read_by_name() -> None:
    async with a_node() as node:
        node.api.put(a_version("one", 20, generation=2))
        node.shows(node.api.mark)
        await node.until(one="20", two="5")
        await settle()
        assert sorted(node.api.asked) == ["one", "two"]


async def test_a_marked_deletion_is_noticed() -> None:
    async with a_node() as node:
        del node.api.objects["two"]
        node.shows(node.api.mark)
        await node.until(one="5")
        await settle()
        assert "list" not in node.api.asked


async def test_a_device_of_unknown_name_is_found_by_a_list() -> None:
    async with a_node() as node:
        node.api.put(a_version("three", 20))
        node.api.version = 20
        node.shows(node.api.mark)
        await node.until(one="5", two="5", three="20")
        assert node.api.asked[-1] == "list"


async def test_a_mark_that_is_late_costs_one_read_and_one_list_and_no_more() -> None:
    async with a_node() as node:
        late = node.api.mark
        newer = a_version("one", 20, generation=2)
        node.api.put(newer)
        node.api.version = 20
        node.view.take_device(newer)  # as the agent itself wrote it
        node.api.listed.clear()
        node.shows(late)
        async with asyncio.timeout(5):
            await node.api.listed.wait()
        await settle()
        assert sorted(node.api.asked) == ["list", "one", "two"]
        assert node.known == {"one": "20", "two": "5"}


async def test_while_the_server_is_away_the_copies_stand_and_are_read_afterwards() -> None:
    async with a_node() as node:
        node.api.is_up = False
        node.api.put(a_version("one", 20, generation=2))
        node.shows(node.api.mark)
        await settle()
        assert node.known == {"one": "5", "two": "5"}
        node.api.is_up = True
        await node.until(one="20", two="5")


async def test_the_mark_of_another_pod_means_nothing() -> None:
    async with a_node() as node:
        pod = a_pod("theirs", node=NODE, annotations={"vgpu.dev/poke": "devices 1"})
        node.reads.observe(PodChanged(None, pod))
        await settle()
        assert node.api.asked == []


async def test_an_older_version_than_the_known_one_is_ignored() -> None:
    view = NodeView(NODE, Events())
    view.take_device(a_version("one", 20))
    view.take_device(a_version("one", 19))
    assert view.devices.objects["", "one"].metadata.resource_version == "20"
    view.take_devices([], 19)  # a list from a stale cache
    assert ("", "one") in view.devices.objects
    view.take_devices([], 20)
    assert ("", "one") not in view.devices.objects


async def test_a_device_that_moved_to_another_node_is_dropped() -> None:
    view = NodeView(NODE, Events())
    view.take_device(a_version("one", 20))
    view.take_device(a_version("one", 21, node="node-2"))
    assert view.devices.objects == {}
    events = await view.events.take()
    assert [type(event) for event in events] == [DeviceChanged, DeviceChanged]
