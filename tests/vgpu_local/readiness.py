"""Checks if a cluster is ready for pods, and names what is missing."""

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
"""Returns the current objects of `pods`, `gpudevices.vgpu.dev` and so on."""


def plural(resource: Resource) -> str:
    """Return the name of a kind as in `Server.objects`: `pods`, `gpudevices.vgpu.dev`."""
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
    """Return a text that says what is missing; empty if the cluster is ready.

    Args:
        objects: Reads objects of the cluster.
        nodes: The nodes that it should have.
        front: The Services of operators and webhooks.
        webhooks: The ports of the webhook replicas.
        trust: The TLS context for the operator, with a client certificate.
        count_resource: The resource that agents register with their kubelets.
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
    """Return True if the extender at this URL answers that it leads."""
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
