"""The node's ResourceSlices: what they show, when they are written, and with which generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent_bench import GPU_0, a_bench
from agent_node import GPU_1, T4_MIB, a_driver_device
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_client.reads import Listing
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, PhysicalDevice, Severity
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.draplugin.slices import SlicePublisher, devices_of
from vgpu_nodeagent.reporting.node_devices import NodeDevices

TAINT = {"key": "vgpu.dev/ledger", "effect": "NoSchedule"}


class Server:
    """Keeps slices, and drops fields as a server does whose features are switched off."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"metadata": {"name": name, "uid": f"uid-of-{name}"}}

    async def apply(
        self, resource: Resource, obj: dict[str, Any], *, field_manager: str, force: bool
    ) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.writes += 1
        devices = [
            {k: v for k, v in device.items() if k != "allowMultipleAllocations"}
            for device in obj["spec"]["devices"]
        ]
        metadata = {**obj["metadata"], "resourceVersion": str(self.writes)}
        stored = {"metadata": metadata, "spec": {**obj["spec"], "devices": devices}}
        self.slices[metadata["name"]] = stored
        return stored

    async def delete(self, resource: Resource, name: str) -> None:
        await asyncio.sleep(0)
        if self.slices.pop(name, None) is None:
            raise NotFound(404, "NotFound", name)

    def generations(self) -> list[tuple[int, int]]:
        """Return generation and count of each slice."""
        pools = [each["spec"]["pool"] for each in self.slices.values()]
        return [(pool["generation"], pool["resourceSliceCount"]) for pool in pools]


async def some_devices(folder: Path, *devices: PhysicalDevice) -> NodeDevices:
    bench = await a_bench(folder, devices=devices)
    return NodeDevices(bench.node.inventory, Health())


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def publisher(server: Server, devices: NodeDevices, node: str = "n1") -> SlicePublisher:
    return SlicePublisher(cast("Api", server), node, devices)


async def test_a_device_is_shown_with_its_amounts_behind_the_taint(tmp_path: Path) -> None:
    gpu = replace(
        a_driver_device(), compute_capability="7.5", driver_version="535.104.05", numa_node=1
    )
    (device,) = devices_of(await some_devices(tmp_path, gpu))
    assert device["name"] == GPU_0.lower()
    assert device["taints"] == [TAINT]
    assert device["allowMultipleAllocations"] is True
    memory = device["capacity"]["memory"]
    assert memory["value"] == f"{T4_MIB}Mi"
    assert memory["requestPolicy"]["default"] == f"{T4_MIB}Mi"
    attributes = device["attributes"]
    assert attributes["type"] == {"string": "hami-gpu"}
    assert attributes["numa"] == {"int": 1}
    assert attributes["cudaComputeCapability"] == {"version": "7.5.0"}
    assert attributes["driverVersion"] == {"string": "535.104.05"}


async def test_a_device_that_is_unhealthy_has_a_second_taint(tmp_path: Path) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    fell = DeviceEvent(GPU_0, Severity.FATAL, "XidError", "Xid 79")
    devices.health.note(fell, devices=[GPU_0], now=0.0)
    (device,) = devices_of(devices)
    keys = [taint["key"] for taint in device["taints"]]
    assert keys == ["vgpu.dev/ledger", "vgpu.dev/unhealthy"]


async def test_what_is_published_already_is_not_written_again(tmp_path: Path) -> None:
    """Fails where the stored slice is compared: the server drops fields that it does not know."""
    devices = await some_devices(tmp_path, a_driver_device())
    server = Server()
    first = publisher(server, devices)
    await first.publish()
    await first.publish()
    following = publisher(server, devices)  # a restarted agent, whose watch shows what is there
    for stored in server.slices.values():
        following.added(stored)
    await following.publish()
    assert server.writes == 1
    (stored,) = server.slices.values()
    assert stored["metadata"]["ownerReferences"][0]["uid"] == "uid-of-n1"
    assert stored["spec"]["nodeName"] == stored["spec"]["pool"]["name"] == "n1"


async def test_every_change_is_a_new_generation_in_all_slices(tmp_path: Path) -> None:
    many = [a_driver_device(f"GPU-00000000-0000-0000-0000-{n:012d}", n, T4_MIB) for n in range(65)]
    devices = await some_devices(tmp_path, *many)
    server = Server()
    slices = publisher(server, devices)
    await slices.publish()
    assert server.generations() == [(1, 2), (1, 2)]
    assert [len(each["spec"]["devices"]) for each in server.slices.values()] == [64, 1]
    devices.health.note(
        DeviceEvent(many[0].uuid, Severity.FATAL, "XidError", "Xid 79"), devices=[], now=0.0
    )
    await slices.publish()
    assert server.generations() == [(2, 2), (2, 2)]


