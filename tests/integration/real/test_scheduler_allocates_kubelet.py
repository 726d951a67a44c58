"""Devices that a stock kube-scheduler allocates from ResourceSlices, from the pod to its container.

Kubernetes itself, its kubelet and our programs run; the container runtime and the device of 16 GiB
are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_node import GPU_0, a_driver_device
from claims_chain import NODE, Chain, a_chain, soon, values
from vgpu_api.resources import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from vgpu_client.transport import Object
from vgpu_local.control_plane import MinorVersion
from vgpu_local.steps import a_container, a_pod

HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 50}

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
async def chain(kubernetes_version: MinorVersion) -> AsyncIterator[Chain]:
    async with a_chain(
        kubernetes_version, devices=[a_driver_device()], components=["resource-slices"]
    ) as running:
        exactly = {
            "deviceClassName": "scheduler.vgpu.dev",
            "capacity": {"requests": {"memory": "8Gi", "cores": "50"}},
        }
        template = {
            "metadata": {"name": "half", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
        await running.api.create(RESOURCE_CLAIM_TEMPLATES, template)
        yield running


async def label(chain: Chain, value: str | None) -> None:
    await chain.api.merge_patch(
        NODES, NODE, {"metadata": {"labels": {"vgpu.dev/allocator": value}}}
    )


async def taints(chain: Chain) -> list[str] | None:
    """Return the taints of the published device; None while none is published."""
    for each in (await chain.api.list(RESOURCE_SLICES)).items:
        for device in each["spec"].get("devices") or ():
            return [taint["key"] for taint in device.get("taints") or ()]
    return None


async def await_taints(chain: Chain, *wanted: str) -> None:
    async def shown() -> bool:
        return await taints(chain) == list(wanted)

    await soon(shown, lambda: taints(chain))


async def create(chain: Chain, name: str) -> Object:
    """Create a pod that asks kube-scheduler for half of a device."""
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    entry = {"name": "gpu", "resourceClaimTemplateName": "half"}
    return await chain.api.create(PODS, a_pod(name, container, resourceClaims=[entry]))


async def await_unschedulable(chain: Chain, name: str, text: str) -> None:
    async def told() -> bool:
        pod = await chain.api.get(PODS, name, namespace="default")
        conditions = pod["status"].get("conditions") or []
        return any(c["type"] == "PodScheduled" and text in c.get("message", "") for c in conditions)

    await soon(told, chain.left)


async def events(chain: Chain, reason: str, kind: str) -> list[str]:
    found = (await chain.api.list(EVENTS)).items
    return [
        each.get("message", "")
        for each in found
        if each["reason"] == reason and each["involvedObject"].get("kind") == kind
    ]


async def test_two_pods_share_a_device_and_a_third_waits_until_one_is_gone(chain: Chain) -> None:
    await label(chain, "Scheduler")
    await await_taints(chain)
    (published,) = (await chain.api.list(RESOURCE_SLICES)).items
    (device,) = published["spec"]["devices"]
    assert device["attributes"]["allocator"] == {"string": "Scheduler"}
    pods = {}
    for name in ("one", "two"):
        pods[name] = await create(chain, name)
        (container,) = (await chain.runs(name)).values()
        assert values(container, "CUDA_DEVICE_MEMORY_LIMIT_0") == ["8192M"]
        assert values(container, "CUDA_DEVICE_SM_LIMIT") == ["50"]
        assert values(container, "NVIDIA_VISIBLE_DEVICES") == [GPU_0]
    for pod in pods.values():
        allocation = await chain.allocation(pod)
        assert allocation is not None
        (given,) = allocation["devices"]
        assert (given["uuid"], given["memory"], given["cores"]) == (GPU_0, "8Gi", 50)
    claims = (await chain.api.list(RESOURCE_CLAIMS, namespace="default")).items
    assert [len(each["status"]["allocation"]["devices"]["results"]) for each in claims] == [1, 1]
    pods["three"] = await create(chain, "three")
    await await_unschedulable(chain, "three", "cannot allocate all claims")
    await chain.delete("one")
    await chain.runs("three")
    assert chain.runtime.running("default", "one") == []
    for name in ("two", "three"):
        await chain.delete(name)
    await chain.empty()


async def test_the_operator_leaves_the_node_to_kube_scheduler_and_says_so(chain: Chain) -> None:
    await label(chain, "Scheduler")
    await await_taints(chain)
    await chain.api.create(PODS, a_pod("words", a_container(limits=HALF)))

    async def told() -> bool:
        pod_events = await chain.api.list(EVENTS, namespace="default")
        return any("NodeOfScheduler" in each.get("message", "") for each in pod_events.items)

    await soon(told, chain.left)
    assert chain.runtime.running("default", "words") == []
    await chain.delete("words")
    await chain.empty()


async def test_a_label_that_changes_while_claims_are_held_gives_nothing_away_twice(
    chain: Chain,
) -> None:
    await label(chain, "Scheduler")
    await await_taints(chain)
    await create(chain, "theirs")
    await chain.runs("theirs")
    await label(chain, None)
    await await_taints(chain, "vgpu.dev/ledger")

    async def answered() -> Any:
        return await events(chain, "AllocatorChanged", "Node")

    (first,) = await soon(answered, chain.left)
    assert "claims that kube-scheduler allocated keep their devices (1)" in first
    # The operator counts what kube-scheduler gave: one half is left, and no more.
    await chain.api.create(PODS, a_pod("ours", a_container(limits=HALF)))
    await chain.runs("ours")
    await chain.api.create(PODS, a_pod("more", a_container(limits=HALF)))

    async def refused() -> bool:
        return bool(await events(chain, "CardInsufficientMemory", "Pod"))

    await soon(refused, chain.left)
    assert chain.runtime.running("default", "more") == []
    await chain.delete("more")
    await chain.delete("theirs")
    # kube-scheduler gets the node when the operator's claim is gone, and not before.
    await label(chain, "Scheduler")
    await create(chain, "next")
    await await_unschedulable(chain, "next", "cannot allocate all claims")
    await asyncio.gather(*(assert_tainted(chain) for _ in range(3)))
    await chain.delete("ours")
    await chain.runs("next")
    assert await taints(chain) == []
    await chain.delete("next")
    await chain.empty()


async def assert_tainted(chain: Chain) -> None:
    assert await taints(chain) == ["vgpu.dev/ledger"]
    assert chain.runtime.running("default", "next") == []
