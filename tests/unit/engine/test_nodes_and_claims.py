"""A node is identified by its UID; another node with its name does not hold its allocations."""

from __future__ import annotations

import asyncio
from typing import Any

from builders import (
    a_claim,
    a_container,
    a_device,
    a_node,
    a_pod,
    a_request,
    an_allocated_device,
    an_allocation,
    use_of,
)
from replica import Replica
from vgpu_api.core import Node
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.wire import BindRequest

GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


def anew(name: str = "node-1") -> Node:
    node = a_node(name, resource_version=900)
    metadata = node.metadata.model_copy(update={"uid": f"another-{name}"})
    return node.model_copy(update={"metadata": metadata})


async def a_running_pod(replica: Replica) -> Any:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.news.pod_changed(
        a_pod("pod-1", node="node-1", resource_version=500, containers=[a_container(limits=GPU)])
    )
    await replica.settle()
    return pod


async def test_an_allocation_remembers_which_node_it_was_made_for(replica: Replica) -> None:
    pod = await a_running_pod(replica)
    assert replica.claim_of(pod).status.allocation.node_uid == "uid-of-node-1"


async def test_a_node_registered_anew_under_its_name_frees_what_was_given_on_the_former(
    replica: Replica,
) -> None:
    """The result is the same if the deletion in between was not seen."""
    pod = await a_running_pod(replica)
    name = replica.claim_of(pod).metadata.name
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]
    replica.news.node_changed(anew())
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_what_is_given_on_the_new_node_stays(replica: Replica) -> None:
    replica.device()
    replica.news.node_changed(anew())
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_uid == "another-node-1"
    replica.news.node_changed(anew())
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_an_allocation_that_names_no_node_uid_goes_with_the_nodes_name(
    replica: Replica,
) -> None:
    """Earlier versions wrote allocations without a node UID."""
    pod = await a_running_pod(replica)
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    del raw["status"]["allocation"]["nodeUID"]
    replica.claim(VGPUClaim.read(raw))
    replica.news.node_changed(anew())
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    replica.news.node_gone("node-1")
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert "allocation" not in replica.api.claim(raw["metadata"]["name"])["status"]


async def test_a_node_that_cannot_be_read_frees_nothing(replica: Replica) -> None:
    pod = await a_running_pod(replica)
    replica.news.node_unreadable("node-1", "uid-of-node-1")
    replica.cache.nodes.pop("node-1")  # as in a new leader, which has never read the node
    replica.news.node_unreadable("node-1", "uid-of-node-1")
    replica.engine.lead()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_no_two_allocations_have_the_same_name_even_if_the_clock_stands_still(
    replica: Replica,
) -> None:
    """Otherwise the agent's report about one would free the other while it is in use."""
    replica.device()
    small = {**GPU, "nvidia.com/gpumem": 64}
    pods = [replica.offered(f"pod-{number}", limits=small) for number in range(5)]
    await replica.settle()
    names = [replica.claim_of(pod).status.allocation.id for pod in pods]
    assert len(set(names)) == 5


async def test_a_device_that_two_nodes_claim_is_placed_on_the_first_until_that_lets_go(
    replica: Replica,
) -> None:
    replica.device(name="gpu-0", node="node-1")
    replica.device(name="gpu-0.node-2", node="node-2")
    assert isinstance(replica.offer(replica.pod(), "node-2"), Refusal)
    replica.news.device_gone("gpu-0")
    pod = replica.offered("pod-2")
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-2"


async def test_a_running_pod_keeps_its_devices_when_its_node_is_registered_anew(
    replica: Replica,
) -> None:
    """Its containers never stopped, so no other pod may get their devices until then."""
    replica.device(uuid="GPU-1", index=1)
    pod = await a_running_pod(replica)
    before = replica.claim_of(pod).status.allocation
    replica.news.node_gone("node-1")
    await replica.settle()
    assert replica.claim_of(pod).status.allocation == before
    other = replica.offered("other", limits={**GPU, "nvidia.com/gpu": 2, "nvidia.com/gpumem": 9000})
    replica.news.node_changed(anew())
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert after == before.model_copy(update={"node_uid": "another-node-1"})
    assert isinstance(replica.offer(other), Refusal)


