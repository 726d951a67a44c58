"""The API server serves the agents' lists from its cache, because there are many agents."""

from __future__ import annotations

import asyncio
from typing import Any

from vgpu_api.resources import GPU_DEVICES, PODS, Resource
from vgpu_client.reads import Listing
from vgpu_nodeagent.state.device_reads import DeviceReads
from vgpu_nodeagent.state.node_pods import NodePods
from vgpu_nodeagent.state.node_view import NodeView


class Lists:
    """An API server that answers every list with no objects and records the requests."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.watched: dict[str, str] = {}
        self.are_all_asked = asyncio.Event()

    def acting_as(self, user: str) -> Lists:
        return self

    async def list(self, resource: Resource, **selection: Any) -> Listing:
        self.asked[resource.plural] = selection
        self._note()
        return Listing([], "7")

    async def watch(self, resource: Resource, **selection: Any) -> Any:
        self.watched[resource.plural] = selection["field_selector"]
        self._note()
        await asyncio.Event().wait()
        yield {}

    def _note(self) -> None:
        if self.watched and len(self.asked) == 2:
            self.are_all_asked.set()


async def test_lists_come_from_the_servers_cache_and_pods_alone_are_watched() -> None:
    api: Any = Lists()
    view = NodeView("n1")
    reads = DeviceReads(api, view)
    running = [
        asyncio.ensure_future(view.reflector(NodePods(api, "n1")).run()),
        asyncio.ensure_future(reads.run()),
    ]
    async with asyncio.timeout(5):
        await api.are_all_asked.wait()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert set(api.asked) == {PODS.plural, GPU_DEVICES.plural}
    for selection in api.asked.values():
        assert selection["not_older_than"] == "0"
        assert selection["field_selector"] == "spec.nodeName=n1"
    assert api.watched == {PODS.plural: "spec.nodeName=n1"}
