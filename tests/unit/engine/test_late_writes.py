"""A write that takes devices back has no response, and lands later or never.

Meanwhile a Filter offers the pod the same devices again. No pod is bound to them before the write
can no longer land.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from builders import a_pod_group
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.resources import VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import Conflict, TooManyRequests, Unknown
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, Reservation
from vgpu_operator.extender.wire import BindRequest


class Network:
    """The way to the API server, which can keep the statuses of claims back without a response."""

    def __init__(self, api: Any) -> None:
        self.is_slow = False
        self._late: list[Callable[[], Awaitable[Any]]] = []
        self._patch = api.json_patch
        api.json_patch = self.json_patch

    async def json_patch(
        self, resource: Resource, name: str, operations: Sequence[Any], **fields: Any
    ) -> Any:
        """Send a patch, or keep it back."""
        patch = partial(self._patch, resource, name, operations, **fields)
        if self.is_slow and resource == VGPU_CLAIMS:
            self._late.append(patch)
            raise Unknown("no answer in time")
        return await patch()

    async def deliver(self) -> list[bool]:
        """Deliver the delayed writes in their order; return for each if it succeeded."""
        done = []
        for patch in self._late:
            try:
                await patch()
            except Conflict:
                done.append(False)
            else:
                done.append(True)
        self._late.clear()
        return done


def binding(pod: Pod) -> BindRequest:
    return BindRequest(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, "node-1")


def bound(replica: Replica) -> list[str]:
    """Return the pods that got a Binding."""
    return sorted(name for verb, name in replica.api.log if verb == "bind")


def holds(replica: Replica, pod: Pod) -> bool:
    """Return True if the pod's claim has devices on the API server."""
    return replica.claim_of(pod).status.allocation is not None


async def is_being_taken_back(replica: Replica, pods: Sequence[Pod]) -> None:
    """Let the offers of pods lapse, and return once the writes that withdraw them are sent."""
    replica.time += OFFERED_S
    for _ in range(2):  # the pods are read first
        replica.submit()
        await replica.effector.drain()
    assert all(replica.reservation(pod) is None for pod in pods)
    replica.submit()


async def some_time(replica: Replica) -> None:
    """Let requests and rounds continue for some seconds."""
    for _ in range(4):
        replica.time += 1.0
        await replica.settle()


def is_tried(replica: Replica, pods: Sequence[Pod]) -> list[asyncio.Task[str]]:
    """Call Filter for each pod, and then send all their Binds."""
    for pod in pods:
        assert isinstance(replica.offer(pod, "node-1"), Reservation)
    return [asyncio.create_task(replica.binder.bind(binding(pod))) for pod in pods]


async def a_pod_with_devices(replica: Replica) -> list[Pod]:
    """Return a pod that was offered devices, and was not bound."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    return [pod]


async def a_gang_with_devices(replica: Replica) -> list[Pod]:
    """Return the pods of a group whose claims are written, and whose Bindings were refused."""
    replica.device()
    replica.news.pod_group_changed(a_pod_group("a", least=2))
    pods = [replica.pod(f"a-{number}", group="a") for number in range(2)]
    busy = TooManyRequests("later", status=429)
    replica.api.before = lambda verb, _: busy if verb == "bind" else None
    binds = is_tried(replica, pods)
    await replica.settle()
    assert all([await each for each in binds])
    replica.api.before = lambda verb, name: None
    return pods


of_each_kind = pytest.mark.parametrize("made", [a_pod_with_devices, a_gang_with_devices])


@of_each_kind
async def test_no_pod_is_bound_while_its_devices_may_still_be_taken_back(
    replica: Replica, made: Callable[[Replica], Awaitable[list[Pod]]]
) -> None:
    pods, network = await made(replica), Network(replica.api)
    network.is_slow = True
    await is_being_taken_back(replica, pods)
    binds = is_tried(replica, pods)
    await some_time(replica)
    assert bound(replica) == []
    assert any(await network.deliver())
    network.is_slow = False
    assert not any(holds(replica, pod) for pod in pods)
    await some_time(replica)
    for pod, answer in zip(pods, await asyncio.gather(*binds), strict=True):
        assert holds(replica, pod) or (answer != "" and bound(replica) == [])


@of_each_kind
async def test_a_pod_is_bound_once_a_later_write_has_made_the_late_one_fail(
    replica: Replica, made: Callable[[Replica], Awaitable[list[Pod]]]
) -> None:
    pods, network = await made(replica), Network(replica.api)
    before = [replica.claim_of(pod).status.allocation for pod in pods]
    network.is_slow = True
    await is_being_taken_back(replica, pods)
    binds = is_tried(replica, pods)
    await replica.effector.drain()
    network.is_slow = False
    await some_time(replica)
    assert await asyncio.gather(*binds) == [""] * len(pods)
    assert bound(replica) == [pod.metadata.name for pod in pods]
    assert not any(await network.deliver())
    assert [replica.claim_of(pod).status.allocation for pod in pods] == before


@of_each_kind
async def test_a_pod_is_bound_once_somebody_else_has_written_its_claim(
    replica: Replica, made: Callable[[Replica], Awaitable[list[Pod]]]
) -> None:
    """The late write tests an older version, so it fails."""
    pods, network = await made(replica), Network(replica.api)
    network.is_slow = True
    await is_being_taken_back(replica, pods)
    binds = is_tried(replica, pods)
    await replica.settle()
    assert bound(replica) == []
    for pod in pods:
        claim = replica.claim_of(pod).to_wire()
        replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, claim)))
    await some_time(replica)
    assert await asyncio.gather(*binds) == [""] * len(pods)
    assert not any(await network.deliver())
    assert all(holds(replica, pod) for pod in pods)