async def test_a_node_registered_anew_has_a_minute_to_publish_the_devices_it_had(
    replica: Replica,
) -> None:
    pod = await a_running_pod(replica)
    before = replica.claim_of(pod).status.allocation
    replica.news.device_gone("gpu-0")
    replica.news.node_changed(anew())
    await replica.settle()
    replica.time += 30
    await replica.settle()
    assert replica.claim_of(pod).status.allocation == before
    replica.news.device_changed(a_device(resource_version=900))
    replica.time += 2
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert (after.id, after.node_uid) == (before.id, "another-node-1")


async def test_a_pod_is_decided_anew_where_another_machine_has_taken_its_nodes_name(
    replica: Replica,
) -> None:
    """This also holds while its former devices are being released."""
    pod = await a_running_pod(replica)
    before = replica.claim_of(pod).status.allocation
    replica.news.device_gone("gpu-0")
    replica.news.node_changed(anew())
    replica.news.device_changed(a_device(uuid="GPU-9", resource_version=900))
    await replica.settle()
    replica.time += 61
    replica.submit()  # the release is in progress
    replica.news.pod_changed(
        a_pod("pod-1", node="node-1", resource_version=600, containers=[a_container(limits=GPU)])
    )
    await replica.settle()
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert ([device.uuid for device in after.devices], after.node_uid) == (
        ["GPU-9"],
        "another-node-1",
    )
    assert after.id != before.id


async def test_a_node_registered_anew_between_filter_and_bind_is_decided_anew(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    before = replica.claim_of(pod).status.allocation
    replica.news.node_changed(anew())
    request = BindRequest("default", "pod-1", pod.metadata.uid, "node-1")
    said, _ = await asyncio.gather(replica.binder.bind(request), replica.settle())
    assert said == ""
    after = replica.claim_of(pod).status.allocation
    assert after.node_uid == "another-node-1"
    assert after.id != before.id


async def test_a_node_that_goes_while_a_binding_is_under_way_frees_nothing(
    replica: Replica,
) -> None:
    """The API server binds a pod even to a deleted node, and the node may come back."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name

    def node_goes(verb: str, _: str) -> None:
        if verb == "bind":
            replica.news.node_gone("node-1")
            replica.submit()

    replica.api.before = node_goes
    request = BindRequest("default", "pod-1", pod.metadata.uid, "node-1")
    assert await replica.binder.bind(request) == ""
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]


async def test_a_claim_that_vanishes_under_a_running_pod_is_made_again_as_it_was(
    replica: Replica,
) -> None:
    """A user removed its finalizer, or deleted and recreated the CRD."""
    replica.device(uuid="GPU-1", index=1)
    pod = await a_running_pod(replica)
    was = replica.claim_of(pod)
    name = was.metadata.name
    replica.api.vanish(VGPU_CLAIMS, name)
    replica.news.claim_gone(("default", name), was.metadata.uid)
    other = replica.pod("other", limits={**GPU, "nvidia.com/gpu": 2, "nvidia.com/gpumem": 9000})
    assert isinstance(replica.offer(other), Refusal)
    await replica.settle()
    made = replica.claim_of(pod)
    assert made.status.allocation == was.status.allocation
    assert made.status.reserved_for == was.status.reserved_for
    assert use_of(replica.ledger, was.status.allocation.devices[0].uuid).memory_mib == 8192
    assert list(replica.state.reservations) == []


async def test_a_claim_that_is_gone_before_the_watch_says_so_is_not_written_again_and_again(
    replica: Replica,
) -> None:
    """A watch may hang for minutes while every write is answered with 404."""
    replica.device()
    device = an_allocated_device(uuid="GPU-1", request="main", memory_mib=1024)
    ghost = a_claim("ghost", requests=[a_request(name="main", memory="1Gi")],
                    allocation=an_allocation(device, node="node-1"))  # fmt: skip
    replica.news.claim_changed(ghost)
    for _ in range(20):
        await replica.settle()
    tried = [entry for entry in replica.api.log if "ghost" in entry[1]]
    assert 1 <= len(tried) <= 3
