"""Keeps the plugin's two sockets in place, by which the kubelet finds it.

The kubelet watches `plugins_registry` for sockets, asks each for its driver and services, and then
calls the socket that the answer names. A restarted kubelet finds the sockets that are there, so the
agent makes them when it starts, and again only if somebody removed one. Each agent has sockets of
its own, named by its pod: during an update both are registered, and no call falls into a gap.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from vgpu_api.dra import DRIVER
from vgpu_client.clock import Clock
from vgpu_nodeagent.draplugin.plugin import DRAPlugin
from vgpu_nodeagent.kubelet.api import dra_pb2_grpc as dra_grpc
from vgpu_nodeagent.kubelet.api import drahealth_pb2 as health
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2 as reg
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2_grpc as reg_grpc

logger = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_LOOK_S = 1.0
_STOP_S = 0.2
_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class PluginSockets:
    """The sockets of one agent.

    Attributes:
        plugins: The kubelet's folder of plugins.
        registry: The folder that the kubelet watches.
        instance: The name of this agent among those of the node, such as its pod's UID.
    """

    plugins: Path
    registry: Path
    instance: str

    @property
    def endpoint(self) -> Path:
        """Return the socket with the services."""
        return self.plugins / DRIVER / f"{self.instance}.sock"

    @property
    def registration(self) -> Path:
        """Return the socket by which the kubelet finds the endpoint."""
        return self.registry / f"{DRIVER}-{self.instance}-reg.sock"

    def left_behind(self) -> list[Path]:
        """Return the sockets of agents that were killed: nobody listens on them."""
        found = [
            *(self.plugins / DRIVER).glob("*.sock"),
            *self.registry.glob(f"{DRIVER}-*-reg.sock"),
        ]
        mine = {self.endpoint, self.registration}
        return [path for path in found if path not in mine and not _is_served(path)]


class PluginRegistration(reg_grpc.RegistrationServicer):
    """Serves the plugin, and tells the kubelet about it.

    Args:
        plugin: Answers the kubelet.
        sockets: Where the plugin is served.
        clock: Waits between looks.
    """

    def __init__(
        self, plugin: DRAPlugin, sockets: PluginSockets, *, clock: Clock | None = None
    ) -> None:
        self._plugin = plugin
        self._sockets = sockets
        self._clock = clock or Clock()
        self._servers: list[grpc.aio.Server] = []
        self.registered = asyncio.Event()
        """Set once the kubelet has accepted the plugin."""

    async def run(self) -> None:
        """Serve, and serve again when a socket is gone, for ever.

        Raises:
            OSError: A socket cannot be bound.
        """
        sockets = self._sockets
        try:
            while True:
                are_there = sockets.endpoint.exists() and sockets.registration.exists()
                # A container that was killed, or a reboot, leaves sockets of the same names on
                # which nobody listens: the pod, and so its UID, stays.
                if not (self._servers and are_there):
                    await self.start()
                await self._clock.sleep(_LOOK_S)
        finally:
            self._plugin.end_streams()
            # The registration first: the kubelet then prefers the other agent, if there is one.
            for path in (sockets.registration, sockets.endpoint):
                path.unlink(missing_ok=True)
            await self.stop()

    def remove_left_behind(self) -> None:
        """Remove the sockets of agents that were killed, which the kubelet would dial for ever."""
        for path in self._sockets.left_behind():
            logger.info("removing %s, on which nobody listens", path)
            path.unlink(missing_ok=True)

    async def GetInfo(  # noqa: N802
        self, request: reg.InfoRequest, context: _Context
    ) -> reg.PluginInfo:
        """Return the driver and its services."""
        return reg.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._sockets.endpoint),
            supported_versions=SERVICES,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: reg.RegistrationStatus, context: _Context
    ) -> reg.RegistrationStatusResponse:
        """Take the kubelet's word."""
        if request.plugin_registered:
            self.registered.set()
            logger.info("the kubelet has registered DRA driver %s", DRIVER)
        else:
            self.registered.clear()
            logger.error("the kubelet refuses DRA driver %s: %s", DRIVER, request.error)
        return reg.RegistrationStatusResponse()

    async def start(self) -> None:
        """Serve on both sockets, after ending what served before.

        Raises:
            OSError: A socket cannot be bound.
        """
        await self.stop()
        self.registered.clear()
        plugin = grpc.aio.server()
        dra_grpc.add_DRAPluginServicer_to_server(self._plugin, plugin)
        plugin.add_generic_rpc_handlers(
            [_health("v1", self._plugin), _health("v1alpha1", self._plugin)]
        )
        registration = grpc.aio.server()
        reg_grpc.add_RegistrationServicer_to_server(self, registration)
        # The endpoint first: the kubelet dials it as soon as the registration names it.
        sockets = self._sockets
        for server, path in ((plugin, sockets.endpoint), (registration, sockets.registration)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            try:
                server.add_insecure_port(f"unix://{path}")
            except RuntimeError as error:
                raise OSError(f"cannot serve on {path}: {error}") from error
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop serving; calls in flight get a moment to end."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(_STOP_S) for server in servers))


def _health(version: str, plugin: DRAPlugin) -> grpc.GenericRpcHandler:
    """Return the service of one version; kubelets differ in its name and not in its messages."""
    watch = grpc.unary_stream_rpc_method_handler(
        plugin.NodeWatchResources,
        request_deserializer=health.NodeWatchResourcesRequest.FromString,
        response_serializer=health.NodeWatchResourcesResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(
        f"{version}.DRAResourceHealth", {"NodeWatchResources": watch}
    )


def _is_served(path: Path) -> bool:
    """Return False if nobody listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
