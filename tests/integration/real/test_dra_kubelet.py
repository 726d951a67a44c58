"""The DRA driver and a real kubelet of each version, on a simulated runtime.

Only the kubelet is judged here, so the API server is the stand-in, and no pod needs a container.
The test allocates the VGPUClaim and the ResourceClaim as the operator does.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_node import GPU_0, GPU_1, T4_MIB, ObedientDriver, a_driver_device, until
from vgpu_api import dra
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VGPU_CLAIMS,
)
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound
from vgpu_local.apiserver import ApiServer
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.cri.runtime import PlayedContainer, PlayedRuntime
from vgpu_local.real_kubelet import RealKubelet
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.config import AgentConfig
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, Severity

CRDS = sorted((Path(__file__).parents[3] / "crds").glob("vgpu.dev_*.yaml"))
NODE = "n1"
LIMIT_S = 60.0

pytestmark = pytest.mark.timeout(400)


@dataclass(slots=True)
class Machine:
    """A node with a real kubelet, a played runtime and agents.

    Attributes:
        api: An administrator's client.
        kubelet: The kubelet.
        runtime: The simulated container runtime.
        driver: The driver of the devices.
        config: The agents' settings.
    """

    api: Api
    kubelet: RealKubelet
    runtime: PlayedRuntime
    driver: ObedientDriver
    config: AgentConfig
    agents: list[asyncio.Task[None]] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def start_agent(self) -> None:
        """Start one more agent, and wait until the kubelet has registered its driver."""
        instance = f"agent-{next(self._numbers)}"
        agent = Agent(replace(self.config, instance=instance), self.api, self.driver)
        self.agents.append(asyncio.ensure_future(agent.run()))
        async with asyncio.timeout(LIMIT_S):
            while "DRA" in agent.unready() or "not read" in agent.unready():
                assert not self.agents[-1].done(), self.agents[-1].exception()
                await asyncio.sleep(0.05)

    async def stop_agent(self) -> None:
        """End the oldest agent."""
        agent = self.agents.pop(0)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)

    async def restart_kubelet(self) -> None:
        self.kubelet.stop()
        self.kubelet.start()
        await until(self.api, NODES, NODE, _is_ready, limit_s=LIMIT_S)

    async def give(self, name: str, *, memory_mib: int = 1024, uuid: str = GPU_0) -> Any:
        """Create a pod whose claims are allocated; return the VGPUClaim."""
        claim, pod = await self.come(name)
        return await self.allocate(claim, pod, memory_mib=memory_mib, uuid=uuid)

    async def come(self, name: str) -> tuple[Any, Any]:
        """Create a pod and its ResourceClaim, allocated but without a VGPUClaim."""
        number = next(self._numbers)
        request = {"name": "main", "exactly": {"deviceClassName": "vgpu.dev"}}
        claim = await self.api.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "name": f"vgpu-{number:012x}",
                    "namespace": "default",
                    "finalizers": ["vgpu.dev/in-use"],
                },
                "spec": {"devices": {"requests": [request]}},
            },
        )
        uses = {"claims": [{"name": "vgpu", "request": "main"}]}
        claims = [{"name": "vgpu", "resourceClaimName": claim["metadata"]["name"]}]
        pod = await self.api.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "nodeName": NODE,
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "main", "image": "played", "resources": uses}],
                    "resourceClaims": claims,
                },
            },
        )
        result = {
            "request": "main",
            "driver": dra.DRIVER,
            "pool": NODE,
            "device": dra.device_name(GPU_0),
            "shareID": dra.share_id(_allocation_id(number), "main"),
        }
        status = {
            "allocation": {
                "allocationTimestamp": "2026-01-01T00:00:00Z",
                "devices": {"results": [result]},
            },
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}],
        }
        claim = await self.api.merge_patch(
            RESOURCE_CLAIMS,
            claim["metadata"]["name"],
            {"status": status},
            namespace="default",
            subresource="status",
        )
        return claim, pod

    async def allocate(
        self, claim: Any, pod: Any, *, memory_mib: int = 1024, uuid: str = GPU_0
    ) -> Any:
        """Write the VGPUClaim that the operator would have written first."""
        metadata = pod["metadata"]
        name = pod_claim_name(metadata["name"], metadata["uid"])
        await self.api.create(
            VGPU_CLAIMS,
            {
                "apiVersion": "vgpu.dev/v1alpha1",
                "kind": "VGPUClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"requests": [{"name": "main", "memory": f"{memory_mib}Mi"}]},
            },
        )
        number = int(claim["metadata"]["name"].removeprefix("vgpu-"), 16)
        device = {"request": "main", "uuid": uuid, "memory": f"{memory_mib}Mi", "index": 0}
        status = {
            "allocation": {
                "nodeName": NODE,
                "id": _allocation_id(number),
                "devices": [device],
                "resourceClaimUID": claim["metadata"]["uid"],
            },
            "reservedFor": {"podName": metadata["name"], "podUID": metadata["uid"]},
        }
        return await self.api.merge_patch(
            VGPU_CLAIMS, name, {"status": status}, namespace="default", subresource="status"
        )

    async def runs(self, name: str) -> PlayedContainer:
        """Wait until the kubelet shows that a pod runs; return its container."""
        await until(self.api, PODS, name, lambda pod: pod["status"].get("phase") == "Running",
                    limit_s=LIMIT_S)  # fmt: skip
        (container,) = self.runtime.running("default", name)
        return container

    async def delete(self, name: str, *, by_force: bool = False) -> None:
        grace = 0 if by_force else None
        await self.api.delete(PODS, name, namespace="default", grace_s=grace)

    async def released(self, claim: Any) -> bool:
        """Return True if the agent has reported the release of a VGPUClaim."""
        now = await self.api.get(VGPU_CLAIMS, claim["metadata"]["name"], namespace="default")
        return bool(now["status"].get("released"))

    async def is_gone(self, name: str) -> bool:
        try:
            await self.api.get(PODS, name, namespace="default")
        except NotFound:
            return True
        return False

    async def told(self, name: str, words: str) -> str:
        """Wait for an event of a pod whose message contains this text."""

        async def look() -> str:
            events = (await self.api.list(EVENTS, namespace="default")).items
            messages = [e["message"] for e in events if e["involvedObject"].get("name") == name]
            return next((each for each in messages if words in each), "")

        return str(await soon(look))

    async def clear(self) -> None:
        """Delete the objects that a test has left."""
        for pod in (await self.api.list(PODS, namespace="default")).items:
            await self.delete(pod["metadata"]["name"], by_force=True)

        async def no_share() -> bool:
            folder = self.config.state_dir / "slots"
            return not folder.exists() or not list(folder.iterdir())

        await soon(no_share)
        for resource in (VGPU_CLAIMS, RESOURCE_CLAIMS):
            for each in (await self.api.list(resource, namespace="default")).items:
                name = each["metadata"]["name"]
                change = {"metadata": {"finalizers": None}}
                await self.api.merge_patch(resource, name, change, namespace="default")
                try:
                    await self.api.delete(resource, name, namespace="default")
                except NotFound:
                    continue


def _allocation_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def _is_ready(node: Any) -> bool:
    conditions = node["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def soon(look: Callable[[], Awaitable[Any]], *, limit_s: float = LIMIT_S) -> Any:
    """Return the result of the condition as soon as it is true."""
    async with asyncio.timeout(limit_s):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.1)


@asynccontextmanager
async def a_machine(kubeconfig: Path, kubelet_program: Path, root: Path) -> AsyncIterator[Machine]:
    async with Api.connect(str(kubeconfig)) as api:
        for path in CRDS:
            crd = yaml.safe_load(path.read_text())
            await api.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, field_manager="test")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vgpu-node"}}
        await api.create(NAMESPACES, namespace)
        await soon(lambda: _serves(api))
        kubelet = RealKubelet(kubelet_program, kubeconfig, NODE, root)
        runtime = PlayedRuntime(root / "cdi")
        await runtime.start(kubelet.runtime_socket)
        library = root / "libvgpu.so"
        library.write_bytes(b"")
        machine = Machine(
            api,
            kubelet,
            runtime,
            ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)]),
            AgentConfig(
                node_name=NODE,
                state_dir=root / "state",
                library=library,
                kubelet_dir=kubelet.folder,
                device_plugins_dir=kubelet.folder / "device-plugins",
                cdi_dir=root / "cdi",
                metrics_port=0,
                health_port=0,
                dra=True,
                resource_slices=True,
            ),
        )
        try:
            kubelet.start()
            await until(api, NODES, NODE, _is_ready, limit_s=LIMIT_S)
            await machine.start_agent()
            yield machine
        finally:
            while machine.agents:
                await machine.stop_agent()
            kubelet.stop()
            await runtime.stop()


async def _serves(api: Api) -> bool:
    try:
        await api.list(VGPU_CLAIMS, namespace="default")
    except ClientError:
        return False
    return True


@pytest.fixture(scope="module")
async def whole(kubernetes_version: MinorVersion) -> AsyncIterator[Machine]:
    program = ControlPlane(Options(version=kubernetes_version)).programs / "kubelet"
    with tempfile.TemporaryDirectory(prefix="dk") as folder, ApiServer() as server:
        root = Path(folder)
        kubeconfig = server.kubeconfig(root / "kubeconfig")
        async with a_machine(kubeconfig, program, root) as machine:
            yield machine


@pytest.fixture
async def machine(whole: Machine) -> AsyncIterator[Machine]:
    yield whole
    whole.runtime.stop_s = 0.0
    await whole.clear()


def limits(container: PlayedContainer) -> Sequence[str]:
    return [value for name, value in container.edits.env if name == "CUDA_DEVICE_MEMORY_LIMIT_0"]


async def test_a_pod_runs_with_the_limits_of_its_vgpuclaim(machine: Machine) -> None:
    claim = await machine.give("first", memory_mib=2048)
    container = await machine.runs("first")
    assert limits(container) == ["2048M"]
    mounted = {mount.container_path for mount in container.edits.mounts}
    assert {"/usr/local/vgpu/limits", "/usr/local/vgpu/usage"} <= mounted
    await machine.delete("first")
    await soon(lambda: machine.released(claim))
    await soon(lambda: machine.is_gone("first"))
    assert list(machine.runtime.cdi_folder.iterdir()) == []


async def test_a_forged_allocation_gets_no_container_and_the_pod_shows_why(
    machine: Machine,
) -> None:
    claim, pod = await machine.come("forged")
    said = await machine.told("forged", "NodePrepareResources failed")
    assert "no claim on this node is reserved for pod default/forged" in said
    assert machine.runtime.running("default", "forged") == []
    # The operator wrote late, so the kubelet tries again by itself.
    await machine.allocate(claim, pod)
    await machine.runs("forged")


async def test_two_halves_run_and_a_third_waits_for_room(machine: Machine) -> None:
    for name in ("a", "b"):
        await machine.give(name, memory_mib=T4_MIB // 2)
        await machine.runs(name)
    await machine.give("c", memory_mib=1)
    await machine.told("c", "OverCapacity")
    assert machine.runtime.running("default", "c") == []
    await machine.delete("a")
    await machine.runs("c")


async def test_a_restarted_kubelet_keeps_the_container_and_the_slices_come_back(
    machine: Machine,
) -> None:
    claim = await machine.give("kept")
    before = await machine.runs("kept")

    async def slices() -> dict[str, Any]:
        listing = await machine.api.list(RESOURCE_SLICES)
        return {each["metadata"]["uid"]: each for each in listing.items}

    (first,) = await soon(slices)
    await machine.restart_kubelet()

    async def made_again() -> bool:
        found = await slices()
        return bool(found) and first not in found

    await soon(made_again)
    after = await machine.runs("kept")
    assert after.id == before.id
    await machine.give("next")
    await machine.runs("next")
    assert not await machine.released(claim)
    await machine.delete("kept")
    await soon(lambda: machine.released(claim))


async def test_after_a_reboot_the_pod_runs_again_with_its_limits(machine: Machine) -> None:
    await machine.give("rebooted", memory_mib=3072)
    before = await machine.runs("rebooted")
    machine.kubelet.stop()
    await machine.stop_agent()
    machine.runtime.reboot()
    for path in list(machine.runtime.cdi_folder.iterdir()):
        path.unlink()
    machine.kubelet.start()
    await machine.start_agent()

    async def runs_again() -> bool:
        found = machine.runtime.running("default", "rebooted")
        return bool(found) and found[0].id != before.id

    await soon(runs_again, limit_s=120)
    (container,) = machine.runtime.running("default", "rebooted")
    assert limits(container) == ["3072M"]


async def test_a_forced_deletion_gives_nothing_away_before_it_is_unprepared(
    machine: Machine,
) -> None:
    machine.runtime.stop_s = 3.0
    claim = await machine.give("stubborn", memory_mib=T4_MIB)
    await machine.runs("stubborn")
    await machine.delete("stubborn", by_force=True)
    await soon(lambda: machine.is_gone("stubborn"))

    async def released_after_its_container() -> bool:
        still_runs = bool(machine.runtime.running("default", "stubborn"))
        is_released = await machine.released(claim)
        assert not (still_runs and is_released)
        return is_released

    await soon(released_after_its_container)


async def test_while_no_agent_runs_a_deleted_pod_waits_and_holds_its_device(
    machine: Machine,
) -> None:
    claim = await machine.give("waiting")
    await machine.runs("waiting")
    await machine.stop_agent()
    await machine.delete("waiting")

    async def has_ended() -> bool:
        return not machine.runtime.running("default", "waiting")

    await soon(has_ended)
    await asyncio.sleep(2)
    assert not await machine.is_gone("waiting")
    assert not await machine.released(claim)
    await machine.start_agent()
    await soon(lambda: machine.released(claim), limit_s=120)
    await soon(lambda: machine.is_gone("waiting"), limit_s=120)


async def test_during_an_update_of_the_agent_every_pod_that_comes_starts_at_once(
    machine: Machine,
) -> None:
    """A call that fell into a gap would only be repeated after 10 s or more."""
    names = [f"during-{number}" for number in range(12)]
    clock = asyncio.get_running_loop().time
    took: dict[str, float] = {}

    async def comes(name: str) -> None:
        began = clock()
        uuid = (GPU_0, GPU_1)[len(took) % 2]  # a device has only ten slots
        await machine.give(name, memory_mib=256, uuid=uuid)
        await machine.runs(name)
        took[name] = clock() - began

    async def update() -> None:
        await machine.start_agent()
        await machine.stop_agent()

    updating = asyncio.ensure_future(update())
    for name in names:
        await comes(name)
    await updating
    assert max(took.values()) < 9, took
    for name in names:
        await machine.delete(name)

    async def nothing_is_left() -> bool:
        return list(machine.runtime.cdi_folder.iterdir()) == []

    await soon(nothing_is_left)


async def test_another_sandbox_of_a_prepared_pod_needs_no_preparation(machine: Machine) -> None:
    await machine.give("again")
    before = await machine.runs("again")
    machine.runtime.lose_sandbox("default", "again")

    async def runs_again() -> bool:
        found = machine.runtime.running("default", "again")
        return bool(found) and found[0].id != before.id

    await soon(runs_again)
    (container,) = machine.runtime.running("default", "again")
    assert limits(container) == limits(before)


async def test_a_kubelet_that_lost_its_record_holds_no_device_for_ever(machine: Machine) -> None:
    claim = await machine.give("forgotten")
    await machine.runs("forgotten")
    machine.kubelet.stop()
    (machine.kubelet.folder / "dra_manager_state").unlink()
    machine.kubelet.start()
    await until(machine.api, NODES, NODE, _is_ready, limit_s=LIMIT_S)
    await machine.delete("forgotten")
    await soon(lambda: machine.released(claim))


async def test_a_fault_of_the_device_shows_in_the_status_of_its_pod(machine: Machine) -> None:
    await machine.give("unhealthy", uuid=GPU_1)
    await machine.runs("unhealthy")
    fell = DeviceEvent(GPU_1, Severity.FATAL, "XidError", "Xid 79: fell off the bus")
    machine.driver.events.put_nowait(fell)

    def shows_it(pod: Any) -> bool:
        statuses = pod["status"].get("containerStatuses") or [{}]
        found = statuses[0].get("allocatedResourcesStatus") or []
        return any(
            resource["health"] == "Unhealthy" for each in found for resource in each["resources"]
        )

    await until(machine.api, PODS, "unhealthy", shows_it, limit_s=LIMIT_S)
