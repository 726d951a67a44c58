"""An API server for the tests of one agent: the stand-in, or a part of a real one.

A real control plane takes seconds to start, so one serves all tests: each reaches it through a
fault proxy of its own, and leaves it without pods, claims, devices and nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from vgpu_api.resources import EVENTS, GPU_DEVICES, NODES, PODS, VGPU_CLAIMS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_local.apiserver import ApiServer, WriteEvent
from vgpu_local.apiserver.faults import Faults
from vgpu_local.apiserver.watches import Break
from vgpu_local.background import BackgroundLoop
from vgpu_local.control_plane import ControlPlane
from vgpu_local.fault_proxy import FaultProxy
from vgpu_local.real_cluster import RealServer

EMPTY_WITHIN_S = 60.0


class Server(Protocol):
    """The operations that a test does on an API server."""

    faults: Faults

    def break_watches(self, resource: str = "*", how: Break = "drop") -> int:
        """Break the streams of the clients that connect through this proxy."""

    def history(self) -> list[WriteEvent]:
        """Return the writes so far."""


class AgentPlane:
    """A server, and how to reach it.

    Attributes:
        server: Faults and history.
        kubeconfig: An administrator's; what goes through it meets the faults.
    """

    def __init__(self, server: Server, kubeconfig: Path) -> None:
        self.server = server
        self.kubeconfig = kubeconfig


@contextmanager
def standin_plane(folder: Path) -> Iterator[AgentPlane]:
    """An empty server, without our kinds."""
    with ApiServer() as server:
        yield AgentPlane(server, server.kubeconfig(folder / "kubeconfig"))


@contextmanager
def real_plane(control_plane: ControlPlane, folder: Path) -> Iterator[AgentPlane]:
    """A control plane that knows our kinds and outlives this fixture; it is left empty."""
    with ExitStack() as undo:
        proxy = FaultProxy(control_plane.url, trust=control_plane.trust())
        proxy.start()
        undo.callback(proxy.stop)
        loop = BackgroundLoop("agent-plane")
        undo.callback(loop.stop)
        connections = AsyncExitStack()
        api = loop.run(
            connections.enter_async_context(Api.connect(str(control_plane.kubeconfig))), limit=30
        )
        undo.callback(lambda: loop.run(connections.aclose(), limit=10))
        server = RealServer(proxy, api, loop)
        server.furnished()
        undo.callback(server.stop)
        kubeconfig = proxy.kubeconfig(
            control_plane.kubeconfig, folder / "kubeconfig", user="everybody"
        )
        yield AgentPlane(server, kubeconfig)
        proxy.faults.clear()
        for resource in (PODS, VGPU_CLAIMS, GPU_DEVICES, NODES, EVENTS):
            _empty(loop, api, resource)


def _empty(loop: BackgroundLoop, api: Api, resource: Resource) -> None:
    """Delete all objects of a kind despite finalizers; return once none is left."""
    namespace = "default" if resource.namespaced else None
    deadline = time.monotonic() + EMPTY_WITHIN_S
    while found := loop.run(api.list(resource, namespace=namespace), limit=30).items:
        assert time.monotonic() < deadline, f"{resource.plural} that do not go: {found}"
        for obj in found:
            loop.run(_delete(api, resource, obj["metadata"]["name"], namespace), limit=30)
        time.sleep(0.05)


async def _delete(api: Api, resource: Resource, name: str, namespace: str | None) -> None:
    try:
        await api.merge_patch(
            resource, name, {"metadata": {"finalizers": None}}, namespace=namespace
        )
        await api.delete(resource, name, namespace=namespace, grace_s=0)
    except NotFound:
        return  # it has been deleted since
