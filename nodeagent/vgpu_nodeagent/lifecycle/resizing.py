"""The agent's part of a resize in place: pages follow a claim's changed memory and cores.

A change has no await between reading what is in use and writing the page, so nothing is granted in
between. While pages change, the record on disk holds the larger of the old and new amounts
(`decisions/resize.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from vgpu_api.quantity import format_mib
from vgpu_api.resize import was_changed
from vgpu_api.v1alpha1 import AllocatedDevice, VGPUClaim
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.events import ClaimChanged, Event
from vgpu_nodeagent.lifecycle.decisions.resize import Obstacle, PageReading, decide_resize
from vgpu_nodeagent.lifecycle.effector import GrantEffector
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.slots import SlotAllocation

AGAIN_S = 0.5
"""Retry a resize that could not be done after this many seconds."""


class Resizing:
    """Adapts pages to what claims request, whenever a claim changes.

    Args:
        node: The node.
        reports: Reports the outcome.
    """

    def __init__(self, node: LocalNode, *, reports: Reports) -> None:
        self._node = node
        self._reports = reports
        self._effector = GrantEffector(node, reports)
        self._due: dict[str, None] = {}  # claims by UID, in order
        self._desired = asyncio.Event()
        self._said: dict[str, tuple[int | None, str]] = {}

    async def run(self) -> None:
        """Resize changed claims at once and retry failed resizes, until cancelled."""
        await self._node.view.wait_synced()
        while True:
            try:
                async with asyncio.timeout(AGAIN_S if self._due else None):
                    await self._desired.wait()
            except TimeoutError:
                pass
            self._desired.clear()
            self.resize_due()

    def resize_due(self) -> None:
        """Try every claim that is due; a claim that could not be resized stays due."""
        for uid in list(self._due):
            claim = self._node.view.claim_with_uid(uid)
            if claim is None or self._resize(claim):
                del self._due[uid]

    def observe(self, event: Event) -> None:
        """Note the claims that need a resize."""
        match event:
            case ClaimChanged(old=VGPUClaim() as gone, new=None):
                self._said.pop(gone.metadata.uid, None)
            case ClaimChanged(new=VGPUClaim() as new):
                if was_changed(new) and not new.unknown_values:
                    self._due[new.metadata.uid] = None
                    self._desired.set()

    def _resize(self, claim: VGPUClaim) -> bool:
        """Adapt the claim's pages to its requests; return False if this must be retried."""
        state = self._node.checkpoint.state
        resize = decide_resize(
            claim,
            [self._read(held) for held in state.of_claim(claim.metadata.uid)],
            state=state,
            capacities=self._node.inventory.capacities(),
            resizes=self._node.backends.resizes,
        )
        if resize is None:
            return True
        obstacles = list(resize.obstacles)
        try:
            self._effector.carry_out(resize.effects)
        except (PageDamaged, OSError) as error:
            obstacles.append(("StorageFailed", str(error)))
        if not obstacles and resize.lack is not None:
            obstacles.append(resize.lack)
        if not obstacles and resize.is_starting:
            return False
        self._report(claim, resize.desired, [*obstacles, *resize.unmet])
        return not obstacles

    def _read(self, slot_allocation: SlotAllocation) -> PageReading:
        allocations, name = self._node.allocations, slot_allocation.name
        try:
            page = allocations.content(name)
        except PageDamaged as error:
            return PageReading(slot_allocation, damage=str(error))
        reading = PageReading(slot_allocation, page.state, page.devices)
        if page.state is not PageState.GRANT:
            return reading
        try:
            used = {use.uuid: use.used_bytes for use in allocations.usage(name)}
        except PageDamaged as error:
            return replace(reading, damage=str(error))
        return replace(reading, used=used)

    def _report(
        self, claim: VGPUClaim, desired: Sequence[AllocatedDevice], obstacles: Sequence[Obstacle]
    ) -> None:
        reason = obstacles[0][0] if obstacles else ""
        message = "; ".join(sentence for _, sentence in obstacles)
        # The amounts in use and free change all the time and are not worth another event.
        said = claim.metadata.generation, reason
        if self._said.get(claim.metadata.uid) == said:
            return
        self._said[claim.metadata.uid] = said
        if not obstacles:
            self._reports.resized(claim, f"limits are in place: {_amounts(desired)}")
            return
        self._reports.not_resized(claim, reason, message)
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self._node.view.pod_with_uid(reserved.pod_uid)
        if pod is not None:
            self._reports.warning(pod, "ResizeNotDone", f"claim {claim.metadata.name}: {message}")


def _amounts(devices: Sequence[AllocatedDevice]) -> str:
    return ", ".join(
        f"{format_mib(device.memory_mib)} and {device.cores} % of GPU {device.uuid}"
        for device in devices
    )
