"""Simulated nodes and devices, as kubelets and agents would publish them.

Nodes are created through the API. The first device goes through the API as the agent writes it; all
others are copies of what the API server stored, put into etcd: 40,000 devices take seconds instead
of minutes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import http.client
import json
import socket
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vgpu_api.effective import Use
from vgpu_api.names import (
    AGENT_NAMESPACE,
    API_VERSION,
    FIELD_MANAGER_AGENT,
    FIELD_MANAGER_OPERATOR,
    device_object_name,
)
from vgpu_api.resources import GPU_DEVICES, NODES, PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.transport import Object
from vgpu_local.agent_pod import create_agent_pod
from vgpu_local.nodes import device_uuid
from vgpu_nodeagent.discovery.drivers.base import DeviceLink, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import DeviceCapacity
from vgpu_nodeagent.reporting.device_status import present, said_of

DEVICES_PER_NODE = 8
SLOTS = 10
MEMORY_MIB = 81_920
COUNT = "nvidia.com/gpu"
UNTAINTED = ("--disable-admission-plugins=TaintNodesByCondition",)
"""Arguments of kube-apiserver: no controller takes the taint off nodes that are new."""
_NOTHING = {"memory": "0", "cores": 0, "slots": 0}
_SINCE = "2026-01-01T00:00:00Z"
_AT_ONCE = 16
_PER_TRANSACTION = 100


def node_name(number: int) -> str:
    """Return the name of a simulated node."""
    return f"node-{number:05d}"


def paper_node(number: int) -> Object:
    """Return a node that is ready and whose agent has registered its slots with its kubelet."""
    offers = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "1000",
        COUNT: str(DEVICES_PER_NODE * SLOTS),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "labels": {"kubernetes.io/hostname": node_name(number)},
        },
        "status": {
            "capacity": offers,
            "allocatable": offers,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastHeartbeatTime": _SINCE,
                    "lastTransitionTime": _SINCE,
                }
            ],
        },
    }


async def make_nodes(api: Api, count: int) -> dict[str, str]:
    """Create this many nodes; return their UIDs by name."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def make(number: int) -> tuple[str, str]:
        async with gate:
            made = await api.create(NODES, paper_node(number))
        return made["metadata"]["name"], made["metadata"]["uid"]

    return dict(await asyncio.gather(*(make(number) for number in range(count))))


async def kinds_are_served(api: Api) -> None:
    """Return once our kinds are served."""
    async with asyncio.timeout(60):
        while True:
            try:
                await api.list(GPU_DEVICES)
                return
            except ClientError:
                await asyncio.sleep(0.1)


def device_status(node: str, index: int) -> Object:
    """Return the status of one of a node's eight devices, all of them joined by NVLink."""
    links = tuple(
        DeviceLink(device_uuid(node, other), "NVLink", 600)
        for other in range(DEVICES_PER_NODE)
        if other != index
    )
    device = PhysicalDevice(
        index=index,
        uuid=device_uuid(node, index),
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=MEMORY_MIB,
        minor=index,
        architecture="Ampere",
        compute_capability="8.0",
        driver_version="550.54.15",
        runtime_version="12.4",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        numa_node=index // 4,
        links=links,
    )
    all_of_it = Use(MEMORY_MIB, 100, SLOTS)
    conditions = [
        condition.model_copy(update={"last_transition_time": _SINCE}).to_wire()
        for condition in present(None)
    ]
    said = said_of(device, DeviceCapacity(all_of_it, all_of_it), vendor="nvidia")
    return {**said, "observedTime": _SINCE, "conditions": conditions}


