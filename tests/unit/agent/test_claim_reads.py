"""The agent reads claims only when a change of a pod on its node requires it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_bench import a_bound_pod
from builders import a_device
from set_clock import SetClock
from vgpu_api.core.pod import Pod
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import Resource
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound, Unreachable
from vgpu_client.reads import Listing
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.events import Events, PodListRead, StartGranted, StartRefused
from vgpu_nodeagent.state import claim_reads
from vgpu_nodeagent.state.claim_reads import ClaimReads
from vgpu_nodeagent.state.node_view import NodeView

NODE = "node-1"
SLOT = "nvidia.com/gpu"


def a_claim(name: str, pod: Pod, *, version: int, node: str = NODE) -> dict[str, Any]:
    """Return a claim on the wire, reserved for a pod if a node is given."""
    reserved = {"podName": pod.metadata.name, "podUID": pod.metadata.uid}
    allocation = {"nodeName": node, "id": "00000000-0000-0000-0000-000000000001", "devices": []}
    return {
        "metadata": {
            "namespace": pod.metadata.namespace,
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "spec": {"requests": [{"name": "main", "memory": "1Gi"}]},
        "status": {"allocation": allocation, "reservedFor": reserved} if node else {},
    }


class Claims:
    """An API server with claims that records its requests."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 10
        self.asked: list[str] = []
        self.is_up = True
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        self.asked.append(name)
        await self.answers.wait()
        if not self.is_up:
            raise Unreachable("no answer")
        if name not in self.objects:
            raise NotFound(f"no claim {name}", status=404)
        return self.objects[name]

    async def list(self, resource: Resource, **selection: Any) -> Listing:
        self.asked.append("list")
        if not self.is_up:
            raise Unreachable("no answer")
        assert selection["field_selector"] == f"status.allocation.nodeName={NODE}"
        return Listing(list(self.objects.values()), str(self.version))


class Node:
    """A view of a node whose events lead to reads of claims."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.api = Claims()
        self.view = NodeView(NODE, Events())
        api: Any = self.api
        self.reads = ClaimReads(api, self.view, SLOT, clock=clock)

    async def settle(self) -> None:
        """Apply the events, and let the immediate consequences run."""
        self.view.events.put(StartGranted(Pod()))  # so that an event arrives
        for event in await self.view.events.take():
            self.reads.observe(event)
        for _ in range(20):
            await asyncio.sleep(0)

    async def until_known(self, *names: str) -> None:
        """Wait until the agent knows exactly these claims."""
        async with asyncio.timeout(5):
            while set(self.known) != set(names):
                await self.view.events.take()

    @property
    def known(self) -> dict[str, str]:
        """Return the versions of the known claims."""
        objects = self.view.claims.objects
        return {name: claim.metadata.resource_version for (_, name), claim in objects.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_reads, "_BETWEEN_S", 0.0)
    monkeypatch.setattr(claim_reads, "_BOUND_S", 0.0)


@pytest.fixture
def some_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claims of new pods read only when the clock is set forward."""
    monkeypatch.setattr(claim_reads, "_BOUND_S", 5.0)


@asynccontextmanager
async def a_node(clock: Clock | None = None) -> AsyncIterator[Node]:
    node = Node(clock)
    running = asyncio.create_task(node.reads.run())
    node.view.events.put(PodListRead())
    await node.settle()
    node.api.asked.clear()
    try:
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def own(pod: Pod) -> str:
    return pod_claim_name(pod.metadata.name, pod.metadata.uid)


def changed(pod: Pod, **annotations: str) -> Pod:
    metadata = pod.metadata.model_copy(update={"annotations": annotations})
    return pod.model_copy(update={"metadata": metadata})


async def test_the_claim_of_a_pod_is_read_when_the_pod_is_bound_here() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        assert node.known == {own(pod): "11"}
        assert node.api.asked == [own(pod)]


@pytest.mark.usefixtures("some_time_later")
async def test_a_claim_whose_container_starts_soon_is_read_once() -> None:
    clock = SetClock()
    async with a_node(clock) as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        assert node.api.asked == []
        await node.reads.read_for(pod)
        assert node.known == {own(pod): "11"}
        clock.time += 60.0
        node.view.pods.modified(changed(pod, other="x"))
        await node.settle()
        assert node.api.asked == [own(pod)]


@pytest.mark.usefixtures("some_time_later")
async def test_a_claim_whose_container_does_not_start_soon_is_read_without_it() -> None:
    clock = SetClock()
    async with a_node(clock) as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        clock.time += 5.0
        node.view.events.put(PodListRead())  # the simulated clock wakes no task
        await node.settle()
        assert own(pod) in node.api.asked


