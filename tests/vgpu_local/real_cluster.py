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
from vgpu_local.fault_proxy import FaultProxy
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
    foundation: RealControlPlane | None = None,
) -> LocalCluster:
    """Describe a cluster on a real control plane; nothing is started yet."""
    return LocalCluster(nodes, options, foundation or RealControlPlane())


class RealControlPlane:
    """A foundation that is Kubernetes itself.

    Args:
        seed: of the faults' shares.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._plane = ControlPlane(Options(controllers=True))
        self._seed = seed
        self._proxy: FaultProxy | None = None

    def start(self, folder: Path) -> Path:
        """Start etcd, API server and controllers; they have a folder of their own."""
        self._plane.start()
        self._proxy = FaultProxy(self._plane.url, trust=self._plane.trust(), seed=self._seed)
        self._proxy.start()
        self._folder = folder
        return self._plane.kubeconfig

    @property
    def proxy(self) -> FaultProxy:
        """What our programs, and they alone, reach the API server through; arm faults here."""
        assert self._proxy is not None, "the control plane was not started"
        return self._proxy

    def kubeconfig_of(self, user: str) -> Path:
        """The administrator's rights, through the proxy."""
        path = self._folder / f"{user}.kubeconfig"
        return self.proxy.kubeconfig(self._plane.kubeconfig, path, user=user)

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
        if self._proxy is not None:
            self._proxy.stop()
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
