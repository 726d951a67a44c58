"""What claims really hold of the cards, by the driver's word, against what they may hold.

The library limits programs from the inside, and what runs without it (a static program, another
loader, calls straight to the device) is not limited; the ledger is its container's to write. The
driver knows better: it says which process holds how much. Processes are found by the cgroup of
their pod, and by the usage region that they have mapped where pods have no cgroups.

A claim above its limit is looked at twice before anything is done: memory that is just being freed
is still counted by the driver. Contexts and modules may stand a little above the limit without
anybody's fault, hence the margin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vgpu_api.quantity import MIB
from vgpu_nodeagent.config import OnViolation
from vgpu_nodeagent.drivers.base import Driver
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.host_pids import tell_host_pids
from vgpu_nodeagent.enforcement.processes import mapped_by, pods_of_process
from vgpu_nodeagent.errors import DriverUnavailable, PageDamaged
from vgpu_nodeagent.state.slots import Holding, SlotState

logger = logging.getLogger(__name__)

PERIOD_S = 3.0
MARGIN_BYTES = 64 * MIB
MARGIN_PERCENT = 2
_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Held:
    """What a claim's processes hold of one card.

    Attributes:
        uuid: The card.
        limit: Bytes that the claim may hold.
        held: Bytes that the driver says it holds.
        ledger: Bytes that its own processes say they hold.
        pids: Who holds them, on the host.
    """

    uuid: str
    limit: int
    held: int
    ledger: int
    pids: frozenset[int]

    @property
    def is_violation(self) -> bool:
        """Whether it is above the limit by more than the margin."""
        return self.held > self.limit + max(MARGIN_BYTES, self.limit * MARGIN_PERCENT // 100)

    def __str__(self) -> str:
        return (
            f"holds {self.held // MIB} MiB of card {self.uuid}, {self.ledger // MIB} MiB of them "
            f"by its own word; its limit is {self.limit // MIB} MiB"
        )


@dataclass(frozen=True, slots=True)
class Residence:
    """Where a process of the host lives.

    Attributes:
        holding: On whose claim; None for a process of nobody's.
        leases: The leases whose usage region it has mapped.
    """

    holding: Holding | None
    leases: frozenset[str]


def residences(
    pids: Collection[int],
    state: SlotState,
    allocations: Allocations,
    *,
    proc: Path = Path("/proc"),
) -> Mapping[int, Residence]:
    """Where each of these processes lives.

    The cgroup decides: what a process maps is its own to choose.
    """
    regions = {allocations.region_path(name): name for name in state.leases}
    by_pod = {holding.pod_uid: holding for holding in state.holdings.values()}
    found = {}
    for pid in pids:
        leases = frozenset(regions[path] for path in mapped_by(pid, regions, proc=proc))
        pods = pods_of_process(pid, proc=proc)
        holdings = [by_pod[uid] for uid in pods if uid in by_pod]
        if not pods:
            claims = {state.leases[name].claim_uid for name in leases}
            holdings = [state.holdings[uid] for uid in claims if uid in state.holdings]
        found[pid] = Residence(holdings[0] if holdings else None, leases)
    return found


def memory_of_claims(
    state: SlotState,
    allocations: Allocations,
    processes: Mapping[str, Mapping[int, int]],
    homes: Mapping[int, Residence],
) -> Mapping[str, tuple[Held, ...]]:
    """What each claim holds of each card that it has or uses, by claim UID.

    A card that a claim has no share of has a limit of 0: nothing of it is its to use.

    Args:
        state: Who was given what.
        allocations: Their files.
        processes: The driver's word: bytes by card and host PID.
        homes: Where those processes live.
    """
    found: dict[str, tuple[Held, ...]] = {}
    for holding in state.holdings.values():
        if holding.closed:
            continue
        ledger = _ledger(state, allocations, holding)
        helds = []
        for uuid, by_pid in processes.items():
            mine = {pid: used for pid, used in by_pid.items() if homes[pid].holding is holding}
            if not mine and uuid not in holding.use:
                continue
            use = holding.use.get(uuid)
            limit = use.memory_mib * MIB if use is not None else 0
            helds.append(
                Held(uuid, limit, sum(mine.values()), ledger.get(uuid, 0), frozenset(mine))
            )
        found[holding.claim_uid] = tuple(helds)
    return found


def _ledger(state: SlotState, allocations: Allocations, holding: Holding) -> Mapping[str, int]:
    total: dict[str, int] = {}
    for lease in state.of_claim(holding.claim_uid):
        try:
            for use in allocations.usage(lease.name):
                total[use.uuid] = total.get(use.uuid, 0) + use.used_bytes
        except PageDamaged as error:
            logger.warning("no ledger: %s", error)
    return total


class Consequences(Protocol):
    """What follows from what the watchdog sees."""

    def violated(self, holding: Holding, held: Held) -> None:
        """A claim was found above its limit; told once until it obeys again."""

    def obeys(self, holding: Holding) -> None:
        """It is within its limits again."""

    async def evict(self, holding: Holding, reason: str) -> None:
        """Its pod shall go."""


@dataclass(slots=True)
class _Case:
    """A claim that was seen above its limit."""

    looks: int = 0
    reported: bool = False
    told: set[int] = field(default_factory=set)


class Watchdog:
    """Looks every few seconds.

    Args:
        driver: Whose word counts.
        state: Who was given what, now.
        allocations: Their files.
        consequences: What follows.
        on_violation: What to do besides.
        kill: Sends a signal; swapped in tests.
        proc: The host's process list.
    """

    def __init__(
        self,
        driver: Driver,
        state: Callable[[], SlotState],
        allocations: Allocations,
        consequences: Consequences,
        *,
        on_violation: OnViolation = OnViolation.REPORT,
        kill: Callable[[int, int], None] = os.kill,
        proc: Path = Path("/proc"),
    ) -> None:
        self._driver = driver
        self._state = state
        self._allocations = allocations
        self._consequences = consequences
        self._on_violation = on_violation
        self._kill = kill
        self._proc = proc
        self._cases: dict[str, _Case] = {}

    async def run(self) -> None:
        """Look for ever; a driver that does not answer is asked again later."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except DriverUnavailable as error:
                logger.debug("nothing to compare with: %s", error)

    async def look(self) -> None:
        """Compare once, and act.

        Raises:
            DriverUnavailable: The driver does not say who holds what.
        """
        processes = await self._driver.process_memory()
        state = self._state()
        pids = {pid for held in processes.values() for pid in held}
        homes = residences(pids, state, self._allocations, proc=self._proc)
        self._tell_host_pids(homes)
        claims = memory_of_claims(state, self._allocations, processes, homes)
        self._cases = {uid: case for uid, case in self._cases.items() if uid in claims}
        for uid, helds in claims.items():
            worst = max(helds, key=lambda held: held.held - held.limit, default=None)
            if worst is not None and worst.is_violation:
                await self._is_above(state.holdings[uid], worst)
            elif (case := self._cases.pop(uid, None)) is not None and case.reported:
                logger.info("claim %s is within its limits again", uid)
                self._consequences.obeys(state.holdings[uid])

    async def _is_above(self, holding: Holding, held: Held) -> None:
        case = self._cases.setdefault(holding.claim_uid, _Case())
        case.looks += 1
        if case.looks < _LOOKS:
            return
        if not case.reported:
            case.reported = True
            logger.warning("claim %s/%s %s", holding.namespace, holding.claim_name, held)
            self._consequences.violated(holding, held)
            if self._on_violation is OnViolation.EVICT:
                await self._consequences.evict(holding, str(held))
        if self._on_violation is OnViolation.SIGNAL:
            self._signal(case, held)

    def _signal(self, case: _Case, held: Held) -> None:
        """Ask each process to end; one that is still there at the next look is killed."""
        for pid in held.pids:
            number = signal.SIGKILL if pid in case.told else signal.SIGTERM
            case.told.add(pid)
            try:
                self._kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                logger.warning("process %d: %s", pid, error)

    def _tell_host_pids(self, homes: Mapping[int, Residence]) -> None:
        leases = {name for home in homes.values() for name in home.leases}
        for name in leases:
            pids = [pid for pid, home in homes.items() if name in home.leases]
            try:
                tell_host_pids(self._allocations.region_path(name), pids, proc=self._proc)
            except PageDamaged as error:
                logger.warning("host PIDs: %s", error)
