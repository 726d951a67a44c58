"""Compares the driver's figures of memory and compute with the limits of claims.

The library limits programs from the inside. A program without it (static, with another loader, or
with raw ioctls) is not limited, and a container can write anything to its usage region. The driver
knows which process holds how much memory and uses how much compute. Processes are attributed to
claims by the cgroup of their pod, or by the usage region that they map if pods have no cgroups.
Excess is integrated over looks (`excess.py`) at irregular times, so that a program that pulses in
step with a clock does not escape.

A process without a claim must not use a device that claims share; it is reported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from vgpu_api import names
from vgpu_api.quantity import MIB
from vgpu_client.clock import Clock
from vgpu_nodeagent.config import OnViolation
from vgpu_nodeagent.discovery.drivers.base import Driver
from vgpu_nodeagent.enforcement.abi import CorePolicy
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.excess import QUIET_S, ComputeExcess, MemoryExcess
from vgpu_nodeagent.enforcement.host_view import HostView
from vgpu_nodeagent.enforcement.page import ALL_CORES, DeviceLimit
from vgpu_nodeagent.enforcement.processes import (
    file_seen_by,
    index_of,
    mapped_by,
    name_of,
    pods_of_process,
    start_time,
)
from vgpu_nodeagent.enforcement.short_lives import ShortLives
from vgpu_nodeagent.errors import DriverUnavailable, PageDamaged
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotRecord, SlotState

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
_SHORTEST, _LONGEST = 0.5, 1.5
"""The bounds of the random pause between two looks, in periods."""
_HOMES_KEPT_S = 3.0
"""Seconds for which a process's residence is cached: reading its maps takes long."""
_STRANGER_LOOKS = 3


class Violation(StrEnum):
    """The violated limit; the reason of the condition and the event."""

    MEMORY = "MemoryLimitViolated"
    COMPUTE = "ComputeLimitViolated"
    PAGE = "LimitPageHidden"


