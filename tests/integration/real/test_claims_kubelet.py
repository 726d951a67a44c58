"""Mode Claims from the pod to its container, with Kubernetes itself, its kubelet and our programs.

Only the container runtime and the devices are simulated.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device, until
from vgpu_api.resources import EVENTS, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, kubeconfig_with, token
from vgpu_local.agent_pod import create_agent_pod
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.cri.runtime import PlayedContainer, PlayedRuntime
from vgpu_local.installed import InstalledCluster
from vgpu_local.real_kubelet import RealKubelet
from vgpu_local.steps import a_container, a_pod
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.config import AgentConfig
from vgpu_operator.cli.uninstall import BINDINGS

NODE = "n1"
LIMIT_S = 40.0
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 50}

pytestmark = pytest.mark.timeout(200)


@dataclass(frozen=True, slots=True)
class Chain:
    """A cluster with one node and a simulated container runtime."""

    api: Api
    runtime: PlayedRuntime

    async def runs(self, name: str) -> dict[str, PlayedContainer]:
        """Wait until a pod runs; return its containers by name."""
        await until(self.api, PODS, name, lambda pod: pod["status"].get("phase") == "Running",
                    limit_s=LIMIT_S)  # fmt: skip
        return {each.place[2]: each for each in self.runtime.running("default", name)}

    async def first_of(self, names: Collection[str]) -> str:
        """Wait until one of these pods runs; return its name."""

        async def running() -> list[str]:
            pods = (await self.api.list(PODS, namespace="default")).items
            found = {p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"}
            return sorted(found.intersection(names))

        return (await soon(running, self.left))[0]

    async def allocation(self, pod: Object) -> Object | None:
        """Return the allocation of a pod's VGPUClaim, or None."""
        for claim in (await self.api.list(VGPU_CLAIMS, namespace="default")).items:
            status = claim.get("status") or {}
            if status.get("reservedFor", {}).get("podUID") == pod["metadata"]["uid"]:
                return status.get("allocation")
        return None

    async def left(self) -> list[str]:
        """Return the namespace's remaining pods and claims, and the nodes' remaining CDI specs."""
        found = [path.name for path in self.runtime.cdi_folder.iterdir()]
        for resource in (PODS, VGPU_CLAIMS, RESOURCE_CLAIMS):
            listing = await self.api.list(resource, namespace="default")
            found += [f"{resource.kind} {each['metadata']['name']}" for each in listing.items]
        return found

    async def delete(self, name: str) -> None:
        await self.api.delete(PODS, name, namespace="default", grace_s=1)

    async def empty(self) -> None:
        """Wait until no object and no file on the node is left."""

        async def is_empty() -> bool:
            return not await self.left()

        await soon(is_empty, self.left)


async def soon(
    look: Callable[[], Awaitable[Any]], otherwise: Callable[[], Awaitable[object]]
) -> Any:
    """Return the result of the condition as soon as it is true."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < end, await otherwise()
        await asyncio.sleep(0.1)
    return found


def values(container: PlayedContainer, prefix: str) -> list[str]:
    return [value for name, value in container.edits.env if name.startswith(prefix)]


@asynccontextmanager
async def a_node(plane: ControlPlane, api: Api, root: Path) -> AsyncIterator[PlayedRuntime]:
    kubelet = RealKubelet(plane.programs / "kubelet", plane.kubeconfig, NODE, root)
    runtime = PlayedRuntime(root / "cdi")
    await runtime.start(kubelet.runtime_socket)
    library = root / "libvgpu.so"
    library.write_bytes(b"")
    config = AgentConfig(
        node_name=NODE,
        state_dir=root / "state",
        library=library,
        kubelet_dir=kubelet.folder,
        device_plugins_dir=kubelet.folder / "device-plugins",
        cdi_dir=runtime.cdi_folder,
        metrics_port=0,
        health_port=0,
        dra=True,
        instance="agent-1",
    )
    driver = ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)])
    try:
        kubelet.start()
        await until(api, NODES, NODE, lambda _: True, limit_s=LIMIT_S)
        await create_agent_pod(api, NODE)
        bearer = await token(api, AGENT, node=NODE)
        own = kubeconfig_with(plane.kubeconfig, root / "agent.kubeconfig", bearer)
        async with Api.connect(str(own)) as of_agent:
            agent = Agent(config, of_agent, driver)
            running = asyncio.ensure_future(agent.run())
            try:
                async with asyncio.timeout(LIMIT_S):
                    while "DRA" in agent.unready() or "not read" in agent.unready():
                        assert not running.done(), running.exception()
                        await asyncio.sleep(0.05)
                yield runtime
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    finally:
        kubelet.stop()
        await runtime.stop()


@pytest.fixture(scope="module")
async def chain(kubernetes_version: MinorVersion) -> AsyncIterator[Chain]:
    plane = ControlPlane(Options(controllers=True, version=kubernetes_version))
    cluster = InstalledCluster(
        [], operators=1, webhooks=1, overlay="claims", lease_s=6, plane=plane
    )
    with tempfile.TemporaryDirectory(prefix="ck") as folder:
        try:
            await asyncio.to_thread(plane.start)
            await asyncio.to_thread(cluster.start)
            async with (
                Api.connect(str(plane.kubeconfig)) as api,
                a_node(plane, api, Path(folder)) as runtime,
            ):
                yield Chain(api, runtime)
        finally:
            await asyncio.to_thread(cluster.stop)
            await asyncio.to_thread(plane.stop)


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
