"""The node's ResourceSlices: what they show, when they are written, and with which generation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent_bench import GPU_0, a_bench
from agent_node import GPU_1, T4_MIB, a_driver_device
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
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
