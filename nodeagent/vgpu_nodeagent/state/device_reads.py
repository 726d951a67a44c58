"""Reads the node's GPUDevices by name when the operator marks a change, instead of watching them.

The API server has no index of devices by node: it would compare every change of any device with the
watch of every agent. The operator writes a mark of the node's devices to the annotation
`vgpu.dev/poke` of the agent's pod, which the agent sees in its watch of pods, and writes it again
until the pod shows it (`vgpu_api.agent_pods`). If the mark differs from that of the copies, each
device is read by name; what then still differs is a device that the agent does not know, and the
devices are listed. They are listed at the start, too, because of devices that are gone.
"""

from __future__ import annotations

import asyncio
import logging

from vgpu_api.agent_pods import device_mark, is_agent_pod
from vgpu_api.core.pod import Pod
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resources import GPU_DEVICES
from vgpu_client.api import Api
from vgpu_client.backoff import Backoff
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, NotFound
from vgpu_nodeagent.events import Event, PodChanged
from vgpu_nodeagent.state.node_view import NodeView

logger = logging.getLogger(__name__)

_FIRST_S = 0.25
_LAST_S = 10.0
_LIST_AFTER_S = 5.0
"""An agent that starts creates its devices one after the other, so marks may be behind them."""


async def read_device(api: Api, view: NodeView, name: str) -> None:
    """Bring the view's copy of a device up to date.

    Raises:
        ClientError: The device could not be read.
    """
    try:
        raw = await api.get(GPU_DEVICES, name)
    except NotFound:
        view.drop_device(name)
    else:
        view.take_device(raw)


class DeviceReads:
    """Keeps the view's devices up to date.

    Args:
        api: The API server.
        view: The pods of this node, and the devices to keep.
        clock: The waits between reads.
    """

    def __init__(self, api: Api, view: NodeView, *, clock: Clock | None = None) -> None:
        self._api = api
        self._view = view
        self._clock = clock or Clock()
        self._mark = ""
        self._wake = asyncio.Event()

    def observe(self, event: Event) -> None:
        """Read the devices if a pod of an agent here shows another mark."""
        match event:
            case PodChanged(old=old, new=Pod() as new) if is_agent_pod(new):
                mark = new.metadata.annotations.get(ANNOTATION_REQUEUE, "")
                before = "" if old is None else old.metadata.annotations.get(ANNOTATION_REQUEUE, "")
                if mark != before:
                    self._mark = mark
                    self._wake.set()

    async def run(self) -> None:
        """List once, then follow the marks until cancelled."""
        failures = Backoff(_FIRST_S, _LAST_S)
        is_listed = False
        while True:
            self._wake.clear()
            try:
                if not is_listed:
                    await self._list()
                    is_listed = True
                if self._is_behind():
                    await self._read()
                if self._is_behind():
                    await self._list_unless_marked()
                failures = Backoff(_FIRST_S, _LAST_S)
            except ClientError as error:
                wait_s = failures.failed()
                logger.warning("cannot read GPUDevices, retrying in %.1f s: %s", wait_s, error)
                await self._clock.sleep(wait_s)
                continue
            await self._wake.wait()

    def _is_behind(self) -> bool:
        return bool(self._mark) and device_mark(self._view.devices.objects.values()) != self._mark

    async def _read(self) -> None:
        """Read every known device by name.

        Raises:
            ClientError: One could not be read.
        """
        for _, name in list(self._view.devices.objects):
            await read_device(self._api, self._view, name)

    async def _list_unless_marked(self) -> None:
        """List the devices unless another mark comes, or the agent's own writes agree with it.

        Raises:
            ClientError: They could not be listed.
        """
        try:
            async with asyncio.timeout(_LIST_AFTER_S):  # wait_for may swallow a cancellation
                await self._wake.wait()
        except TimeoutError:
            if self._is_behind():
                await self._list()

    async def _list(self) -> None:
        """List the devices of this node, from the server's cache: there are many nodes.

        Raises:
            ClientError: They could not be listed.
        """
        listing = await self._api.list(
            GPU_DEVICES, field_selector=f"spec.nodeName={self._view.node}", not_older_than="0"
        )
        self._view.take_devices(listing.items, int(listing.resource_version))
