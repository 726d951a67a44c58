"""Integrates over many looks how far a claim exceeds its limits on a device.

A single look proves little: memory that was just freed may still be counted, and a kernel of two
seconds fills a whole look under any share. Two readings in a row miss a program that pulses between
them. So looks come at irregular times and are integrated:

* Memory violates the limit after two looks within a minute that exceed it by more than 64 MiB and
  2 % (pulses), or if it stays above the limit by more than 2 %: byte-seconds above the tolerance
  add up, and those below it are subtracted. With the driver's accounting, one new peak of one
  process is enough, however short.
* Compute violates the share if the average of the last two minutes exceeds it by more than 10
  points and by twice the average's standard error: a look is a sample, all or nothing for long
  kernels. The library keeps shares within some points on average; a long kernel runs and pays
  later.

Pure: readings and time are arguments. All times are seconds, monotonic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from vgpu_api.quantity import MIB

WINDOW_S = 60.0
QUIET_S = 30.0
"""A claim obeys again after it has stayed within its limit for this long."""

PULSE_BYTES = 64 * MIB
PULSE_PERCENT = 2
_PULSES = 2
TOLERATED_BYTES = 16 * MIB
TOLERATED_PERCENT = 2
_LASTING_S = 10.0

COMPUTE_WINDOW_S = 120.0
COMPUTE_MARGIN = 10.0
_ERRORS = 2.0
_COMPUTE_OVER = 5.0
_COVERED_S = 30.0
_LONGEST_LOOK_S = 5.0
"""A reading that comes later than this does not cover the time before it."""


def pulse_margin(limit: int) -> int:
    """Return the bytes above the limit from which a look counts as a pulse."""
    return max(PULSE_BYTES, limit * PULSE_PERCENT // 100)


def _tolerated(limit: int) -> int:
    """Return the bytes above the limit to tolerate: modules are counted only once loaded."""
    return max(TOLERATED_BYTES, limit * TOLERATED_PERCENT // 100)


@dataclass(slots=True)
class MemoryExcess:
    """The memory of one claim on one device, over time.

    `within → violating` when it is proven, `violating → within` after `QUIET_S` without excess.

    Attributes:
        violating: True if it exceeds its limit, or did less than `QUIET_S` ago.
        excess_byte_seconds: The memory ever seen above the limit, times how long it was held.
    """

    violating: bool = False
    excess_byte_seconds: float = 0.0
    _limit: int = -1
    _debt: float = 0.0
    _last: float | None = None
    _last_above: float = 0.0
    _above: deque[float] = field(default_factory=deque)
    _held: deque[tuple[float, int]] = field(default_factory=deque)
    _peaks: dict[int, int] | None = None

    def look(
        self, held: int, limit: int, *, now: float, peaks: Mapping[int, int] | None = None
    ) -> None:
        """Add a reading.

        Args:
            held: The bytes that its processes hold now.
            limit: The bytes that it may hold; a new limit resets the account.
            now: The time of the reading.
            peaks: The peak bytes of each process by host PID, if the driver keeps accounts.
        """
        if limit != self._limit:
            self._reset(limit)
        passed = min(now - self._last, _LONGEST_LOOK_S) if self._last is not None else 0.0
        self._last = now
        proof = _LASTING_S * pulse_margin(limit)
        # One look is at most half the proof: it may show memory that is just being freed.
        self._debt += min((held - limit - _tolerated(limit)) * passed, proof / 2)
        self._debt = min(max(self._debt, 0.0), 2 * proof)
        self.excess_byte_seconds += max(0, held - limit) * passed
        _forget(self._held, now)
        self._held.append((now, held))
        self._forget_pulses(now)
        peaked = self._peaked(peaks or {}, limit, now)
        is_proven = peaked or self._debt >= proof
        if is_above := held > limit + pulse_margin(limit):
            self._above.append(now)
        if is_proven or len(self._above) >= _PULSES:
            self.violating = True
        if is_proven or is_above:
            self._last_above = now
        elif self.violating and now - self._last_above >= QUIET_S:
            self.violating = False
            self._above.clear()

    def _reset(self, limit: int) -> None:
        self._limit, self._debt, self._last, self._peaks = limit, 0.0, None, None
        self._above.clear()
        self._held.clear()

    def _forget_pulses(self, now: float) -> None:
        while self._above and self._above[0] <= now - WINDOW_S:
            self._above.popleft()

    def peak(self) -> int:
        """Return the largest number of bytes that was seen in the last minute."""
        return max((held for _, held in self._held), default=0)

    def _peaked(self, peaks: Mapping[int, int], limit: int, now: float) -> bool:
        """True if a process has a new peak above the limit, by the driver's accounts.

        Peaks at the first look do not count: they may be from before this agent or this limit.
        """
        before, self._peaks = self._peaks, dict(peaks)
        if before is None:
            return False
        new = [peak for pid, peak in peaks.items() if peak > before.get(pid, 0)]
        if not new or max(new) <= limit + pulse_margin(limit):
            return False
        self._held.append((now, max(new)))
        return True


@dataclass(slots=True)
class ComputeExcess:
    """The compute of one claim on one device, over time.

    Attributes:
        violating: True if the average exceeds the share.
    """

    violating: bool = False
    _last: float | None = None
    _share: int = -1
    _looks: deque[tuple[float, float]] = field(default_factory=deque)
    _lengths: deque[float] = field(default_factory=deque)

    def look(self, percent: float, share: int, *, now: float, counts: bool = True) -> None:
        """Add a reading.

        Args:
            percent: The percentage of the device's compute used since the last look.
            share: The percentage that it may use; a new share resets the account.
            now: The time of the reading.
            counts: True if the share is enforced; policy Default does so only beside others.
        """
        if share != self._share:
            self._share, self._last = share, None
            self._looks.clear()
            self._lengths.clear()
        passed = min(now - self._last, _LONGEST_LOOK_S) if self._last is not None else 0.0
        self._last = now
        while self._looks and self._looks[0][0] <= now - COMPUTE_WINDOW_S:
            self._looks.popleft()
            self._lengths.popleft()
        if counts and passed:
            self._looks.append((now, percent))
            self._lengths.append(passed)
        covered, average = self.covered(), self.average()
        least = average - _ERRORS * self._error()
        if covered >= _COVERED_S and least > share + COMPUTE_MARGIN:
            self.violating = True
        elif average <= share + _COMPUTE_OVER:
            self.violating = False

    def covered(self) -> float:
        """Return the seconds of the last two minutes in which the share was enforced and read."""
        return sum(self._lengths)

    def average(self) -> float:
        """Return the average percentage of the device's compute in those seconds."""
        covered = self.covered()
        if not covered:
            return 0.0
        pairs = zip(self._looks, self._lengths, strict=True)
        return sum(percent * length for (_, percent), length in pairs) / covered

    def _error(self) -> float:
        """Return the standard error of the average."""
        count, average = len(self._looks), self.average()
        if count < 2:
            return 0.0
        spread = sum((percent - average) ** 2 for _, percent in self._looks) / (count - 1)
        return math.sqrt(spread / count)


def _forget(readings: deque[tuple[float, int]], now: float) -> None:
    while readings and readings[0][0] <= now - WINDOW_S:
        readings.popleft()
