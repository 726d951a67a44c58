"""ResourceSlices on Kubernetes itself: accepted, recreated, never allocated by kube-scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_bench import GPU_0, a_bench
from vgpu_api.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from vgpu_client.api import Api
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, Severity
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.draplugin.slices import SlicePublisher
from vgpu_nodeagent.events import InventoryChanged
from vgpu_nodeagent.reporting.node_devices import NodeDevices

DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def control_plane(kubernetes_version: MinorVersion) -> Iterator[ControlPlane]:
    options = Options(version=kubernetes_version, controllers=True, scheduler=True)
    with ControlPlane(options) as running:
        yield running


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api.connect(str(control_plane.kubeconfig)) as api:
        yield api


@pytest.fixture
async def devices(api: Api, tmp_path: Path) -> AsyncIterator[NodeDevices]:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
    }
    await api.create(NODES, node)
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    status = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
    }
    await api.merge_patch(NODES, "n1", {"status": status}, subresource="status")
    bench = await a_bench(tmp_path)
    yield NodeDevices(bench.node.inventory, Health())
    await api.delete(NODES, "n1")


async def until(holds: Callable[[], Awaitable[Any]], *, limit_s: float = 30.0) -> Any:
    """Return the result of the condition as soon as it is true."""
    async with asyncio.timeout(limit_s):
        while True:
            if found := await holds():
                return found
            await asyncio.sleep(0.1)


async def test_a_published_device_comes_back_and_is_never_allocated_by_kube_scheduler(
    api: Api, devices: NodeDevices
) -> None:
    publisher = SlicePublisher(api, "n1", devices)
    runs = asyncio.ensure_future(publisher.run())

    async def slices() -> list[Any]:
        return list((await api.list(RESOURCE_SLICES)).items)

    (first,) = await until(slices)
    (device,) = first["spec"]["devices"]
    assert device["name"] == GPU_0.lower()
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"]["requestPolicy"]["validRange"]["step"] == "1Mi"
    assert [taint["key"] for taint in device["taints"]] == ["vgpu.dev/ledger"]

    await refused_by_the_scheduler(api)

    # A kubelet that starts deletes all slices of its node.
    await api.delete(RESOURCE_SLICES, first["metadata"]["name"])

    async def other() -> list[Any]:
        uid = first["metadata"]["uid"]
        return [each for each in await slices() if each["metadata"]["uid"] != uid]

    (second,) = await until(other)
    fell = DeviceEvent(GPU_0, Severity.FATAL, "XidError", "Xid 79")
    devices.health.note(fell, devices=[GPU_0], now=0.0)
    publisher.observe(InventoryChanged())

    async def changed() -> list[Any]:
        version = second["metadata"]["resourceVersion"]
        return [each for each in await slices() if each["metadata"]["resourceVersion"] != version]

    (third,) = await until(changed)
    generations = [each["spec"]["pool"]["generation"] for each in (second, third)]
    assert generations[0] < generations[1]
    assert len(third["spec"]["devices"][0]["taints"]) == 2
    assert not runs.done()
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)


async def refused_by_the_scheduler(api: Api) -> None:
    """Check that kube-scheduler finds no device for a plain claim of the driver's class."""
    expression = 'device.driver == "vgpu.dev"'
    await api.create(
        DEVICE_CLASSES,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "vgpu.dev"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
    )
    request = {"name": "main", "exactly": {"deviceClassName": "vgpu.dev"}}
    await api.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "plain", "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        },
    )
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    await api.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "plain", "namespace": "default"},
            "spec": {
                "containers": [container],
                "tolerations": [{"operator": "Exists"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "plain"}],
            },
        },
    )

    async def told() -> str:
        pod = await api.get(PODS, "plain", namespace="default")
        conditions = pod["status"].get("conditions") or []
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled"), "")

    assert "cannot allocate all claims" in await until(told)
    claim = await api.get(RESOURCE_CLAIMS, "plain", namespace="default")
    assert "allocation" not in (claim.get("status") or {})
