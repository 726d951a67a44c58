"""Attributes the compute of processes that ended before a look could find their cgroup.

The driver names processes by PIDs only, and /proc forgets a process at once. A program that starts
a process for each kernel would escape with all of them but the one that a look happens to meet. So
residences of processes are remembered for a while after they end. A process that no look met is
attributed to the claim whose processes on that device came and went during the last seconds, if
that is one claim only: among several nobody is accused.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpu_nodeagent.enforcement.watchdog import Residence

KEPT_S = 10.0


@dataclass(slots=True)
class _Met:
    """A process that a look found alive.

    Attributes:
        home: Its residence.
        started: Its start time: another process may have its PID later.
        devices: The devices that it used.
        last: The last time that it was seen alive.
    """

    home: Residence
    started: int
    devices: set[str]
    last: float


@dataclass(slots=True)
class ShortLives:
    """The processes of claims that were alive at a check in the last seconds."""

    _met: dict[int, _Met] = field(default_factory=dict)
    _ended: dict[str, dict[str, tuple[float, Residence]]] = field(default_factory=dict)

    @property
    def pids(self) -> Set[int]:
        """Return the remembered processes."""
        return self._met.keys()

    def complete(
        self,
        homes: Mapping[int, Residence],
        used: Mapping[int, set[str]],
        started: Mapping[int, int],
        now: float,
    ) -> Mapping[int, Residence]:
        """Return the residences, with those of processes that have ended.

        Args:
            homes: The residence of each process, as far as it could be read.
            used: The devices of each process.
            started: The start time of each process and of `pids`, 0 for one that is gone.
            now: The time of the look.
        """
        for pid, at in started.items():
            self._meet(pid, homes.get(pid), used.get(pid, set()), at, now)
        return {
            pid: home if started[pid] else self._home_of(pid, home, used[pid], now)
            for pid, home in homes.items()
        }

    def _meet(
        self, pid: int, home: Residence | None, devices: set[str], started: int, now: float
    ) -> None:
        met = self._met.get(pid)
        if met is not None and met.started != started:
            for uuid in met.devices:
                claim = met.home.claim_allocation
                if claim is not None and now - met.last <= KEPT_S:
                    self._ended.setdefault(uuid, {})[claim.claim_uid] = (met.last, met.home)
            if started or now - met.last > KEPT_S:
                del self._met[pid]
        if started and home is not None and home.claim_allocation is not None:
            known = self._met.setdefault(pid, _Met(home, started, set(), now))
            known.last, known.home = now, home
            known.devices |= devices

    def _home_of(self, pid: int, home: Residence, devices: set[str], now: float) -> Residence:
        met = self._met.get(pid)
        if home.claim_allocation is not None or home.pods:
            return home
        if met is not None:
            return met.home
        candidates = {
            uid: residence
            for uuid in devices
            for uid, (at, residence) in self._ended.get(uuid, {}).items()
            if now - at <= KEPT_S
        }
        return next(iter(candidates.values())) if len(candidates) == 1 else home
