"""A real control plane under the cluster: etcd, API server, controllers and kube-scheduler.

What is not Kubernetes' own here are the kubelets, which run containers as local processes. The
scheduler's configuration is the one that an administrator would write for us.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgpu_api import resources
from vgpu_api.names import SCHEDULER_ALIASES
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.background import BackgroundLoop
from vgpu_local.cluster import ClusterOptions, LocalCluster
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.foundation import ExtenderAccess
from vgpu_local.nodes import GpuNode
from vgpu_local.readiness import plural

_KINDS = {
    plural(resource): resource
    for resource in vars(resources).values()
    if isinstance(resource, Resource)
}


def real_cluster(
    nodes: Sequence[GpuNode],
    options: ClusterOptions = ClusterOptions(),  # noqa: B008 - immutable
) -> LocalCluster:
    """Describe a cluster on a real control plane; nothing is started yet."""
    return LocalCluster(nodes, options, RealControlPlane())


class RealControlPlane:
    """A foundation that is Kubernetes itself."""

    def __init__(self) -> None:
        self._plane = ControlPlane(Options(controllers=True))

    def start(self, folder: Path) -> Path:
        """Start etcd, API server and controllers; they have a folder of their own."""
        self._plane.start()
        return self._plane.kubeconfig

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """What reads objects."""
        self._api, self._loop = api, loop

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start kube-scheduler with our extender."""
        self._plane.start_scheduler(scheduler_configuration(extender))

    def unschedule(self) -> None:
        """It ends with all others."""

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """A list, as new as any."""
        listing = self._loop.run(self._api.list(_KINDS[resource], namespace=namespace), limit=60)
        return list(listing.items)

    def check(self) -> None:
        """Raise RuntimeError when one of the programs has ended."""
        self._plane.check()

    def stop(self) -> None:
        """End all."""
        self._plane.stop()


def scheduler_configuration(extender: ExtenderAccess) -> dict[str, Any]:
    """Compose the fields of a KubeSchedulerConfiguration that make the operator a part of it."""
    nvidia = extender.nvidia
    ignored = (
        nvidia.resource_memory_name,
        nvidia.resource_memory_percentage_name,
        nvidia.resource_core_name,
        nvidia.resource_priority_name,
    )
    names = sorted({*SCHEDULER_ALIASES, "default-scheduler"})
    return {
        "profiles": [{"schedulerName": name} for name in names],
        "extenders": [
            {
                "urlPrefix": extender.place.extender_url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "enableHTTPS": True,
                "tlsConfig": {
                    "caFile": str(extender.trust),
                    "certFile": str(extender.certificate),
                    "keyFile": str(extender.key),
                },
                "nodeCacheCapable": True,
                "httpTimeout": "30s",
                "ignorable": False,
                "managedResources": [
                    # Never ignored: a kubelet that knows no such resource admits without asking.
                    {"name": nvidia.resource_count_name, "ignoredByScheduler": False},
                    *({"name": name, "ignoredByScheduler": True} for name in ignored),
                ],
            }
        ],
    }
