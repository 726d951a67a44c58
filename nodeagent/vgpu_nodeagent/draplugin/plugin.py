"""Answers the kubelet's DRA calls: prepares ResourceClaims, unprepares them, and shows health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

import grpc

from vgpu_api.dra import device_name
from vgpu_nodeagent.draplugin.consumers import ClaimRef
from vgpu_nodeagent.draplugin.preparation import PreparedDevice
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.events import Event, InventoryChanged
from vgpu_nodeagent.kubelet.api import dra_pb2 as dra
from vgpu_nodeagent.kubelet.api import dra_pb2_grpc as dra_grpc
from vgpu_nodeagent.kubelet.api import drahealth_pb2 as health
from vgpu_nodeagent.kubelet.server import Call, KubeletCall
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices

logger = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]
TURN_S = 30.0
"""Wait this long for the agent before this one to end; the kubelet gives up after 45 s."""
_HEALTH_S = 10.0
"""Show the health again after this long; the kubelet forgets it after 30 s."""
_MESSAGE_KEPT = 1024


class ClaimPreparation(Protocol):
    """Prepares and unprepares ResourceClaims; see `Preparation`."""

    async def prepare(self, ref: ClaimRef, *, call: KubeletCall) -> Sequence[PreparedDevice]:
        """Open the shares of a ResourceClaim and return its devices, or raise `Refused`."""

    async def unprepare(self, ref: ClaimRef) -> None:
        """Close the shares of a ResourceClaim, or raise `Refused`."""


class DRAPlugin(dra_grpc.DRAPluginServicer):
    """Answers the kubelet's calls.

    During an update two agents are registered, and the kubelet calls the one that registered last.
    That one answers once the other has ended.

    Args:
        node: The node's name, which is the name of its pool of devices.
        preparation: Prepares and unprepares.
        devices: The node's devices and their health.
        metrics: Counts calls.
        turn_s: Wait this long for another agent to end.
    """

    def __init__(
        self,
        node: str,
        preparation: ClaimPreparation,
        *,
        devices: NodeDevices,
        metrics: Metrics,
        turn_s: float = TURN_S,
    ) -> None:
        self._node = node
        self._preparation = preparation
        self._devices = devices
        self._metrics = metrics
        self._turn_s = turn_s
        self._serves = asyncio.Event()
        self._changed = asyncio.Event()
        self._has_ended = False

    def serve(self) -> None:
        """Start to answer calls: this agent alone serves the node, and its record is loaded."""
        self._serves.set()

    def end_streams(self) -> None:
        """End every open stream of health, so that a stopping server need not wait for them."""
        self._has_ended = True
        self._show_health()

    def observe(self, event: Event) -> None:
        """Show the health after an event that may change it."""
        if isinstance(event, InventoryChanged):
            self._show_health()

    async def NodePrepareResources(  # noqa: N802
        self, request: dra.NodePrepareResourcesRequest, context: _Context
    ) -> dra.NodePrepareResourcesResponse:
        """Prepare each claim, or say why its pod must not start."""
        call = Call(context)
        results = await asyncio.gather(*(self._prepare(ref, call) for ref in _refs(request.claims)))
        return dra.NodePrepareResourcesResponse(claims=dict(results))

    async def NodeUnprepareResources(  # noqa: N802
        self, request: dra.NodeUnprepareResourcesRequest, context: _Context
    ) -> dra.NodeUnprepareResourcesResponse:
        """Unprepare each claim, or say what still uses it."""
        results = await asyncio.gather(*(self._unprepare(ref) for ref in _refs(request.claims)))
        return dra.NodeUnprepareResourcesResponse(claims=dict(results))

    async def NodeWatchResources(  # noqa: N802
        self, request: health.NodeWatchResourcesRequest, context: _Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        """Send the health of all devices now, after every change, and again and again."""
        await self._serves.wait()
        while not self._has_ended:
            changed = self._changed
            yield health.NodeWatchResourcesResponse(
                devices=[self._health(uuid) for uuid in self._devices.inventory.devices]
            )
            try:
                async with asyncio.timeout(_HEALTH_S):
                    await changed.wait()
            except TimeoutError:
                continue

    async def _prepare(
        self, ref: ClaimRef, call: KubeletCall
    ) -> tuple[str, dra.NodePrepareResourceResponse]:
        answer = dra.NodePrepareResourceResponse()
        with self._metrics.prepare_seconds.time():
            try:
                await self._wait_for_turn()
                devices = await self._preparation.prepare(ref, call=call)
            except Refused as refused:
                self._metrics.prestart_failures.labels(refused.reason.value).inc()
                logger.warning("ResourceClaim %s is not prepared: %s", ref, refused)
                answer.error = f"{refused.reason}: {refused}"
                return ref.uid, answer
        for device in devices:
            answer.devices.add(
                request_names=device.requests,
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=device.cdi_devices,
                share_id=device.share_id,
            )
        return ref.uid, answer

    async def _unprepare(self, ref: ClaimRef) -> tuple[str, dra.NodeUnprepareResourceResponse]:
        answer = dra.NodeUnprepareResourceResponse()
        try:
            await self._wait_for_turn()
            await self._preparation.unprepare(ref)
        except Refused as refused:
            logger.warning("ResourceClaim %s is not unprepared: %s", ref, refused)
            answer.error = f"{refused.reason}: {refused}"
        return ref.uid, answer

    async def _wait_for_turn(self) -> None:
        try:
            async with asyncio.timeout(self._turn_s):
                await self._serves.wait()
        except TimeoutError:
            raise Refused(
                Why.NOT_SERVING, "another agent still serves this node; this one waits for its end"
            ) from None

    def _show_health(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _health(self, uuid: str) -> health.DeviceHealth:
        devices = self._devices
        problem = devices.health.problem(uuid)
        is_usable = devices.is_usable(uuid)
        message = "" if is_usable else "the driver does not show the device"
        return health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name=self._node, device_name=device_name(uuid)),
            health=health.HEALTHY if is_usable else health.UNHEALTHY,
            last_updated_time=int(time.time()),
            message=(message if problem is None else problem.message)[:_MESSAGE_KEPT],
        )


def _refs(claims: Iterable[dra.Claim]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]
