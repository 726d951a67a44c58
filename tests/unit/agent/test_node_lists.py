"""Lists of an agent's node are served from the API server's cache: there are many agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vgpu_api.resources import Resource
from vgpu_client.reads import Listing
from vgpu_nodeagent.state.node_pods import NodePods
from vgpu_nodeagent.state.node_view import NodeView

FIELDS = {"pods": "spec.nodeName", "gpudevices": "spec.nodeName"}


class Lists:
    """Answers every list with nothing, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.all_watched = asyncio.Event()

    def acting_as(self, user: str) -> Lists:
        return self

    async def list(self, resource: Resource, **selection: Any) -> Listing:
        self.asked[resource.plural] = selection
        return Listing([], "7")

    async def watch(self, resource: Resource, **selection: Any) -> Any:
        self.asked[resource.plural] |= {"watched": selection["field_selector"]}
        if all("watched" in asked for asked in self.asked.values()) and len(self.asked) == 2:
            self.all_watched.set()
        await asyncio.Event().wait()
        yield {}


@pytest.mark.parametrize("plural", FIELDS)
async def test_lists_come_from_the_servers_cache_and_name_the_node(plural: str) -> None:
    api, view = Lists(), NodeView("n1")
    running = [
        asyncio.ensure_future(reflector.run())
        for reflector in view.reflectors(api, NodePods(api, "n1"))  # type: ignore[arg-type]
    ]
    async with asyncio.timeout(5):
        await api.all_watched.wait()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert api.asked[plural]["not_older_than"] == "0"
    assert api.asked[plural]["field_selector"] == f"{FIELDS[plural]}=n1"
    assert api.asked[plural]["watched"] == f"{FIELDS[plural]}=n1"