@pytest.mark.usefixtures("some_time_later")
async def test_the_claim_of_a_pod_that_ends_before_it_starts_is_read_at_once() -> None:
    async with a_node(SetClock()) as node:
        gone, failed = a_bound_pod(name="gone"), a_bound_pod(name="failed")
        for pod in (gone, failed):
            node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
            node.view.pods.added(pod)
        await node.settle()
        place = (gone.metadata.namespace or "", gone.metadata.name)
        node.view.pods.deleted(ObjectIdentity(*place, gone.metadata.uid))
        status = failed.status.model_copy(update={"phase": "Failed"})
        node.view.pods.modified(failed.model_copy(update={"status": status}))
        await node.settle()
        assert node.known == {own(gone): "11", own(failed): "11"}


@pytest.mark.usefixtures("some_time_later")
async def test_a_claim_that_prestart_could_not_read_is_read_as_soon_as_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_reads, "_FIRST_S", 0.0)
    async with a_node(SetClock()) as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        node.api.is_up = False
        await node.reads.read_for(pod)
        node.api.is_up = True
        await node.until_known(own(pod))


async def test_a_change_that_is_no_mark_reads_nothing() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        node.api.asked.clear()
        status = pod.status.model_copy(update={"phase": "Running"})
        node.view.pods.modified(changed(pod, other="x").model_copy(update={"status": status}))
        await node.settle()
        assert node.api.asked == []


async def test_a_mark_on_the_pod_reads_its_claim() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=12)
        node.view.pods.modified(changed(pod, **{"vgpu.dev/poke": "2-abc"}))
        await node.settle()
        assert node.known == {own(pod): "12"}


async def test_a_mark_that_comes_while_its_claim_is_read_is_not_lost() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.api.answers.clear()
        node.view.pods.added(pod)
        await node.settle()
        node.view.pods.modified(changed(pod, **{"vgpu.dev/poke": "2-abc"}))
        await node.settle()
        assert node.api.asked == [own(pod)]
        node.api.answers.set()
        await node.settle()
        assert node.api.asked == [own(pod), own(pod)]


