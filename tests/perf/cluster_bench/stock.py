"""Whole devices of a plain DRA driver, which kube-scheduler allocates: what its users create.

A driver's part at the node is left out, as are our agents' parts: a pod counts as started when it
has a node.
"""

from __future__ import annotations

import asyncio

from perf.cluster_bench.paper import DEVICES_PER_NODE, MEMORY_MIB
from perf.cluster_bench.timed import NAMESPACE
from vgpu_api.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from vgpu_client.api import Api
from vgpu_client.transport import Object

TEMPLATE = "one-gpu"
CONTROLLER = "resourceclaim-controller"
"""The only controller of kube-controller-manager that a pod with a template needs."""
_DRIVER = "gpu.example.com"
_AT_ONCE = 16


def _class() -> Object:
    selector = {"cel": {"expression": f"device.driver == '{_DRIVER}'"}}
    return {"metadata": {"name": _DRIVER}, "spec": {"selectors": [selector]}}


def _template() -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": _DRIVER}}
    return {
        "metadata": {"name": TEMPLATE, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _slice(node: str) -> Object:
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "index": {"int": index},
                "productName": {"string": "NVIDIA A100-SXM4-80GB"},
            },
            "capacity": {"memory": {"value": f"{MEMORY_MIB}Mi"}},
        }
        for index in range(DEVICES_PER_NODE)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node}-{_DRIVER}"},
        "spec": {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


async def make_stock_devices(api: Api, nodes: list[str]) -> None:
    """Publish eight devices for each node, with a class and a template that ask for one."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def publish(node: str) -> None:
        async with gate:
            await api.create(RESOURCE_SLICES, _slice(node))

    await api.create(DEVICE_CLASSES, _class())
    await api.create(RESOURCE_CLAIM_TEMPLATES, _template())
    await asyncio.gather(*(publish(node) for node in nodes))
