"""A pod has its cards on a node that kube-scheduler rules out, and is refused on all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_device
from vgpu_api.core import Pod
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest


def filtered(replica: Any, pod: Pod, *nodes: str) -> list[str]:
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(nodes)})
    return list(filter_nodes(replica.engine, request).node_names)


def node_of(replica: Any, pod: Pod) -> str | None:
    held = replica.engine.scheduler.reservations.of_pod(pod.metadata.uid)
    return None if held is None else held.node


async def pokes(replica: Any) -> list[str]:
    for _ in range(3):
        await replica.settle()
        await asyncio.sleep(0)
    await replica.engine.hints.drain()
    return [name for verb, name in replica.api.log if verb == "merge"]


@pytest.fixture
async def passed_over(replica: Any) -> Pod:
    """It has its cards on node-1; node-2, all that was offered, has none that is healthy."""
    replica.card(uuid="GPU-1", node="node-1")
    replica.card(uuid="GPU-2", node="node-2", healthy=False)
    pod: Pod = replica.pod("a")
    await replica.settle()
    assert node_of(replica, pod) == "node-1"
    assert filtered(replica, pod, "node-2") == []
    assert await pokes(replica) == []
    return pod


def gets_well(replica: Any) -> None:
    recovered = a_device(uuid="GPU-2", node="node-2", resource_version=2)
    replica.engine.intake.device_changed(recovered)


async def test_it_moves_and_is_woken_when_there_is_room_where_it_may_go(replica, passed_over):
    assert node_of(replica, passed_over) == "node-1"
    gets_well(replica)
    assert await pokes(replica) == ["a"]
    assert node_of(replica, passed_over) == "node-2"


async def test_it_does_not_move_to_where_it_was_not_offered(replica, passed_over):
    replica.card(uuid="GPU-3", node="node-3")
    assert await pokes(replica) == []
    assert node_of(replica, passed_over) == "node-1"


async def test_a_filter_that_offers_its_node_again_finds_its_cards_there(replica, passed_over):
    assert filtered(replica, passed_over, "node-1", "node-2") == ["node-1"]
    gets_well(replica)
    assert await pokes(replica) == []
    assert node_of(replica, passed_over) == "node-1"


async def test_it_is_woken_also_after_its_reservation_expired(replica, passed_over):
    replica.time += 301
    assert await pokes(replica) == []
    assert node_of(replica, passed_over) is None
    gets_well(replica)
    assert await pokes(replica) == ["a"]
    assert node_of(replica, passed_over) == "node-2"


async def test_after_that_it_takes_no_cards_where_it_cannot_go(replica, passed_over):
    replica.time += 301
    assert await pokes(replica) == []
    replica.card(uuid="GPU-4", node="node-1")
    assert await pokes(replica) == []
    assert node_of(replica, passed_over) is None