async def make_devices(api: Api, etcd: Path, node_uids: dict[str, str]) -> None:
    """Create the devices of all nodes.

    Args:
        api: An administrator's; our kinds are served.
        etcd: The Unix socket of etcd's clients.
        node_uids: By the nodes' names.
    """
    first = next(iter(node_uids))
    name = device_object_name(device_uuid(first, 0))
    owner = {"apiVersion": "v1", "kind": "Node", "name": first, "uid": node_uids[first]}
    head = {"apiVersion": API_VERSION, "kind": GPU_DEVICES.kind}
    metadata = {"name": name, "ownerReferences": [owner]}
    spec = {"nodeName": first}
    await api.create(
        GPU_DEVICES,
        {**head, "metadata": metadata, "spec": spec},
        field_manager=FIELD_MANAGER_AGENT,
    )
    await api.apply(
        GPU_DEVICES,
        {**head, "metadata": {"name": name}, "status": device_status(first, 0)},
        field_manager=FIELD_MANAGER_AGENT,
        subresource="status",
    )
    # The operator would write this once to each device, for 22 minutes at 5,000 nodes.
    await api.apply(
        GPU_DEVICES,
        {**head, "metadata": {"name": name}, "status": {"allocated": _NOTHING}},
        field_manager=FIELD_MANAGER_OPERATOR,
        subresource="status",
    )
    with contextlib.closing(Etcd(etcd)) as store:
        await asyncio.to_thread(_copy_devices, store, name, node_uids)


async def make_agent_pods(api: Api, etcd: Path, node_uids: dict[str, str]) -> None:
    """Create the pod of each node's agent, as a kubelet shows it once it is ready.

    Args:
        api: An administrator's.
        etcd: The Unix socket of etcd's clients.
        node_uids: By the nodes' names.
    """
    first = next(iter(node_uids))
    name = await create_agent_pod(api, first)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _SINCE}
    status = {"status": {"phase": "Running", "conditions": [ready]}}
    await api.merge_patch(PODS, name, status, namespace=AGENT_NAMESPACE, subresource="status")
    pod = await api.get(PODS, name, namespace=AGENT_NAMESPACE)
    text = json.dumps({**pod, "apiVersion": "v1", "kind": PODS.kind})

    def copies() -> Iterator[tuple[str, Object]]:
        for node in node_uids:
            made = json.loads(text.replace(first, node))
            made["metadata"]["uid"] = str(uuid.uuid4())
            yield f"/registry/pods/{AGENT_NAMESPACE}/{made['metadata']['name']}", made

    with contextlib.closing(Etcd(etcd)) as store:
        for pair in islice(copies(), 1, None):  # the others are copies of the first
            await asyncio.to_thread(store.put, [pair])


def _copy_devices(etcd: Etcd, name: str, node_uids: dict[str, str]) -> None:
    prefix = f"/registry/{GPU_DEVICES.group}/{GPU_DEVICES.plural}/"
    stored = etcd.get(prefix + name)

    def copies() -> Iterator[tuple[str, Object]]:
        for node, uid in node_uids.items():
            for index in range(DEVICES_PER_NODE):
                device = copy.deepcopy(stored)
                metadata = device["metadata"]
                metadata["name"] = device_object_name(device_uuid(node, index))
                metadata["uid"] = str(uuid.uuid4())
                metadata["ownerReferences"][0].update(name=node, uid=uid)
                device["spec"]["nodeName"] = node
                device["status"] |= device_status(node, index)
                yield prefix + metadata["name"], device

    left = islice(copies(), 1, None)  # the others are copies of the first
    while batch := list(islice(left, _PER_TRANSACTION)):
        etcd.put(batch)


class Etcd:
    """A client of etcd's HTTP gateway at a Unix socket.

    Args:
        path: The path of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._connection = _UnixConnection(path)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, key: str) -> Object:
        """Return the object with this key.

        Raises:
            LookupError: there is none.
        """
        found = self._ask("/v3/kv/range", {"key": _base64(key)}).get("kvs")
        if not found:
            raise LookupError(f"etcd has no {key}")
        stored: Object = json.loads(base64.b64decode(found[0]["value"]))
        return stored

    def put(self, pairs: Sequence[tuple[str, Object]]) -> None:
        """Put objects into etcd in one transaction."""
        puts = [
            {"requestPut": {"key": _base64(key), "value": _base64(json.dumps(obj))}}
            for key, obj in pairs
        ]
        self._ask("/v3/kv/txn", {"success": puts})

    def _ask(self, path: str, body: Object) -> dict[str, Any]:
        self._connection.request(
            "POST", path, json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"etcd {path}: {answer.status} {text[:300]!r}")
        found: dict[str, Any] = json.loads(text)
        return found


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