async def test_a_slice_that_is_not_needed_any_more_is_deleted(tmp_path: Path) -> None:
    many = [a_driver_device(f"GPU-00000000-0000-0000-0000-{n:012d}", n, T4_MIB) for n in range(65)]
    devices = await some_devices(tmp_path, *many)
    server = Server()
    await publisher(server, devices).publish()
    fewer = await some_devices(made(tmp_path / "fewer"), a_driver_device(GPU_1))
    following = publisher(server, fewer)
    for stored in list(server.slices.values()):
        following.added(stored)
    await following.publish()
    assert server.generations() == [(2, 1)]


async def test_slices_that_a_restarted_kubelet_deleted_come_back(tmp_path: Path) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    server = Server()
    slices = publisher(server, devices)
    await slices.publish()
    (name,) = server.slices
    server.slices.clear()
    slices.deleted(ObjectIdentity("", name, "uid"))
    await slices.publish()
    assert list(server.slices) == [name]


async def test_an_older_event_does_not_undo_what_was_written(tmp_path: Path) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    server = Server()
    slices = publisher(server, devices)
    await slices.publish()
    (stored,) = server.slices.values()
    old = {**stored, "metadata": {**stored["metadata"], "annotations": {}, "resourceVersion": "0"}}
    slices.modified(old)
    await slices.publish()
    assert server.writes == 1


@pytest.mark.parametrize("length", [1, 63, 253])
async def test_the_name_of_a_slice_is_valid_whatever_the_node_is_called(
    tmp_path: Path, length: int
) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    server = Server()
    await publisher(server, devices, "n" * length).publish()
    (name,) = server.slices
    assert len(name) <= 253
    assert name.endswith("-vgpu.dev-0")


async def test_on_a_node_of_kube_schedulers_a_device_has_the_attribute_in_place_of_the_taint(
    tmp_path: Path,
) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    (device,) = devices_of(devices, for_scheduler=True)
    assert "taints" not in device
    assert device["attributes"]["allocator"] == {"string": "Scheduler"}
    # kube-scheduler takes the default for what a request leaves out: Kubernetes' rule for
    # capacity that several claims consume.
    policies = {name: each["requestPolicy"] for name, each in device["capacity"].items()}
    defaults = {name: policy["default"] for name, policy in policies.items()}
    assert defaults == {"memory": f"{T4_MIB}Mi", "cores": "0", "shares": "1"}
    fell = DeviceEvent(GPU_0, Severity.FATAL, "XidError", "Xid 79")
    devices.health.note(fell, devices=[GPU_0], now=0.0)
    (device,) = devices_of(devices, for_scheduler=True)
    assert device["taints"] == [{"key": "vgpu.dev/unhealthy", "effect": "NoSchedule"}]


async def test_a_device_in_mig_mode_is_not_offered_to_kube_scheduler(tmp_path: Path) -> None:
    cut = replace(a_driver_device(GPU_1, 1), mig_enabled=True)
    devices = await some_devices(tmp_path, a_driver_device(), cut)
    assert [each["name"] for each in devices_of(devices, for_scheduler=True)] == [GPU_0.lower()]
    assert len(devices_of(devices)) == 2


class LabelledServer(Server):
    """Also streams the node, and lists the claims that are allocated on it."""

    def __init__(self, *claims: dict[str, Any]) -> None:
        super().__init__()
        self.claims = list(claims)
        self.labels = {"vgpu.dev/allocator": "Scheduler"}

    async def list(self, resource: Resource, **options: Any) -> Any:
        await asyncio.sleep(0)
        each = options.get("each", lambda item: item)
        if resource.kind == "VGPUClaim":
            assert options["field_selector"] == "status.allocation.nodeName=n1"
            return Listing(items=list(self.claims), resource_version="1")
        node = {"metadata": {"name": "n1", "uid": "1", "resourceVersion": "1"}}
        labelled = node | {"metadata": node["metadata"] | {"labels": self.labels}}
        items = [each(labelled)] if resource.kind == "Node" else []
        return Listing(items=items, resource_version="1")

    async def watch(self, resource: Resource, **options: Any) -> AsyncGenerator[Any, None]:
        await asyncio.Event().wait()
        yield {}


def a_claim(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "annotations": annotations}}


@pytest.mark.parametrize(
    ("claims", "taints"),
    [
        ([], None),
        ([a_claim("theirs", **{"vgpu.dev/scheduler-claim": "gpu"})], None),
        ([a_claim("ours")], [TAINT]),
    ],
)
async def test_the_taint_goes_only_when_no_claim_of_the_operators_is_left(
    tmp_path: Path, claims: list[dict[str, Any]], taints: object
) -> None:
    devices = await some_devices(tmp_path, a_driver_device())
    server = LabelledServer(*claims)
    slices = SlicePublisher(cast("Api", server), "n1", devices, clock=Hasty())
    runs = asyncio.ensure_future(slices.run())
    async with asyncio.timeout(5):
        while not server.slices:
            assert not runs.done()
            await asyncio.sleep(0)
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    (stored,) = server.slices.values()
    assert stored["spec"]["devices"][0].get("taints") == taints


class Hasty(Clock):
    """A clock by which no wait takes time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
