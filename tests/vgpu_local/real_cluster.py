"""A real control plane under the cluster: etcd, API server, controllers and kube-scheduler.

Only the kubelets are not Kubernetes' own, and run containers as local processes. The scheduler's
configuration is the one that an administrator would write for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vgpu_api import resources
from vgpu_api.names import OPERATOR_USER, SCHEDULER_ALIASES
from vgpu_api.resources import (
    GPU_DEVICES,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.apiserver.watches import Break
from vgpu_local.background import BackgroundLoop
from vgpu_local.cluster import LocalCluster
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.daemon import Spawn, execute
from vgpu_local.fault_proxy import FaultProxy
from vgpu_local.foundation import ExtenderAccess
from vgpu_local.nodes import GpuNode
from vgpu_local.options import ClusterOptions
from vgpu_local.readiness import plural
from vgpu_local.recorder import Recorder

_KINDS = {
    plural(resource): resource
    for resource in vars(resources).values()
    if isinstance(resource, Resource)
}

_RECORDED = (PODS, NODES, LEASES, VGPU_CLAIMS, GPU_DEVICES, RESOURCE_CLAIMS)


def real_cluster(
    nodes: Sequence[GpuNode],
    options: ClusterOptions = ClusterOptions(),  # noqa: B008 - immutable
    foundation: RealControlPlane | None = None,
    spawn: Spawn = execute,
) -> LocalCluster:
    """Return a cluster on a real control plane; nothing is started yet."""
    return LocalCluster(nodes, options, foundation or RealControlPlane(), spawn)


class RealServer:
    """A real API server behind a fault proxy; its writes are recorded without the proxy.

    Attributes:
        faults: The faults to inject, which affect our programs only.
    """

    def __init__(
        self, proxy: FaultProxy, api: Api, loop: BackgroundLoop, *, keeps: bool = True
    ) -> None:
        """Start to record writes, but those of our own kinds only after `furnished`."""
        self.faults = proxy.faults
        self._proxy = proxy
        self._api = api
        self._loop = loop
        self._recorder = Recorder(api, _RECORDED, keeps=keeps)
        self._tasks: list[asyncio.Task[None]] = []

    def furnished(self) -> None:
        """Start to record our kinds, which are served now."""
        self._tasks = self._loop.run(self._recorder.start())

    def break_watches(self, resource: str = "*", how: Break = "drop") -> int:
        """Break our programs' streams; return how many there were."""
        return self._proxy.break_watches(resource, how)

    def restart(self, *, down_for: float = 0.0) -> None:
        """Restart the proxy, which looks to our programs like a restart of the API server."""
        self._proxy.restart(down_for=down_for)

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        """Call `listener` when the recorder receives a write."""
        self._recorder.subscribe(listener)

    def history(self) -> list[WriteEvent]:
        """Return the writes of the recorded kinds.

        Raises:
            Exception: The error that made a gap in the record.
        """
        self.check()
        return self._recorder.history()

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """Return the objects of a fresh list."""
        listing = self._loop.run(self._api.list(_KINDS[resource], namespace=namespace), limit=60)
        return list(listing.items)

    def check(self) -> None:
        """Raise the error that made a gap in the record, if any."""
        for task in self._tasks:
            if task.done():
                task.result()

    def stop(self) -> None:
        """Stop recording."""
        self._loop.run(_cancelled(self._tasks))


class RealControlPlane:
    """A foundation that is Kubernetes itself, with its controllers.

    Args:
        options: The control plane's version, feature gates and other options.
        seed: The seed that decides which requests a fault with a share affects.
        listener: Called with each write from the first on; the server keeps no history then.
    """

    def __init__(
        self,
        options: Options = Options(),  # noqa: B008 - immutable
        *,
        seed: int = 0,
        listener: Callable[[WriteEvent], None] | None = None,
    ) -> None:
        self._plane = ControlPlane(options)
        self._seed = seed
        self._listener = listener
        self._proxy: FaultProxy | None = None
        self._server: RealServer | None = None

    @property
    def server(self) -> RealServer:
        """Return the API server, once a client is connected."""
        assert self._server is not None, "the control plane was not started"
        return self._server

    def start(self, folder: Path) -> Path:
        """Start etcd and API server in a folder of their own."""
        self._plane.start()
        self._proxy = FaultProxy(self._plane.url, trust=self._plane.trust(), seed=self._seed)
        self._proxy.start()
        self._folder = folder
        return self._plane.kubeconfig

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig through the proxy with all rights, in an operator's own name."""
        assert self._proxy is not None, "the control plane was not started"
        path = self._folder / f"{user}.kubeconfig"
        acts_as = OPERATOR_USER if user.startswith("operator-") else ""
        return self._proxy.kubeconfig(self._plane.kubeconfig, path, user=user, acts_as=acts_as)

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """Create the server, which reads objects through this client."""
        assert self._proxy is not None, "the control plane was not started"
        self._server = RealServer(self._proxy, api, loop, keeps=self._listener is None)
        if self._listener is not None:
            self._server.subscribe(self._listener)

    def furnished(self) -> None:
        """Start the controllers, and to record writes of our kinds."""
        self._plane.start_controllers()
        self.server.furnished()

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start kube-scheduler with our extender, or stock if the operator decides first."""
        is_stock = extender.settings.scheduling.decides_first
        self._plane.start_scheduler({} if is_stock else scheduler_configuration(extender))

    def unschedule(self) -> None:
        """Stop everything that uses the cluster's loop; kube-scheduler ends in `stop`."""
        if self._server is not None:
            self._server.stop()

    def check(self) -> None:
        """Raise an error if a program has ended or the record has a gap."""
        self._plane.check()
        self.server.check()

    def stop(self) -> None:
        """Stop all programs."""
        if self._proxy is not None:
            self._proxy.stop()
        self._plane.stop()


def scheduler_configuration(extender: ExtenderAccess) -> dict[str, Any]:
    """Return the fields of a KubeSchedulerConfiguration that make the operator its extender."""
    names = sorted({*SCHEDULER_ALIASES, "default-scheduler"})
    return {
        "profiles": [{"schedulerName": name} for name in names],
        "extenders": [
            {
                "urlPrefix": extender.place.extender_url,
                "filterVerb": "filter",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "enableHTTPS": True,
                "tlsConfig": {
                    "caFile": str(extender.trust),
                    "certFile": str(extender.certificate),
                    "keyFile": str(extender.key),
                },
                "nodeCacheCapable": True,
                "httpTimeout": "10s",
                "ignorable": False,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": ignored}
                    for name, ignored in extender.settings.managed_resources().items()
                ],
            }
        ],
    }


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
