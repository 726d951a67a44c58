"""Finds what is left of a campaign after everything was deleted, which would be a leak."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import GPU_DEVICES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.readiness import plural


def remains(cluster: LocalCluster) -> list[str]:
    """Return a text for everything that should be gone."""
    return [*objects(cluster), *_device_views(cluster), *_on_nodes(cluster)]


def objects(cluster: LocalCluster) -> list[str]:
    """Return a text for each pod and claim in any namespace, except the agents' own pods."""
    return list(_objects(cluster))


def _objects(cluster: LocalCluster) -> Iterator[str]:
    for resource in (PODS, VGPU_CLAIMS, RESOURCE_CLAIMS):
        for found in cluster.objects(plural(resource)):
            metadata = found["metadata"]
            if metadata["namespace"] == AGENT_NAMESPACE:
                continue
            keeps = metadata.get("finalizers")
            yield f"{resource.kind} {metadata['name']}" + (f", kept by {keeps}" if keeps else "")


def _device_views(cluster: LocalCluster) -> Iterator[str]:
    for device in cluster.objects(plural(GPU_DEVICES)):
        if held := device.get("status", {}).get("claims"):
            yield f"device {device['metadata']['name']} shows {[c['name'] for c in held]}"


def _on_nodes(cluster: LocalCluster) -> Iterator[str]:
    for node in cluster.kubelets:
        root = cluster.folder / node
        checkpoint = root / "agent" / "slots.json"  # not there where nothing was ever granted
        state = json.loads(checkpoint.read_text())["state"] if checkpoint.exists() else {}
        for kind in ("leases", "holdings"):
            yield from (f"{kind[:-1]} {name} on {node}" for name in state.get(kind, ()))
        yield from (f"page {path.name} on {node}" for path in (root / "agent" / "slots").glob("*"))
        yield from (f"CDI spec {path.name} on {node}" for path in (root / "cdi").glob("*"))
