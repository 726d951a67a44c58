"""Keeps the plugin registered: a restarted kubelet forgets all plugins and deletes their sockets.

Serve first, then register: the kubelet dials back at once. A new inode of the kubelet's socket
means a new kubelet; a missing socket of ours means one that is just starting. A kubelet that stays
may lose us as well (`state/plugin_standing.py`): then we register again, and the server keeps
running, because the end of a stream that the kubelet still reads makes it disconnect the plugin
that is registered by then.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc

from vgpu_client.clock import Clock
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_nodeagent.kubelet.forgotten_slots import ForgottenSlots
from vgpu_nodeagent.kubelet.records import KubeletRecords
from vgpu_nodeagent.kubelet.server import PluginServer
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.state.plugin_standing import Look, PluginProblem, PluginStanding, PluginState

logger = logging.getLogger(__name__)

VERSION = "v1beta1"
_TIMEOUT_S = 10.0
_LOOK_S = 0.5
_LISTEN_S = 3.0
"""Seconds between looks at what the kubelet offers, far below PodResources' limit of 100/s."""
_LAST_RETRY_S = 10.0
# Go's gRPC server refuses a socket path as authority.
_OPTIONS = (("grpc.default_authority", "localhost"),)


class Registration:
    """Keeps one plugin registered with the running kubelet, across kubelet restarts.

    Args:
        server: The plugin's server.
        records: The kubelet's records.
        forgotten: The slots in use that the kubelet has no record of.
        kubelet: The kubelet's socket.
        metrics: Counts registrations and losses.
        clock: Waits between looks.
    """

    def __init__(
        self,
        server: PluginServer,
        records: KubeletRecords,
        *,
        forgotten: ForgottenSlots,
        kubelet: Path,
        metrics: Metrics,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._kubelet = kubelet
        self._resource = records.resource
        self._pod_resources = records.pod_resources
        self._metrics = metrics
        self._clock = clock or Clock()
        self._standing = PluginStanding(records.resource)
        self._forgotten = forgotten
        self._slept_s = 0.0
        self._changed = asyncio.Event()
        self.registered = asyncio.Event()
        """Set once the first registration has succeeded."""

    async def run(self) -> None:
        """Register, watch the kubelet, and register again when it needs that, until cancelled."""
        current: tuple[int, int] | None = None
        retry_s = _LOOK_S
        looked_at = 0.0
        try:
            while True:
                found = self._identity()
                try:
                    if found is not None and (found != current or not self._server.socket.exists()):
                        await self._server.start()
                        self._forgotten.look()  # before the kubelet asks for the slots
                        await self._register()
                        self._standing.registered_with_a_new_kubelet(now=self._slept_s)
                        self._note(PluginState.CONNECTED, None)
                        current, retry_s, looked_at = found, _LOOK_S, self._slept_s
                    elif found is not None and self._slept_s - looked_at >= _LISTEN_S:
                        looked_at = self._slept_s
                        await self._look()
                except (grpc.aio.AioRpcError, OSError) as error:
                    logger.warning(
                        "registration failed, retrying in %.1f s: %s", retry_s, _words(error)
                    )
                    current = None
                    await self._pause(retry_s)
                    retry_s = min(2 * retry_s, _LAST_RETRY_S)
                    continue
                await self._pause(_LOOK_S)
        finally:
            await self._server.stop()

    async def problem_changed(self) -> PluginProblem | None:
        """Wait until the problem with the registration has changed, and return it."""
        await self._changed.wait()
        self._changed.clear()
        return self._standing.problem

    async def _look(self) -> None:
        """Compare the kubelet's slots with ours, and register again if it has lost the plugin."""
        before, problem = self._standing.state, self._standing.problem
        plugin = self._server.plugin
        if self._forgotten.look():
            plugin.offer_changed()
        try:
            listed = await self._pod_resources.allocatable()
        except KubeletUnavailable as error:
            logger.debug("cannot read what the kubelet offers: %s", error)
            listed = None
        look = Look(plugin.is_read, plugin.offered, listed)
        register = self._standing.see(look, now=self._slept_s)
        self._note(before, problem)
        if register:
            plugin.expect_stream()
            await self._register()

    def _note(self, before: PluginState, problem: PluginProblem | None) -> None:
        """Log, count and publish changes of the plugin's state at the kubelet."""
        state = self._standing.state
        self._metrics.plugin_connected.set(state is PluginState.CONNECTED)
        if state is not before:
            if state is PluginState.CONNECTED:
                logger.info("the kubelet offers %s of this agent again", self._resource)
            else:
                self._metrics.plugin_losses.labels(state.value).inc()
                logger.warning("the kubelet no longer offers %s of this agent", self._resource)
        if self._standing.problem != problem:
            if self._standing.problem is not None:
                logger.error(
                    "%s: %s", self._standing.problem.reason, self._standing.problem.message
                )
            self._changed.set()

    async def _pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._slept_s += seconds

    def _identity(self) -> tuple[int, int] | None:
        """Return the identity of the kubelet's socket; None while there is none."""
        try:
            status = self._kubelet.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(
            f"unix://{self._kubelet}", options=_OPTIONS
        ) as channel:
            await dp_grpc.RegistrationStub(channel).Register(
                dp.RegisterRequest(
                    version=VERSION,
                    endpoint=self._server.socket.name,
                    resource_name=self._resource,
                    options=dp.DevicePluginOptions(pre_start_required=True),
                ),
                timeout=_TIMEOUT_S,
            )
        self._metrics.registrations.inc()
        self.registered.set()
        logger.info("registered %s with the kubelet", self._resource)


def _words(error: Exception) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
