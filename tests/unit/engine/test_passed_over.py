"""A pod has devices on a node that kube-scheduler rules out, and is refused on all others."""

from __future__ import annotations

import pytest

from builders import a_device
from replica import Replica
from vgpu_api.core import Pod
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest


def filtered(replica: Replica, pod: Pod, *nodes: str) -> list[str]:
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(nodes)})
    return list(filter_nodes(replica.engine, request).node_names)


def node_of(replica: Replica, pod: Pod) -> str | None:
    held = replica.reservation(pod)
    return None if held is None else held.node


async def requeued(replica: Replica) -> list[str]:
    """Settle, and return the pods that were requeued since the last call."""
    before = len(replica.api.log)
    await replica.settle()
    return [name for verb, name in replica.api.log[before:] if verb == "merge"]


@pytest.fixture
async def passed_over(replica: Replica) -> Pod:
    """Give the pod devices on node-1; node-2, the only offered node, has no healthy device."""
    replica.device(uuid="GPU-1", node="node-1")
    replica.device(uuid="GPU-2", node="node-2", healthy=False)
    pod: Pod = replica.offered("a")
    await replica.settle()
    assert node_of(replica, pod) == "node-1"
    assert filtered(replica, pod, "node-2") == []
    assert await requeued(replica) == []
    return pod


def gets_well(replica: Replica) -> None:
    recovered = a_device(uuid="GPU-2", node="node-2", resource_version=2)
    replica.news.device_changed(recovered)


async def test_what_it_had_where_it_cannot_go_is_free_for_others(
    replica: Replica, passed_over: Pod
):
    assert node_of(replica, passed_over) is None
    assert replica.claim_of(passed_over).status.allocation is None
    other = replica.offered("b")
    assert node_of(replica, other) == "node-1"


async def test_it_is_requeued_when_there_is_room_where_it_may_go(
    replica: Replica, passed_over: Pod
):
    gets_well(replica)
    assert await requeued(replica) == ["a"]
    assert filtered(replica, passed_over, "node-2") == ["node-2"]
    assert node_of(replica, passed_over) == "node-2"


async def test_it_is_not_requeued_for_a_node_that_it_was_not_offered(
    replica: Replica, passed_over: Pod
):
    replica.device(uuid="GPU-3", node="node-3")
    assert await requeued(replica) == []


async def test_a_filter_that_offers_its_node_again_finds_its_devices_there(
    replica: Replica, passed_over: Pod
):
    assert filtered(replica, passed_over, "node-1", "node-2") == ["node-1"]
    gets_well(replica)
    assert await requeued(replica) == []
    await replica.settle()
    allocation = replica.claim_of(passed_over).status.allocation
    assert allocation.node_name == node_of(replica, passed_over) == "node-1"


async def test_its_earlier_place_is_kept_only_as_long_as_nobody_needs_it(
    replica: Replica, passed_over: Pod
):
    """Binding the pod's volumes may take minutes; afterwards it is tried on that node again."""
    full = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}
    other = replica.offered("b", limits=full)
    assert node_of(replica, other) == "node-1"
    assert filtered(replica, passed_over, "node-1") == []
