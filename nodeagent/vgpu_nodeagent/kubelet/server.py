"""The device plugin that the kubelet calls, and its gRPC server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.events import Event, InventoryChanged, RoomMade
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_nodeagent.kubelet.slot_offer import SlotOffer
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.state.cdi_device import device_name

logger = logging.getLogger(__name__)

_STOP_S = 0.2
_Context = grpc.aio.ServicerContext[Any, Any]


class KubeletCall(Protocol):
    """A call of the kubelet in flight."""

    def is_waiting(self) -> bool:
        """Return True while the kubelet waits for the response."""


class ContainerStarts(Protocol):
    """Decides on Allocate and PreStartContainer."""

    def allocate(self, slot_ids: Iterable[str]) -> tuple[str, tuple[Mount, Mount]]:
        """Allocate slots to a container that is not known yet; see `PreStart`."""

    async def prepare(self, slot_ids: Iterable[str], *, call: KubeletCall) -> None:
        """Grant the container its devices, or raise `Refused`; see `PreStart`."""


class Call:
    """A gRPC call of the kubelet, which has a deadline and may be cancelled."""

    def __init__(self, context: _Context) -> None:
        self._context = context

    def is_waiting(self) -> bool:
        """Return True while the kubelet waits for the response."""
        left_s = self._context.time_remaining()
        return not self._context.done() and (left_s is None or left_s > 0)


class DevicePlugin(dp_grpc.DevicePluginServicer):
    """Answers the kubelet's calls.

    Args:
        prestart: Decides on Allocate and PreStartContainer.
        offer: The slots to show.
        metrics: Counts calls.
    """

    def __init__(
        self,
        prestart: ContainerStarts,
        *,
        offer: SlotOffer,
        metrics: Metrics,
    ) -> None:
        self._prestart = prestart
        self._offer = offer
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._round = 0
        self._newest: object | None = None
        self.offered: frozenset[str] = frozenset()
        """The healthy slots that were sent last."""

    @property
    def is_read(self) -> bool:
        """True if the kubelet has opened a ListAndWatch since `expect_stream` and reads it."""
        return self._newest is not None

    def expect_stream(self) -> None:
        """Send nothing more on the current streams: the kubelet opens another one.

        After a second registration the kubelet keeps reading the stream of the first one. Ending
        that stream would make the kubelet disconnect the new one, and a list sent on it would hide
        that the new one has ended.
        """
        self._newest = None

    def end_streams(self) -> None:
        """End every open ListAndWatch, so that a stopping server need not wait for them."""
        self._round += 1
        self.offer_changed()

    def observe(self, event: Event) -> None:
        """Send the slots after an event that changes how many can be allocated."""
        if isinstance(event, InventoryChanged | RoomMade):
            self.offer_changed()

    def offer_changed(self) -> None:
        """Send the slots to the kubelet if they have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def GetDevicePluginOptions(  # noqa: N802
        self, request: dp.Empty, context: _Context
    ) -> dp.DevicePluginOptions:
        """Request PreStartContainer, in which starts are decided."""
        return dp.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(  # noqa: N802
        self, request: dp.Empty, context: _Context
    ) -> AsyncIterator[dp.ListAndWatchResponse]:
        """Send the slots now and whenever they change."""
        shown: Sequence[tuple[str, bool]] | None = None
        served_in = self._round
        self._newest = stream = object()
        try:
            while served_in == self._round:
                changed = self._changed
                current = self._offer.slots()
                if current != shown and self._newest is stream:
                    shown = current
                    self.offered = frozenset(slot for slot, healthy in current if healthy)
                    yield dp.ListAndWatchResponse(
                        devices=[
                            dp.Device(ID=slot, health="Healthy" if healthy else "Unhealthy")
                            for slot, healthy in current
                        ]
                    )
                await changed.wait()
        finally:
            if self._newest is stream:
                self._newest = None

    async def GetPreferredAllocation(  # noqa: N802
        self, request: dp.PreferredAllocationRequest, context: _Context
    ) -> dp.PreferredAllocationResponse:
        """Refuse: slots are interchangeable, and the options announce no preference."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "slots are interchangeable")

    async def Allocate(  # noqa: N802
        self, request: dp.AllocateRequest, context: _Context
    ) -> dp.AllocateResponse:
        """Allocate the slots to containers that are not known yet."""
        known = {slot for slot, _ in self._offer.slots()}
        answer = dp.AllocateResponse()
        try:
            for container in request.container_requests:
                unknown = [slot for slot in container.devices_ids if slot not in known]
                if unknown:
                    raise Refused(Why.UNKNOWN_SLOT, f"unknown slot {', '.join(unknown)}")
                slot_allocation, mounts = self._prestart.allocate(container.devices_ids)
                answer.container_responses.append(
                    dp.ContainerAllocateResponse(
                        cdi_devices=[dp.CDIDevice(name=device_name(slot_allocation))],
                        mounts=[
                            dp.Mount(
                                container_path=mount.container_path,
                                host_path=mount.host_path,
                                read_only=mount.read_only,
                            )
                            for mount in mounts
                        ],
                    )
                )
        except Refused as refused:
            logger.warning("allocate: %s", refused)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        self.offer_changed()
        return answer

    async def PreStartContainer(  # noqa: N802
        self, request: dp.PreStartContainerRequest, context: _Context
    ) -> dp.PreStartContainerResponse:
        """Decide whether the container may start, and with which devices."""
        with self._metrics.prestart_seconds.time():
            try:
                await self._prestart.prepare(request.devices_ids, call=Call(context))
            except Refused as refused:
                self._metrics.prestart_failures.labels(refused.reason.value).inc()
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        self.offer_changed()
        return dp.PreStartContainerResponse()


class PluginServer:
    """The gRPC server of the plugin; it can be started again when its socket is deleted."""

    def __init__(self, plugin: DevicePlugin, socket: Path) -> None:
        self.plugin = plugin
        self.socket = socket
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve on the socket, after ending the server before.

        Raises:
            OSError: The socket cannot be bound.
        """
        await self.stop()
        self.socket.unlink(missing_ok=True)  # left by a killed agent, or deleted by the kubelet
        server = grpc.aio.server()
        dp_grpc.add_DevicePluginServicer_to_server(self.plugin, server)
        try:
            server.add_insecure_port(f"unix://{self.socket}")
        except RuntimeError as error:
            raise OSError(f"cannot serve on {self.socket}: {error}") from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving; calls in flight get a moment to end."""
        if self._server is not None:
            server, self._server = self._server, None
            self.plugin.end_streams()
            await server.stop(_STOP_S)