async def test_a_flood_of_marks_on_one_pod_causes_few_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant may change the annotation of its pod at any rate."""
    clock = SetClock()
    node = Node(clock)
    monkeypatch.setattr(claim_reads, "_BETWEEN_S", 0.25)
    running = asyncio.create_task(node.reads.run())
    try:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        for number in range(1000):
            clock.time += 0.001
            node.view.pods.modified(changed(pod, **{"vgpu.dev/poke": str(number)}))
            await node.settle()
        assert 4 <= node.api.asked.count(own(pod)) <= 5
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_prestart_does_not_wait_for_the_reads_that_others_cause() -> None:
    async with a_node() as node:
        node.api.answers.clear()
        for number in range(50):
            node.view.pods.added(a_bound_pod(name=f"theirs-{number}"))
        await node.settle()
        assert len(node.api.asked) == 8
        pod = a_bound_pod()
        starting = asyncio.ensure_future(node.reads.read_for(pod))
        await node.settle()
        assert own(pod) in node.api.asked
        node.api.answers.set()
        await starting


async def test_a_claim_that_the_pod_names_is_read() -> None:
    async with a_node() as node:
        pod = changed(a_bound_pod(), **{"vgpu.dev/claim": "shared"})
        node.api.objects["shared"] = a_claim("shared", pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        assert node.known == {"shared": "11"}


async def test_a_pod_without_slots_reads_nothing() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        spec = pod.spec.model_copy(update={"containers": []})
        node.view.pods.added(pod.model_copy(update={"spec": spec}))
        await node.settle()
        assert node.api.asked == []


async def test_a_refused_pods_claim_is_read_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_reads, "_FIRST_S", 0.0)
    async with a_node() as node:
        pod = a_bound_pod()
        node.view.pods.added(pod)
        node.view.events.put(StartRefused(pod))
        await node.settle()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        await node.until_known(own(pod))
        node.view.events.put(StartGranted(pod))
        await node.settle()
        node.api.asked.clear()
        await node.settle()
        assert node.api.asked == []


async def test_the_claim_of_an_ended_pod_is_read_until_its_allocation_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_reads, "_FIRST_S", 0.0)
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        await node.settle()
        place = (pod.metadata.namespace or "", pod.metadata.name)
        node.view.pods.deleted(ObjectIdentity(*place, pod.metadata.uid))
        await node.settle()
        assert node.known == {own(pod): "11"}
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=12, node="")
        await node.until_known()
        node.api.asked.clear()
        await node.settle()
        assert node.api.asked == []


async def test_after_a_gap_in_the_watch_of_pods_all_claims_are_listed() -> None:
    async with a_node() as node:
        lost, kept = a_bound_pod(name="lost"), a_bound_pod(name="kept")
        for pod in (lost, kept):
            node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
            node.view.take_claim(node.api.objects[own(pod)])
        del node.api.objects[own(lost)]
        unseen = a_bound_pod(name="unseen")
        node.api.objects[own(unseen)] = a_claim(own(unseen), unseen, version=12)
        node.api.version = 13
        node.view.pods.added(kept)
        node.view.events.put(PodListRead())
        await node.settle()
        assert node.known == {own(kept): "11", own(unseen): "12"}


async def test_a_list_of_an_older_cache_takes_nothing_back() -> None:
    async with a_node() as node:
        pod, newer = a_bound_pod(), a_bound_pod(name="newer")
        for number, each in enumerate((pod, newer)):
            node.view.pods.added(each)
            node.view.take_claim(a_claim(own(each), each, version=20 + number))
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=9, node="")
        node.api.version = 15
        node.view.take_claims(node.api.objects.values(), 15)
        assert node.known == {own(pod): "20", own(newer): "21"}


async def test_a_claim_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_reads, "_FIRST_S", 0.0)
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.api.is_up = False
        node.view.pods.added(pod)
        await node.settle()
        node.api.is_up = True
        await node.until_known(own(pod))


async def test_a_claim_is_read_although_the_kubelet_gave_up_its_call() -> None:
    """Otherwise nobody would report the devices of a pod that is deleted meanwhile as free."""
    async with a_node() as node:
        pod = a_bound_pod()
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=11)
        node.view.pods.added(pod)
        node.api.answers.clear()
        asked = asyncio.create_task(node.reads.read_for(pod))
        await node.settle()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        node.api.answers.set()
        await node.until_known(own(pod))


async def test_prestart_waits_for_no_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_reads, "_PRESTART_S", 0.01)
    async with a_node() as node:
        pod = a_bound_pod()
        node.view.take_claim(a_claim(own(pod), pod, version=11))
        node.api.answers.clear()
        async with asyncio.timeout(5):
            await node.reads.read_for(pod)
        assert node.known == {own(pod): "11"}


async def test_a_claim_that_is_allocated_elsewhere_by_now_is_dropped() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        node.view.take_claim(a_claim(own(pod), pod, version=11))
        node.api.objects[own(pod)] = a_claim(own(pod), pod, version=12, node="node-2")
        await node.reads.read_for(pod)
        assert node.known == {}


async def test_a_start_reads_the_devices_of_its_claim() -> None:
    """An administrator's change of a device counts for every pod that is created after it."""
    async with a_node() as node:
        pod = a_bound_pod()
        device = a_device(name="gpu-a", uuid="GPU-a", node=NODE).to_wire()
        other = a_device(name="gpu-b", uuid="GPU-b", node=NODE).to_wire()
        for raw in (device, other):
            raw["metadata"]["resourceVersion"] = "5"
            node.view.take_device(raw)
        forced = {**device, "spec": {**device["spec"], "corePolicy": "Force"}}
        forced["metadata"] = {**device["metadata"], "resourceVersion": "6"}
        node.api.objects["gpu-a"] = forced
        claim = a_claim(own(pod), pod, version=11)
        allocated = {"request": "main", "name": "gpu-a", "uuid": "GPU-a", "memory": "1Gi"}
        claim["status"]["allocation"]["devices"] = [allocated]
        node.api.objects[own(pod)] = claim
        await node.reads.read_for(pod)
        assert node.view.devices.objects["", "gpu-a"].spec.core_policy == "Force"
        assert "gpu-b" not in node.api.asked


async def test_a_start_reads_the_devices_of_a_known_claim_beside_it() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        claim = a_claim(own(pod), pod, version=11)
        allocated = {"request": "main", "name": "gpu-a", "uuid": "GPU-a", "memory": "1Gi"}
        claim["status"]["allocation"]["devices"] = [allocated]
        node.view.take_claim(claim)
        node.api.objects[own(pod)] = claim
        node.api.answers.clear()
        starting = asyncio.ensure_future(node.reads.read_for(pod))
        await node.settle()
        assert node.api.asked == [own(pod), "gpu-a"]
        node.api.answers.set()
        await starting


async def test_a_start_drops_a_device_whose_object_is_gone() -> None:
    async with a_node() as node:
        pod = a_bound_pod()
        device = a_device(name="gpu-a", uuid="GPU-a", node=NODE).to_wire()
        device["metadata"]["resourceVersion"] = "5"
        node.view.take_device(device)
        claim = a_claim(own(pod), pod, version=11)
        allocated = {"request": "main", "name": "gpu-a", "uuid": "GPU-a", "memory": "1Gi"}
        claim["status"]["allocation"]["devices"] = [allocated]
        node.api.objects[own(pod)] = claim
        await node.reads.read_for(pod)
        assert node.view.devices.objects == {}


async def test_the_view_is_not_synced_before_claims_were_listed() -> None:
    node = Node()
    node.api.is_up = False
    api: Any = node.api
    node.view.reflector(api).synced.set()
    node.view.take_devices([], 3)
    assert not node.view.is_synced
    node.view.take_claims([], 3)
    assert node.view.is_synced
