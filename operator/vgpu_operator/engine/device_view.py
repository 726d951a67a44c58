"""What of each card is given away, and which cards are two, written into GPUDevice.status.

For people to see. A view, never the truth: coalesced, written when it differs from what was last
written, and the last thing to wait for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from vgpu_api import conditions
from vgpu_api.effective import Use
from vgpu_api.names import FIELD_MANAGER_OPERATOR
from vgpu_api.quantity import format_mib
from vgpu_api.resources import GPU_DEVICES
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_operator.engine.holds import NO_NAMESPACE
from vgpu_operator.engine.status import rfc3339
from vgpu_operator.ledger import Holder, Ledger

logger = logging.getLogger(__name__)

_EVERY_S = 0.25


class DeviceView:
    """Keeps `status.allocated` and `status.claims` of the devices near the ledger.

    Args:
        api: Where to.
        ledger: Who holds what.
        leads: Whether this replica writes.
        unix: Unix time.
        sleep: Waits between rounds.
    """

    def __init__(
        self,
        *,
        api: Api,
        ledger: Ledger,
        leads: Callable[[], bool],
        unix: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._leads = leads
        self._unix = unix
        self._sleep = sleep
        self._cursor = 0
        self._stale: set[str] = set()  # nodes whose devices were not yet looked at

    async def run(self) -> None:
        """Write what changed, for ever."""
        while True:
            await self._sleep(_EVERY_S)
            self._cursor, nodes = self._ledger.changed_since(self._cursor)
            self._stale |= nodes
            if self._leads():
                await self._write_stale()

    async def _write_stale(self) -> None:
        nodes, self._stale = self._stale, set()
        duplicates = self._ledger.duplicates()
        for node in sorted(nodes):
            for device in self._ledger.devices(node):
                status = view_of(device, self._ledger.holders(device.status.uuid))
                if device.metadata.name in duplicates:
                    status["conditions"] = [_duplicate(device, now=self._unix())]
                if status == _shown(device):
                    continue
                try:
                    await self._api.apply(
                        GPU_DEVICES,
                        {"metadata": {"name": device.metadata.name}, "status": status},
                        field_manager=FIELD_MANAGER_OPERATOR,
                        force=True,
                        subresource="status",
                    )
                except ClientError as error:
                    logger.info("device %s: not shown: %s", device.metadata.name, error)
                    self._stale.add(node)


def view_of(device: GPUDevice, holders: tuple[Holder, ...]) -> dict[str, Any]:
    """What a device's status says about who holds it; what is held for nobody yet is not given."""
    holders = tuple(holder for holder in holders if holder.key.namespace != NO_NAMESPACE)
    total = sum((holder.use for holder in holders), Use())
    return {
        "allocated": {
            "memory": format_mib(total.memory_mib),
            "cores": total.cores,
            "slots": total.slots,
        },
        "claims": [
            {
                "namespace": holder.key.namespace,
                "name": holder.key.name,
                "memory": format_mib(holder.use.memory_mib),
                "cores": holder.use.cores,
            }
            for holder in holders
        ],
    }


def _duplicate(device: GPUDevice, *, now: float) -> dict[str, Any]:
    """The condition of a device whose UUID another object claims too: nothing is placed on it."""
    shown = conditions.find(device.status.conditions, conditions.DUPLICATE_UUID)
    if shown is not None:
        return shown.to_wire()
    return Condition(
        type=conditions.DUPLICATE_UUID,
        status="True",
        reason="DuplicateUUID",
        message=f"another GPUDevice has UUID {device.status.uuid} too; nothing is placed on either",
        last_transition_time=rfc3339(now),
    ).to_wire()


def _shown(device: GPUDevice) -> dict[str, Any]:
    allocated = device.status.allocated
    duplicate = conditions.find(device.status.conditions, conditions.DUPLICATE_UUID)
    return {
        **({} if duplicate is None else {"conditions": [duplicate.to_wire()]}),
        "allocated": allocated.to_wire() if allocated is not None else None,
        "claims": [claim.to_wire() for claim in device.status.claims],
    }