@dataclass(frozen=True, slots=True)
class Residence:
    """The claim and pod of a process on the host.

    Attributes:
        claim_allocation: The claim allocation; None for a process without a claim.
        slot_allocations: The slot allocations whose usage region it maps.
        pods: The UIDs of the pods in whose cgroup it is.
    """

    claim_allocation: ClaimAllocation | None
    slot_allocations: frozenset[str]
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Taken:
    """The usage of one device by the processes of one claim.

    Attributes:
        uuid: The device.
        limit: The bytes that the claim may hold.
        held: The bytes that the driver counts for its processes.
        pids: The host PIDs of its processes on the device.
        percent: The percentage of compute used since the last look; None without a reading.
        share: The percentage of compute that it may use; None for all.
        contested: True if others used the device's compute, too.
        forced: True if the share is enforced even without others.
        hiding: Those of `pids` that have another file in the place of their limit page.
    """

    uuid: str
    limit: int
    held: int
    pids: frozenset[int]
    percent: float | None = None
    share: int | None = None
    contested: bool = False
    forced: bool = False
    hiding: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Account:
    """The usage of a device by a claim so far, for metrics."""

    excess_byte_seconds: float
    peak_bytes: int
    compute_percent: float | None


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that uses a device without a claim.

    Attributes:
        pid: The host PID.
        name: The name of the process.
        pod_uid: The pod in whose cgroup it is; empty if it is in none.
        held: The bytes that it holds on the device.
    """

    pid: int
    name: str
    pod_uid: str
    held: int

    def __str__(self) -> str:
        place = f"pod {self.pod_uid}" if self.pod_uid else "no pod"
        return f"{self.name} (PID {self.pid}, {place}) holds {self.held // MIB} MiB"


def residences(
    pids: Collection[int], state: SlotState, allocations: Allocations
) -> Mapping[int, Residence]:
    """Return the residence of each of these processes.

    The cgroup decides if there is one, because a process can map any file.
    """
    proc = allocations.proc
    regions = {allocations.region_path(name): name for name in state.slot_allocations}
    by_pod = {
        claim_allocation.pod_uid: claim_allocation
        for claim_allocation in state.claim_allocations.values()
    }
    index, found = index_of(regions), {}
    for pid in pids:
        slot_allocations = frozenset(regions[path] for path in mapped_by(pid, index, proc=proc))
        pods = pods_of_process(pid, proc=proc)
        claim_allocations = [by_pod[uid] for uid in pods if uid in by_pod]
        if not pods:
            claims = {state.slot_allocations[name].claim_uid for name in slot_allocations}
            claim_allocations = [
                state.claim_allocations[uid] for uid in claims if uid in state.claim_allocations
            ]
        found[pid] = Residence(
            claim_allocations[0] if claim_allocations else None, slot_allocations, pods
        )
    return found


def taken_by_claims(
    state: SlotState,
    allocations: Allocations,
    processes: Mapping[str, Mapping[int, int]],
    computing: Mapping[str, Mapping[int, float]],
    homes: Mapping[int, Residence],
) -> Mapping[str, tuple[Taken, ...]]:
    """Return the usage of each device that a claim has or uses, by claim UID.

    A device that a claim does not have counts with limits of 0.

    Args:
        state: The slot allocations and claim allocations.
        allocations: Their files.
        processes: The bytes by device and host PID, from the driver.
        computing: The percentage of compute by device and host PID, from the driver; devices
            without a reading are left out.
        homes: The residence of each process.
    """
    found: dict[str, tuple[Taken, ...]] = {}
    pids_of = _pids_by_claim(processes, computing, homes)
    for claim_allocation in state.claim_allocations.values():
        if claim_allocation.closed:
            continue
        pids, use = pids_of.get(claim_allocation.claim_uid, {}), claim_allocation.use
        shares = _shares(state, allocations, claim_allocation)
        of_claim = []
        for uuid in (uuid for uuid in processes if uuid in use or uuid in pids):
            mine, of_device = frozenset(pids.get(uuid, ())), use.get(uuid)
            limit = 0
            share: tuple[int | None, bool] = (0, True)
            if of_device is not None:
                limit, share = of_device.memory_mib * MIB, shares.get(uuid, (None, False))
            of_claim.append(_taken(uuid, limit, share, mine, processes[uuid], computing.get(uuid)))
        # With hundreds of pods, looking at the page of each that uses nothing takes most of a look.
        pages = _pages(state, allocations, claim_allocation) if pids else frozenset()
        found[claim_allocation.claim_uid] = tuple(
            replace(taken, hiding=_hiding(taken.pids, pages, allocations)) for taken in of_claim
        )
    return found


def _pids_by_claim(
    processes: Mapping[str, Mapping[int, int]],
    computing: Mapping[str, Mapping[int, float]],
    homes: Mapping[int, Residence],
) -> Mapping[str, Mapping[str, set[int]]]:
    """Return the processes by device of each claim that has any."""
    found: dict[str, dict[str, set[int]]] = {}
    for uuid, by_pid in processes.items():
        for pid in (*by_pid, *computing.get(uuid, ())):
            home = homes.get(pid)
            if home is not None and home.claim_allocation is not None:
                of_claim = found.setdefault(home.claim_allocation.claim_uid, {})
                of_claim.setdefault(uuid, set()).add(pid)
    return found


def _pages(
    state: SlotState, allocations: Allocations, claim_allocation: ClaimAllocation
) -> frozenset[tuple[int, int]]:
    """Return device and inode of the limit pages of a claim."""
    found = set()
    for slot_allocation in state.of_claim(claim_allocation.claim_uid):
        try:
            status = allocations.page_path(slot_allocation.name).stat()
        except OSError as error:
            logger.debug("no page: %s", error)  # logged where the page is opened
            continue
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _hiding(
    pids: Collection[int], pages: Collection[tuple[int, int]], allocations: Allocations
) -> frozenset[int]:
    """Return those of the processes that find another file than a limit page of theirs.

    A process that finds none is left alone: a container in a container has no page.
    """
    seen = {
        pid: file_seen_by(pid, names.CONTAINER_LIMITS, proc=allocations.proc)
        for pid in (pids if pages else ())
    }
    return frozenset(pid for pid, file in seen.items() if file is not None and file not in pages)


def _taken(
    uuid: str,
    limit: int,
    share: tuple[int | None, bool],
    mine: frozenset[int],
    by_pid: Mapping[int, int],
    busy: Mapping[int, float] | None,
) -> Taken:
    percents = busy or {}
    return Taken(
        uuid=uuid,
        limit=limit,
        held=sum(by_pid.get(pid, 0) for pid in mine),
        pids=mine,
        percent=None if busy is None else sum(percents.get(pid, 0) for pid in mine),
        share=share[0],
        contested=any(percents[pid] for pid in percents.keys() - mine),
        forced=share[1],
    )


def _is_of(home: Residence | None, claim_allocation: ClaimAllocation) -> bool:
    of = home.claim_allocation if home is not None else None
    return of is not None and of.claim_uid == claim_allocation.claim_uid


def _ledger(
    state: SlotState, allocations: Allocations, claim_allocation: ClaimAllocation
) -> Mapping[str, int]:
    """Return the bytes that a claim's processes recorded, by device; reads 2 MiB per region."""
    total: dict[str, int] = {}
    for slot_allocation in state.of_claim(claim_allocation.claim_uid):
        try:
            for use in allocations.usage(slot_allocation.name):
                total[use.uuid] = total.get(use.uuid, 0) + use.used_bytes
        except PageDamaged as error:
            logger.warning("cannot read a usage region: %s", error)
    return total


