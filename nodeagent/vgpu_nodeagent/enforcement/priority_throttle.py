"""Enforces priorities on a device, by lowering compute limits in the limit pages.

While an allocation with a higher priority computes, those with a lower priority on the same device
get what it leaves. They always keep a small share: a program that is stopped altogether would miss
heartbeats, and its clients would time out. The driver reports which processes compute. If it
cannot, nothing is throttled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from vgpu_client.clock import Clock
from vgpu_nodeagent.discovery.drivers.base import Driver
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.page import ALL_CORES, DeviceLimit
from vgpu_nodeagent.enforcement.watchdog import Residence, residences
from vgpu_nodeagent.errors import DriverUnavailable, PageDamaged
from vgpu_nodeagent.state.slots import SlotRecord, SlotState

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
ACTIVE_S = 5.0
"""A process counts as active for this long after it computed, so that pages do not flap."""
LEAST_PERCENT = 5

_On = dict[str, dict[str, DeviceLimit]]
"""The limit of each slot allocation on a device, by UUID of the device."""


def ceilings(limits: Mapping[str, DeviceLimit], active: Collection[str]) -> Mapping[str, int]:
    """Return the ceilings of throttled allocations on one device, in percent.

    Allocations of one level share what the active ones above them leave. An allocation with a share
    keeps it if there is enough, and the rest is divided evenly between the others that are active.

    Args:
        limits: The limit of each allocation on the device.
        active: The allocations that compute there.
    """
    found = {}
    left = ALL_CORES
    for level in sorted({limit.priority for limit in limits.values()}):
        mine = {
            allocation: limit for allocation, limit in limits.items() if limit.priority == level
        }
        busy = {allocation: limit for allocation, limit in mine.items() if allocation in active}
        if left < ALL_CORES:
            for allocation in mine:
                rivals = busy | {allocation: mine[allocation]}
                found[allocation] = max(LEAST_PERCENT, _part(allocation, rivals, left))
        left -= sum(_share(limit) or ALL_CORES for limit in busy.values())
        left = max(left, 0)
    return found


def _share(limit: DeviceLimit) -> int:
    """Return the enforced share of an allocation in percent; 0 for none."""
    return limit.cores if limit.limits_compute else 0


def _part(allocation: str, rivals: Mapping[str, DeviceLimit], left: int) -> int:
    shares = {rival: _share(limit) for rival, limit in rivals.items()}
    promised = sum(shares.values())
    if shares[allocation]:
        return shares[allocation] if promised <= left else shares[allocation] * left // promised
    return max(0, left - promised) // sum(not share for share in shares.values())


class PriorityThrottle:
    """Throttles less urgent allocations where several priorities share a device.

    Args:
        driver: Reports which processes compute.
        record: The slot allocations and claim allocations.
        allocations: Their files.
        clock: The time.
    """

    def __init__(
        self,
        driver: Driver,
        record: SlotRecord,
        allocations: Allocations,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._record = record
        self._allocations = allocations
        self._clock = clock or Clock()
        self._marks: dict[str, int] = {}  # see `Driver.compute_since`
        self._seen: dict[
            tuple[str, str], float
        ] = {}  # when last seen computing, by (device, allocation)
        self._held: dict[str, dict[str, int]] = {}  # by slot allocation
        self._calm: SlotState | None = None

    async def run(self) -> None:
        """Call `look` every second until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Find the active allocations, and set or lift the ceilings of others.

        If all had one priority and none was throttled, pages are read again only after something
        was granted or has ended: reading 150 of them takes 4.5 ms of CPU.
        """
        if self._calm is self._record.state:
            return
        computing: Mapping[str, Mapping[int, float]] = {}
        limits = self._limits()
        if self._is_contested(limits):
            try:
                computing = await self._driver.compute_since(self._marks)
            except DriverUnavailable as error:
                logger.debug("nothing is throttled: %s", error)
        elif not any(limit.ceiling for on in limits.values() for limit in on.values()):
            self._held = {}
            self._calm = self._record.state
            return
        # No await from here on, so that the pages do not change between read and write.
        limits = self._limits()
        self._note(computing, limits)
        held = self._ceilings(limits)
        for allocation, percents in held.items():
            self._throttle(allocation, percents)
        self._held = held

    def _ceilings(self, limits: _On) -> dict[str, dict[str, int]]:
        """Return the ceilings of every allocation, by device."""
        found: dict[str, dict[str, int]] = {
            allocation: {} for on in limits.values() for allocation in on
        }
        for uuid, on in limits.items():
            active = [allocation for allocation in on if (uuid, allocation) in self._seen]
            for allocation, percent in ceilings(on, active).items():
                found[allocation][uuid] = percent
        return found

    @staticmethod
    def _is_contested(limits: _On) -> bool:
        return any(len({limit.priority for limit in on.values()}) > 1 for on in limits.values())

    def _limits(self) -> _On:
        """Return the limits from all pages in state GRANT, by device, then by slot allocation."""
        found: _On = {}
        for allocation in self._record.state.slot_allocations.values():
            if not allocation.is_bound:
                continue
            try:
                content = self._allocations.content(allocation.name)
            except PageDamaged as error:
                logger.debug(
                    "cannot read a limit page: %s", error
                )  # logged where the page is opened or read
                continue
            if content.state is PageState.GRANT:
                for limit in content.devices:
                    found.setdefault(limit.uuid, {})[allocation.name] = limit
        return found

    def _note(self, computing: Mapping[str, Mapping[int, float]], limits: _On) -> None:
        """Record the computing allocations, and forget those that have been idle for a while."""
        now, state = self._clock.monotonic(), self._record.state
        busy = {uuid: {pid for pid, used in on.items() if used} for uuid, on in computing.items()}
        homes = residences(frozenset().union(*busy.values()), state, self._allocations)
        for uuid, at_work in busy.items():
            for pid in at_work:
                for allocation in _allocations_of(homes[pid], state) & limits.get(uuid, {}).keys():
                    self._seen[uuid, allocation] = now
        self._seen = {
            (uuid, allocation): then
            for (uuid, allocation), then in self._seen.items()
            if now - then < ACTIVE_S and allocation in limits.get(uuid, {})
        }

    def _throttle(self, allocation: str, percents: dict[str, int]) -> None:
        try:
            self._allocations.throttle(allocation, percents)
        except PageDamaged as error:
            logger.warning("cannot throttle an allocation: %s", error)
            return
        if percents != self._held.get(allocation, {}):
            logger.info("allocation %s is throttled: %s", allocation, percents or "no longer")


def _allocations_of(home: Residence, state: SlotState) -> frozenset[str]:
    """Return the slot allocations of a process; all of its claim if it maps no region."""
    if home.claim_allocation is None:
        return frozenset()
    mine = frozenset(each.name for each in state.of_claim(home.claim_allocation.claim_uid))
    return mine & home.slot_allocations or mine
