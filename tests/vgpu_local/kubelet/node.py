"""Creates the Node object, and updates its capacity as device plugins come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.resources import NODES
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists, Conflict
from vgpu_client.transport import Object
from vgpu_local.podwriter import merge_conditions, timestamp

VERSION = "v1.36.3"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The resources of a node besides its devices.

    Attributes:
        memory_mib: The main memory.
        pods: The largest number of pods.
        offered: The number of each further resource, as if a device plugin offered it.
    """

    name: str
    cpu: int = 64
    memory_mib: int = 512 * 1024
    pods: int = 250
    labels: Mapping[str, str] = field(default_factory=dict)
    offered: Mapping[str, int] = field(default_factory=dict)


def node_object(shape: NodeShape) -> Object:
    """Return the Node object to register, also for nodes without a kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": shape.name,
            "labels": {
                "kubernetes.io/hostname": shape.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **shape.labels,
            },
        },
        "spec": {},
    }


def node_status(
    shape: NodeShape, devices: Mapping[str, tuple[int, int]], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the status of a node that is Ready.

    Args:
        shape: The node's resources.
        devices: The capacity and allocatable number of each device plugin's resource.
        before: The current status; conditions of other writers are kept.
    """
    now = timestamp()
    own = {
        "cpu": str(shape.cpu),
        "memory": f"{shape.memory_mib * 1024}Ki",
        "ephemeral-storage": "100Gi",
        "pods": str(shape.pods),
        **{name: str(number) for name, number in shape.offered.items()},
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
    }
    return {
        **before,
        "capacity": {**own, **{name: str(whole) for name, (whole, _) in devices.items()}},
        "allocatable": {**own, **{name: str(free) for name, (_, free) in devices.items()}},
        "conditions": merge_conditions(before.get("conditions") or (), [ready], now),
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": shape.name},
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "process://1",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": shape.name,
            "operatingSystem": "linux",
            "osImage": "simulated",
            "systemUUID": shape.name,
        },
    }


async def register_node(api: Api, shape: NodeShape) -> None:
    """Create the Node object, unless there is one.

    Raises:
        ClientError: The API server did not accept it.
    """
    try:
        await api.create(NODES, node_object(shape))
    except AlreadyExists:
        return


async def write_node_status(
    api: Api, shape: NodeShape, devices: Mapping[str, tuple[int, int]]
) -> None:
    """Update capacity, allocatable and the Ready condition.

    Raises:
        ClientError: The API server did not accept it.
    """
    while True:
        node = await api.get(NODES, shape.name)
        status = node_status(shape, devices, node.get("status") or {})
        try:
            await api.replace(NODES, {**node, "status": status}, subresource="status")
        except Conflict:
            continue
        return