def _shares(
    state: SlotState, allocations: Allocations, claim_allocation: ClaimAllocation
) -> Mapping[str, tuple[int | None, bool]]:
    """Return the compute shares of a claim by the pages of all its containers.

    Returns:
        By UUID: the percentage (None for all), and True if it is enforced without neighbours.
    """
    limits: dict[str, list[DeviceLimit]] = {}
    for slot_allocation in state.of_claim(claim_allocation.claim_uid):
        try:
            for limit in allocations.content(slot_allocation.name).devices:
                limits.setdefault(limit.uuid, []).append(limit)
        except PageDamaged as error:
            logger.debug("no share: %s", error)  # logged where the page is opened
    found: dict[str, tuple[int | None, bool]] = {}
    for uuid, of_device in limits.items():
        limited = all(limit.limits_compute for limit in of_device)
        # The driver's figures cannot be split by container, so the containers of a claim are judged
        # together; one unlimited container lifts the limit of all.
        share = min(ALL_CORES, sum(limit.cores for limit in of_device)) if limited else None
        forced = all(limit.policy is CorePolicy.FORCE for limit in of_device)
        found[uuid] = (share, forced)
    return found


class Consequences(Protocol):
    """Receives what the watchdog finds."""

    def violated(
        self, claim_allocation: ClaimAllocation, violation: Violation, uuid: str, sentence: str
    ) -> None:
        """Report a violation; called once until the claim obeys again."""

    def obeys(self, claim_allocation: ClaimAllocation, remaining: Mapping[Violation, str]) -> None:
        """Report that a claim violates one limit less; `remaining` has sentences of the others."""

    def confirmed(self, claim_allocation: ClaimAllocation) -> None:
        """Note that a claim violated nothing in its first `QUIET_S` seconds; called once."""

    def accounts(self, found: Mapping[tuple[str, str, str], Account]) -> None:
        """Take the accounts by (namespace, claim, device); called once per look."""

    def strangers(self, found: Mapping[str, tuple[Stranger, ...]]) -> None:
        """Take the processes without a claim by device; called when they have changed."""

    def held_pods(self) -> Collection[str]:
        """Return the UIDs of pods that were given devices by HAMi and are held by a claim."""


