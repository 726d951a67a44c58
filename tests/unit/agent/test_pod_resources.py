from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from set_clock import SetClock
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.api import podresources_pb2 as pr
from vgpu_nodeagent.kubelet.api import podresources_pb2_grpc as pr_grpc
from vgpu_nodeagent.kubelet.pod_resources import ContainerSlots, PodResources


class Lister(pr_grpc.PodResourcesListerServicer):
    """A kubelet that answers when the test lets it, with a pod named after the call's number."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def List(self, request: Any, context: Any) -> pr.ListPodResourcesResponse:  # noqa: N802
        self.calls += 1
        number = self.calls
        self.asked.set()
        if self.errors:
            self.errors -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        await self.answer.wait()
        devices = [
            pr.ContainerDevices(resource_name=resource, device_ids=[device])
            for resource, device in (("gpu", "slot-1"), ("gpu", "slot-2"), ("nic", "eth0"))
        ]
        container = pr.ContainerResources(name="main", devices=devices)
        pod = pr.PodResources(name=f"pod-{number}", namespace="ns", containers=[container])
        return pr.ListPodResourcesResponse(pod_resources=[pod])

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@pytest.fixture
async def lister(tmp_path: Path) -> AsyncIterator[Lister]:
    server, lister = grpc.aio.server(), Lister()
    pr_grpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix://{tmp_path}/s")
    await server.start()
    yield lister
    await server.stop(None)


@pytest.fixture
def client(tmp_path: Path) -> PodResources:
    return PodResources(tmp_path / "s", resource="gpu", clock=SetClock())


async def test_the_entries_of_a_container_are_one_and_other_resources_none(
    lister: Lister, client: PodResources
) -> None:
    lister.answer.set()
    listing = await client.list()
    slots = frozenset({"slot-1", "slot-2"})
    assert listing.containers == (ContainerSlots("ns", "pod-1", "main", slots),)
    assert listing.pods == {("ns", "pod-1")}


async def test_who_asks_while_a_call_is_under_way_shares_the_next_one(
    lister: Lister, client: PodResources
) -> None:
    first = asyncio.ensure_future(client.list())
    await lister.asked.wait()
    later = [asyncio.ensure_future(client.list()) for _ in range(20)]
    await asyncio.sleep(0)
    lister.answer.set()
    assert (await first).pods == {("ns", "pod-1")}
    assert {pod for answer in await asyncio.gather(*later) for pod in answer.pods} == {
        ("ns", "pod-2")
    }
    assert lister.calls == 2


async def test_a_caller_that_gives_up_does_not_take_the_answer_from_others(
    lister: Lister, client: PodResources
) -> None:
    first = asyncio.ensure_future(client.list())
    await lister.asked.wait()
    impatient, patient = asyncio.ensure_future(client.list()), asyncio.ensure_future(client.list())
    await asyncio.sleep(0)
    impatient.cancel()
    lister.answer.set()
    assert (await patient).pods == {("ns", "pod-2")}
    assert (await first).pods == {("ns", "pod-1")}


async def test_a_rate_limit_is_waited_out(lister: Lister, client: PodResources) -> None:
    lister.errors = 2
    lister.answer.set()
    assert (await client.list()).pods == {("ns", "pod-3")}


async def test_a_kubelet_that_keeps_refusing_is_named(lister: Lister, client: PodResources) -> None:
    lister.errors = 100
    with pytest.raises(KubeletUnavailable, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
        await client.list()


async def test_an_absent_kubelet_is_named(tmp_path: Path) -> None:
    client = PodResources(tmp_path / "none", resource="gpu", clock=SetClock())
    with pytest.raises(KubeletUnavailable, match="UNAVAILABLE"):
        await client.list()
