"""Claims mode from the pod to its container, with Kubernetes itself, its kubelet and our programs.

Only the container runtime and the devices are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent_node import GPU_0, GPU_1, a_driver_device
from claims_chain import NODE, Chain, a_chain, soon, values
from vgpu_api.resources import EVENTS, NAMESPACES, PODS, RESOURCE_CLAIMS
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.control_plane import MinorVersion
from vgpu_local.steps import a_container, a_pod
from vgpu_operator.cli.uninstall import BINDINGS

HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 50}

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
async def chain(kubernetes_version: MinorVersion) -> AsyncIterator[Chain]:
    devices = [a_driver_device(), a_driver_device(GPU_1, 1)]
    async with a_chain(kubernetes_version, devices=devices) as running:
        yield running


async def test_a_pod_runs_as_its_vgpuclaim_says_and_holds_the_device_until_it_is_unprepared(
    chain: Chain,
) -> None:
    pod = await chain.api.create(PODS, a_pod("first", a_container(limits=HALF)))
    containers = await chain.runs("first")
    allocation = await chain.allocation(pod)
    assert allocation is not None
    (device,) = allocation["devices"]
    assert (device["memory"], device["cores"]) == ("8Gi", 50)
    assert values(containers["main"], "CUDA_DEVICE_MEMORY_LIMIT_0") == ["8192M"]
    chain.runtime.stop_s = 3.0
    await chain.api.delete(PODS, "first", namespace="default", grace_s=10)
    while chain.runtime.running("default", "first"):
        held = await chain.allocation(pod)
        still_runs = bool(chain.runtime.running("default", "first"))
        assert held or not still_runs
        await asyncio.sleep(0.1)
    chain.runtime.stop_s = 0.0
    await chain.empty()


async def test_two_devices_of_one_container_are_both_prepared(chain: Chain) -> None:
    both = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1024}
    pod = await chain.api.create(PODS, a_pod("pair", a_container(limits=both)))
    containers = await chain.runs("pair")
    allocation = await chain.allocation(pod)
    assert allocation is not None
    assert {each["uuid"] for each in allocation["devices"]} == {GPU_0, GPU_1}
    assert values(containers["main"], "CUDA_DEVICE_MEMORY_LIMIT_") == ["1024M", "1024M"]
    await chain.delete("pair")
    await chain.empty()


async def test_each_container_gets_what_it_asked_for(chain: Chain) -> None:
    small = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    large = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}
    await chain.api.create(
        PODS, a_pod("two", a_container("a", limits=small), a_container("b", limits=large))
    )
    containers = await chain.runs("two")
    found = {name: values(each, "CUDA_DEVICE_MEMORY_LIMIT_0") for name, each in containers.items()}
    assert found == {"a": ["1024M"], "b": ["2048M"]}
    await chain.delete("two")
    await chain.empty()


async def test_a_claim_of_a_users_own_making_limits_the_pod_that_names_it(chain: Chain) -> None:
    """Its requests have other names than the containers, and each container has its own limit.

    Pods of the same second are served in the order of their UIDs, so either may be the first.
    """

    def a_request(name: str, memory: str) -> Object:
        capacity = {"requests": {"memory": memory, "cores": 20}}
        return {"name": name, "exactly": {"deviceClassName": "vgpu.dev", "capacity": capacity}}

    def a_user(name: str, request: str) -> Object:
        container = a_container(name)
        container["resources"] = {"claims": [{"name": "gpu", "request": request}]}
        return container

    spec = {"devices": {"requests": [a_request("large", "4Gi"), a_request("small", "1Gi")]}}
    metadata = {"name": "mine", "namespace": "default"}
    await chain.api.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec})
    entry = {"name": "gpu", "resourceClaimName": "mine"}
    containers = (a_user("a", "large"), a_user("b", "small"))
    for name in ("one", "two"):
        await chain.api.create(PODS, a_pod(name, *containers, resourceClaims=[entry]))
    waiting = {"one", "two"}
    while waiting:
        name = await chain.first_of(waiting)
        waiting.remove(name)
        found = await chain.runs(name)
        assert {
            each: values(container, "CUDA_DEVICE_MEMORY_LIMIT_0")
            for each, container in found.items()
        } == {"a": ["4096M"], "b": ["1024M"]}
        assert [each for each in waiting if chain.runtime.running("default", each)] == []
        await chain.delete(name)
    await chain.api.delete(RESOURCE_CLAIMS, "mine", namespace="default")
    await chain.empty()


async def test_a_second_pod_on_one_claim_gets_no_container_however_it_came_to_the_node(
    chain: Chain,
) -> None:
    """Webhook and policy on pods are left out, as if the pod had been made before they were."""
    pod = await chain.api.create(PODS, a_pod("victim", a_container(limits=HALF)))
    await chain.runs("victim")
    stored = await chain.api.get(PODS, "victim", namespace="default")
    await chain.api.delete(BINDINGS, "vgpu-claim-users")
    opted_out = {"metadata": {"labels": {"hami.io/webhook": "ignore"}}}
    await chain.api.merge_patch(NAMESPACES, "default", opted_out)
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    name = stored["spec"]["resourceClaims"][0]["resourceClaimName"]
    entry = {"name": "gpu", "resourceClaimName": name}
    thief = a_pod("thief", container, resourceClaims=[entry], nodeName=NODE)

    async def is_made() -> bool:
        try:
            await chain.api.create(PODS, thief)
        except ApiError:
            return False
        return True

    await soon(is_made, chain.left)

    async def is_refused_by_the_kubelet() -> bool:
        events = (await chain.api.list(EVENTS, namespace="default")).items
        messages = [e["message"] for e in events if e["involvedObject"].get("name") == "thief"]
        return any("is not allowed to use ResourceClaim" in each for each in messages)

    await soon(is_refused_by_the_kubelet, chain.left)
    assert chain.runtime.running("default", "thief") == []
    assert len(chain.runtime.running("default", "victim")) == 1
    claim = await chain.api.get(RESOURCE_CLAIMS, name, namespace="default")
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    await chain.delete("thief")
    await chain.delete("victim")
    await chain.empty()