class Signals:
    """Ends processes that exceed limits or have no claim, if the administrator wants that.

    Args:
        on_violation: What to do to a claim that exceeds a limit, besides reporting it.
        on_unclaimed: What to do to pod processes without a claim, besides reporting them.
    """

    def __init__(
        self,
        on_violation: OnViolation = OnViolation.REPORT,
        on_unclaimed: OnViolation = OnViolation.REPORT,
    ) -> None:
        self.on_violation = on_violation
        self.on_unclaimed = on_unclaimed

    def end(self, pids: Iterable[int], terminated: set[int]) -> None:
        """Send SIGTERM to each process, and SIGKILL to one that has had a SIGTERM.

        Args:
            pids: The processes.
            terminated: The processes that have had a SIGTERM; the others are added.
        """
        for pid in pids:
            # SIGTERM first, so that a training job can write its checkpoint.
            number = signal.SIGKILL if pid in terminated else signal.SIGTERM
            terminated.add(pid)
            try:
                self.send(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                logger.warning("cannot signal process %d: %s", pid, error)

    def send(self, pid: int, number: int) -> None:
        """Send one signal.

        Raises:
            ProcessLookupError: The process is gone.
            PermissionError: It must not be signalled.
        """
        os.kill(pid, number)


def pause_s(draw: float) -> float:
    """Return the seconds until the next look.

    Args:
        draw: A random number from 0 to 1: a program in step with regular looks would escape them.
    """
    return PERIOD_S * (_SHORTEST + (_LONGEST - _SHORTEST) * draw)


@dataclass(slots=True)
class _Watched:
    """A claim under watch since its first look."""

    since: float
    is_confirmed: bool = False
    memory: dict[str, MemoryExcess] = field(default_factory=dict)
    compute: dict[str, ComputeExcess] = field(default_factory=dict)
    reported: set[tuple[Violation, str]] = field(default_factory=set)
    terminated: set[int] = field(default_factory=set)
    hidden: dict[str, float] = field(default_factory=dict)
    """When a process that hides its page was last seen, by device."""

    def note_hiding(self, devices: Iterable[Taken], now: float) -> None:
        """Remember for a while on which devices processes hide their page."""
        self.hidden |= {taken.uuid: now for taken in devices if taken.hiding}
        self.hidden = {uuid: at for uuid, at in self.hidden.items() if now - at < QUIET_S}

    def violating(self, devices: Iterable[Taken]) -> dict[tuple[Violation, str], Taken]:
        """Return the violations, each with the usage of its device."""
        found: dict[tuple[Violation, str], Taken] = {}
        for taken in devices:
            memory, compute = self.memory.get(taken.uuid), self.compute.get(taken.uuid)
            if memory is not None and memory.violating:
                found[Violation.MEMORY, taken.uuid] = taken
            if compute is not None and compute.violating:
                found[Violation.COMPUTE, taken.uuid] = taken
            if taken.uuid in self.hidden:
                found[Violation.PAGE, taken.uuid] = taken
        return found


class Watchdog:
    """Compares usage with limits about once a second.

    Args:
        driver: Reports memory and compute of processes.
        record: The slot allocations and claim allocations.
        allocations: Their files.
        consequences: Receives the findings.
        signals: Ends processes, if configured.
        clock: The time.
    """

    def __init__(
        self,
        driver: Driver,
        record: SlotRecord,
        allocations: Allocations,
        consequences: Consequences,
        *,
        signals: Signals | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._record = record
        self._allocations = allocations
        self._consequences = consequences
        self._signals = signals or Signals()
        self._clock = clock or Clock()
        self._host_view = HostView(allocations)
        self._samples: dict[str, int] = {}  # see `Driver.compute_since`
        self._watched: dict[str, _Watched] = {}
        self._homes: Mapping[int, Residence] = {}
        self._homes_read = float("-inf")
        self._short_lives = ShortLives()
        self._stranger_looks: dict[tuple[str, int], int] = {}
        self._strangers: dict[str, tuple[Stranger, ...]] = {}
        self._strangers_terminated: set[int] = set()

    async def run(self) -> None:
        """Check until cancelled; retry later if the driver does not respond."""
        while True:
            await asyncio.sleep(pause_s(random.random()))
            try:
                await self.look()
            except DriverUnavailable as error:
                logger.debug("no usage to compare: %s", error)

    async def look(self) -> None:
        """Compare once and act.

        Raises:
            DriverUnavailable: The driver does not report its processes.
        """
        self._host_view.before(self._homes)
        processes = await self._driver.process_memory()
        computing = await self._driver.compute_since(self._samples)
        peaks = await self._driver.process_peaks()
        state, now = self._record.state, self._clock.monotonic()
        homes = self._homes_of(processes, computing, state, now)
        self._host_view.show(processes, computing, homes, now)
        claims = taken_by_claims(state, self._allocations, processes, computing, homes)
        self._watched = {uid: self._watched.get(uid) or _Watched(now) for uid in claims}
        unread = frozenset(
            uuid for each in state.claim_allocations.values() for uuid in each.use
        ).difference(processes)
        for uid, devices in claims.items():
            self._add(self._watched[uid], devices, peaks, now, unread=unread)
        self._consequences.accounts(dict(self._accounts(state)))
        for uid, devices in claims.items():
            watched = self._watched[uid]
            self._judge(state.claim_allocations[uid], watched, devices, now, unread=unread)
        self._find_strangers(processes, homes)

    def _homes_of(
        self,
        processes: Mapping[str, Mapping[int, int]],
        computing: Mapping[str, Mapping[int, float]],
        state: SlotState,
        now: float,
    ) -> Mapping[int, Residence]:
        """Return the residence of all processes, cached for a while."""
        used: dict[int, set[str]] = {}
        for found in (processes, computing):
            for uuid, by_pid in found.items():
                for pid in by_pid:
                    used.setdefault(pid, set()).add(uuid)
        if not used.keys() <= self._homes.keys() or now - self._homes_read >= _HOMES_KEPT_S:
            self._homes = residences(used, state, self._allocations)
            self._homes_read = now
            self._host_view.name_processes(self._homes)
        proc = self._allocations.proc
        homes = {pid: self._homes[pid] for pid in used}
        pids = used.keys() | self._short_lives.pids
        started = {pid: start_time(pid, proc=proc) for pid in pids}
        return self._short_lives.complete(homes, used, started, now)

    @staticmethod
    def _add(
        watched: _Watched,
        devices: Collection[Taken],
        peaks: Mapping[str, Mapping[int, int]],
        now: float,
        *,
        unread: frozenset[str],
    ) -> None:
        present = unread.union(taken.uuid for taken in devices)
        watched.memory = {u: x for u, x in watched.memory.items() if u in present}
        watched.compute = {u: x for u, x in watched.compute.items() if u in present}
        watched.note_hiding(devices, now)
        for taken in devices:
            memory = watched.memory.setdefault(taken.uuid, MemoryExcess())
            mine = {p: n for p, n in peaks.get(taken.uuid, {}).items() if p in taken.pids}
            memory.look(taken.held, taken.limit, now=now, peaks=mine)
            if taken.share is None:
                watched.compute.pop(taken.uuid, None)
            elif taken.percent is not None:
                compute = watched.compute.setdefault(taken.uuid, ComputeExcess())
                in_force = taken.forced or taken.contested
                compute.look(taken.percent, taken.share, now=now, counts=in_force)

    def _accounts(self, state: SlotState) -> Iterator[tuple[tuple[str, str, str], Account]]:
        for uid, watched in self._watched.items():
            claim_allocation = state.claim_allocations[uid]
            for uuid, memory in watched.memory.items():
                compute = watched.compute.get(uuid)
                yield (
                    (claim_allocation.namespace, claim_allocation.claim_name, uuid),
                    Account(
                        memory.excess_byte_seconds,
                        memory.peak(),
                        compute.average() if compute is not None else None,
                    ),
                )

    def _judge(
        self,
        claim_allocation: ClaimAllocation,
        watched: _Watched,
        devices: Collection[Taken],
        now: float,
        *,
        unread: frozenset[str],
    ) -> None:
        violating = watched.violating(devices)
        # A device without a reading proves nothing, so its last verdict is kept.
        before = watched.reported
        watched.reported = {*violating, *(found for found in before if found[1] in unread)}
        if watched.reported != before:
            self._report(claim_allocation, watched, violating, before)
        if not violating:
            watched.terminated = set()
            if unread.isdisjoint(claim_allocation.use):
                self._confirm(claim_allocation, watched, now)
        elif self._signals.on_violation is OnViolation.SIGNAL:
            uuids = {uuid for _, uuid in violating}
            pids = {pid for taken in devices if taken.uuid in uuids for pid in taken.pids}
            self._signal(claim_allocation, watched, pids)

    def _confirm(self, claim_allocation: ClaimAllocation, watched: _Watched, now: float) -> None:
        if not watched.is_confirmed and now - watched.since > QUIET_S:
            watched.is_confirmed = True
            self._consequences.confirmed(claim_allocation)

    def _report(
        self,
        claim_allocation: ClaimAllocation,
        watched: _Watched,
        violating: Mapping[tuple[Violation, str], Taken],
        before: Collection[tuple[Violation, str]],
    ) -> None:
        """Report violations that began or ended since the last look."""
        ledger = _ledger(self._record.state, self._allocations, claim_allocation)
        sentences = {
            found: _sentence(found[0], taken, watched, ledger) for found, taken in violating.items()
        }
        for violation, uuid in sorted(violating.keys() - set(before)):
            sentence = sentences[violation, uuid]
            logger.warning(
                "claim %s/%s: %s: it %s",
                claim_allocation.namespace,
                claim_allocation.claim_name,
                violation,
                sentence,
            )
            self._consequences.violated(claim_allocation, violation, uuid, sentence)
        if set(before) - watched.reported:
            remaining = {violation: text for (violation, _), text in sentences.items()}
            limits = ", ".join(sorted(remaining)) or "none"
            logger.info(
                "claim %s/%s: limits still violated: %s",
                claim_allocation.namespace,
                claim_allocation.claim_name,
                limits,
            )
            self._consequences.obeys(claim_allocation, remaining)

    def _signal(
        self, claim_allocation: ClaimAllocation, watched: _Watched, pids: Collection[int]
    ) -> None:
        """Terminate each process, and kill it at the next look if it is still there.

        Residences are read again: a PID may already belong to another process.
        """
        homes = residences(pids, self._record.state, self._allocations)
        self._signals.end(
            (pid for pid in sorted(pids) if _is_of(homes[pid], claim_allocation)),
            watched.terminated,
        )

    def _end_strangers(self, found: Mapping[str, tuple[Stranger, ...]]) -> None:
        """End processes of pods only: the node's own processes belong to its administrator."""
        pods = {s.pid: s.pod_uid for there in found.values() for s in there if s.pod_uid}
        self._strangers_terminated &= pods.keys()
        homes = residences(pods, self._record.state, self._allocations)
        still = (pid for pid, pod in sorted(pods.items())
                 if homes[pid].claim_allocation is None and pod in homes[pid].pods)  # fmt: skip
        self._signals.end(still, self._strangers_terminated)

    def _find_strangers(
        self, processes: Mapping[str, Mapping[int, int]], homes: Mapping[int, Residence]
    ) -> None:
        """Report processes without a claim after they were present at several checks."""
        proc = self._allocations.proc
        looks: dict[tuple[str, int], int] = {}
        found: dict[str, tuple[Stranger, ...]] = {}
        held_pods = frozenset(self._consequences.held_pods())
        for uuid, by_pid in processes.items():
            there = []
            for pid, held in sorted(by_pid.items()):
                if pid == os.getpid() or _has_a_claim(homes[pid], held_pods):
                    continue
                looks[uuid, pid] = self._stranger_looks.get((uuid, pid), 0) + 1
                if looks[uuid, pid] >= _STRANGER_LOOKS and (name := name_of(pid, proc=proc)):
                    there.append(Stranger(pid, name, next(iter(homes[pid].pods), ""), held))
            if there:
                found[uuid] = tuple(there)
        self._stranger_looks = looks
        if _identities(found) != _identities(self._strangers):
            self._strangers = found
            self._consequences.strangers(found)
        if self._signals.on_unclaimed is OnViolation.SIGNAL:
            self._end_strangers(found)


def _has_a_claim(home: Residence, held_pods: frozenset[str]) -> bool:
    """Return True if a process belongs to a claim whose containers we started, or a held one."""
    return home.claim_allocation is not None or not held_pods.isdisjoint(home.pods)


def _identities(found: Mapping[str, tuple[Stranger, ...]]) -> frozenset[tuple[str, int, str]]:
    return frozenset((uuid, s.pid, s.name) for uuid, there in found.items() for s in there)


def _sentence(
    violation: Violation, taken: Taken, watched: _Watched, ledger: Mapping[str, int]
) -> str:
    if violation is Violation.PAGE:
        pids = ", ".join(str(pid) for pid in sorted(taken.hiding)) or "processes that have ended"
        return (
            f"uses device {taken.uuid} with another file in the place of its limit page "
            f"{names.CONTAINER_LIMITS} (PID {pids})"
        )
    if violation is Violation.MEMORY:
        peak = watched.memory[taken.uuid].peak()
        return (
            f"held up to {peak // MIB} MiB of device {taken.uuid} in the last minute, "
            f"{ledger.get(taken.uuid, 0) // MIB} MiB by its own ledger; "
            f"its limit is {taken.limit // MIB} MiB"
        )
    compute = watched.compute[taken.uuid]
    return (
        f"used {compute.average():.0f} % of the compute of device {taken.uuid} over "
        f"{compute.covered():.0f} s; its share is {taken.share} %"
    )
