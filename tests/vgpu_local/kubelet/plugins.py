"""Device plugins as the kubelet sees them: registration, the device lists, and the two calls.

One `Resource` is kept for each name that was ever registered, even if its plugin is gone. Then the
node shows its capacity but nothing allocatable, and everything that needs the plugin fails. Only
after a restart of the kubelet are the plugin's options unknown until it registers again, and
containers start without PreStartContainer in the meantime.

The rules are those of pkg/kubelet/cm/devicemanager at v1.36.3, including the surprising ones:

* A second registration of a name replaces the endpoint that is called (`PluginConnected`), but
  the ListAndWatch of the first continues, and each list of either replaces all devices
  (`genericDeviceUpdateCallback`).
* Whichever ListAndWatch ends, the plugin that is registered now is disconnected (`runClient`), and
  nothing of the resource is healthy from then on (`markResourceUnhealthy`). The kubelet does not
  dial again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

from vgpu_local.kubelet.holdings import Device
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc

VERSION = "v1beta1"
DIAL_TIMEOUT = 10.0
PRESTART_DEADLINE = 30.0
CHANNEL_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 << 20),
)

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class PluginError(Exception):
    """A call to a plugin failed; the text is that of the kubelet's Go client."""


@dataclass(slots=True)
class Endpoint:
    """One connection to a registered plugin."""

    socket: Path
    channel: grpc.aio.Channel
    stub: dp_grpc.DevicePluginAsyncStub
    options: dp.DevicePluginOptions
    stopped: bool = False
    watch: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Resource:
    """The kubelet's view of one resource.

    Attributes:
        devices: The last list from any plugin of the resource.
        healthy: The ids of devices that may be allocated; empty once the plugin is disconnected.
        endpoint: The plugin's connection; None from a restart of the kubelet until the plugin
            registers again.
    """

    name: str
    devices: dict[str, Device] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    endpoint: Endpoint | None = None


class PluginRegistry(dp_grpc.RegistrationServicer):
    """All plugins of a node, and the service with which they register."""

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        """Create a registry without plugins.

        Args:
            folder: The folder of the plugins' sockets (`device-plugins/`).
            on_change: Called when a device list has changed.
        """
        self.resources: dict[str, Resource] = {}
        self._registered: dict[str, Endpoint] = {}
        self._open: list[Endpoint] = []
        self._folder = folder
        self._on_change = on_change

    async def Register(  # noqa: N802
        self, request: dp.RegisterRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> dp.Empty:
        """Connect to the plugin, which must be serving before it registers."""
        if request.version != VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]',
            )
        if "/" not in request.resource_name:
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f'the ResourceName "{request.resource_name}" is invalid',
            )
        try:
            await self._connect(request.resource_name, self._folder / request.endpoint)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"failed to dial device plugin {request.endpoint}: {error}"
            )
        return dp.Empty()

    def get_or_add(self, name: str) -> Resource:
        """Return the resource, and add it if it is new."""
        return self.resources.setdefault(name, Resource(name))

    async def allocate(self, resource: Resource, ids: tuple[str, ...]) -> bytes:
        """Call Allocate for one container and return its serialised answer.

        Raises:
            PluginError: There is no plugin, it failed, or its answer has no container.
        """
        endpoint = self._live(resource)
        request = dp.AllocateRequest(
            container_requests=[dp.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await _call(endpoint.stub.Allocate(request))
        if len(answer.container_responses) != 1:
            raise PluginError(
                f"no containers return in allocation response {answer.container_responses}"
            )
        return answer.container_responses[0].SerializeToString()

    async def pre_start(self, resource: Resource, ids: tuple[str, ...]) -> None:
        """Call PreStartContainer, if the plugin's options are known and ask for it.

        Raises:
            PluginError: The container must not start.
        """
        if resource.endpoint is None or not resource.endpoint.options.pre_start_required:
            return
        try:
            stub = self._live(resource).stub
            request = dp.PreStartContainerRequest(devices_ids=ids)
            await _call(stub.PreStartContainer(request, timeout=PRESTART_DEADLINE))
        except PluginError as error:
            raise PluginError(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from error

    async def disconnect(self, name: str) -> None:
        """End the plugin's ListAndWatch, as after a message that cannot be read."""
        await self._disconnect(self.resources[name], self._registered[name])

    async def forget(self) -> None:
        """Drop every connection, as the end of the kubelet's process does."""
        for resource in self.resources.values():
            resource.endpoint = None
            resource.devices.clear()
            resource.healthy.clear()
        self._registered.clear()
        endpoints, self._open = self._open, []
        for endpoint in endpoints:
            await _close(endpoint)
        self._on_change()

    async def _connect(self, name: str, socket: Path) -> None:
        channel = grpc.aio.insecure_channel(f"unix://{socket}", options=CHANNEL_OPTIONS)
        stub = dp_grpc.DevicePluginStub(channel)
        try:
            options = await stub.GetDevicePluginOptions(dp.Empty(), timeout=DIAL_TIMEOUT)
        except BaseException:
            self._registered.pop(name, None)
            await channel.close()
            raise
        resource = self.get_or_add(name)
        endpoint = Endpoint(socket, channel, stub, options)
        self._registered[name] = resource.endpoint = endpoint
        self._open.append(endpoint)
        endpoint.watch = asyncio.create_task(self._watch(resource, endpoint))

    async def _watch(self, resource: Resource, endpoint: Endpoint) -> None:
        try:
            async for message in endpoint.stub.ListAndWatch(dp.Empty()):
                resource.devices = {d.ID: _device(d) for d in message.devices}
                resource.healthy = {d.id for d in resource.devices.values() if d.healthy}
                self._on_change()
        except grpc.aio.AioRpcError as error:
            log.info("ListAndWatch of %s ended: %s", resource.name, error.details())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not a cancellation: the connection was closed under the call.
        registered = self._registered.get(resource.name)
        if registered is not None:
            await self._disconnect(resource, registered)

    async def _disconnect(self, resource: Resource, registered: Endpoint) -> None:
        """Disconnect the currently registered plugin, even if another one's stream has ended."""
        del self._registered[resource.name]
        registered.stopped = True
        resource.healthy.clear()
        self._on_change()
        await registered.channel.close()

    @staticmethod
    def _live(resource: Resource) -> Endpoint:
        endpoint = resource.endpoint
        if endpoint is None:
            raise PluginError(
                f"endpoint not found in cache for a registered resource: {resource.name}"
            )
        if endpoint.stopped:
            raise PluginError(f"endpoint {{{endpoint.socket.name}}} has been stopped")
        return endpoint


def _device(message: dp.Device) -> Device:
    numa = tuple(node.ID for node in message.topology.nodes)
    return Device(message.ID, healthy=message.health == "Healthy", numa=numa)


async def _call(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        name = "".join(word.capitalize() for word in error.code().name.split("_"))
        name = {"Cancelled": "Canceled", "Ok": "OK"}.get(name, name)
        raise PluginError(f"rpc error: code = {name} desc = {error.details()}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not a cancellation: the connection was closed under the call.
        raise PluginError("rpc error: code = Canceled desc = connection is closing") from None


async def _close(endpoint: Endpoint) -> None:
    endpoint.stopped = True
    if endpoint.watch is not None:
        endpoint.watch.cancel()
        await asyncio.gather(endpoint.watch, return_exceptions=True)
    await endpoint.channel.close()
