"""What a cluster still lacks before pods can be sent to it."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence

from vgpu_api.resources import GPU_DEVICES, NODES, Resource
from vgpu_client.transport import Object
from vgpu_local.nodes import GpuNode
from vgpu_local.programs import Front

_LIMIT = 2.0

Objects = Callable[[str], list[Object]]
"""The present objects of `pods`, `gpudevices.vgpu.dev` …"""


def plural(resource: Resource) -> str:
    """Name a kind as the API server's test interface does: `pods`, `gpudevices.vgpu.dev`."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def missing(
    objects: Objects,
    nodes: Sequence[GpuNode],
    front: Front,
    webhooks: Sequence[int],
    *,
    trust: ssl.SSLContext,
    count_resource: str,
) -> str:
    """Return what is missing, in words; empty when the cluster is ready.

    Args:
        objects: reads the cluster.
        nodes: those it should have.
        front: the Services that lead to operators and webhooks.
        webhooks: where each process of the webhooks listens.
        trust: for the operator's certificate, and what to show of ourselves.
        count_resource: the resource that agents register with their kubelets.
    """
    return "; ".join(_gaps(objects, nodes, front, webhooks, trust, count_resource))


def _gaps(
    objects: Objects,
    nodes: Sequence[GpuNode],
    front: Front,
    webhooks: Sequence[int],
    trust: ssl.SSLContext,
    count_resource: str,
) -> Iterator[str]:
    if not leads(front.extender_url, trust):
        yield "no operator leads yet"
    if waiting := [port for port in webhooks if not _listens(port)]:
        yield f"{len(waiting)} of {len(webhooks)} processes do not serve webhooks yet"
    if not nodes:
        return
    offered = {
        node["metadata"]["name"]: int(
            node.get("status", {}).get("allocatable", {}).get(count_resource, "0")
        )
        for node in objects(plural(NODES))
    }
    devices = {device.get("status", {}).get("uuid") for device in objects(plural(GPU_DEVICES))}
    for node in nodes:
        if not offered.get(node.name):
            yield f"node {node.name} offers no {count_resource}"
        if lost := [device.uuid for device in node.devices if device.uuid not in devices]:
            yield f"node {node.name} has published all but {len(lost)} of its cards"


def leads(url: str, trust: ssl.SSLContext) -> bool:
    """Return whether the extender there answers that it leads."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_LIMIT, context=trust) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT):
            return True
    except OSError:
        return False
