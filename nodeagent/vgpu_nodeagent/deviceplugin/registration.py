"""Staying registered: the kubelet forgets every plugin when it restarts, and deletes its socket.

Serve first, then register: the kubelet dials back at once. A new inode of the kubelet's socket
means a new kubelet; a socket of ours that is gone means one that is just starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from vgpu_nodeagent.deviceplugin.server import PluginServer
from vgpu_nodeagent.kubelet_api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet_api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_nodeagent.metrics import Metrics

logger = logging.getLogger(__name__)

VERSION = "v1beta1"
_TIMEOUT_S = 10.0
_LOOK_S = 0.5
_LAST_RETRY_S = 10.0
_OPTIONS = (("grpc.default_authority", "localhost"),)


class Registration:
    """Keeps one plugin registered with whatever kubelet runs.

    Args:
        server: The plugin's server.
        kubelet: The kubelet's socket.
        resource: The resource's name.
        metrics: Where registrations are counted.
        sleep: Waits between looks; swapped in tests.
    """

    def __init__(
        self,
        server: PluginServer,
        *,
        kubelet: Path,
        resource: str,
        metrics: Metrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._kubelet = kubelet
        self._resource = resource
        self._metrics = metrics
        self._sleep = sleep
        self.registered = asyncio.Event()
        """Set once the first registration succeeded."""

    async def run(self) -> None:
        """Register, watch, register again, for ever."""
        current: tuple[int, int] | None = None
        retry_s = _LOOK_S
        try:
            while True:
                found = self._identity()
                if found is not None and (found != current or not self._server.socket.exists()):
                    try:
                        await self._server.start()
                        await self._register()
                    except (grpc.aio.AioRpcError, OSError) as error:
                        logger.warning("registration, again in %.1f s: %s", retry_s, _words(error))
                        current = None
                        await self._sleep(retry_s)
                        retry_s = min(2 * retry_s, _LAST_RETRY_S)
                        continue
                    current, retry_s = found, _LOOK_S
                await self._sleep(_LOOK_S)
        finally:
            await self._server.stop()

    def _identity(self) -> tuple[int, int] | None:
        """The identity of a kubelet's socket; None while there is none."""
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
