"""Draws conclusions from the raw series of vgpu-measure. Pure: series in, figures out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

# A stamp of a clock is not older than this when it is seen for the first time.
RECENT_US = 20e6


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` (0 to 1) of the values lie; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median; 0 without values."""
    return percentile(values, 0.5)


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest value."""
    return {
        "median": round(median(values), 3),
        "p99": round(percentile(values, 0.99), 3),
        "most": round(max(values, default=0.0), 3),
    }


def drift_ppm(host_us: Sequence[float], device_us: Sequence[float]) -> float:
    """Return by how many parts in a million the device's clock is faster than the host's."""
    if len(host_us) < 2:
        raise ValueError("two points in time are needed to compare clocks")
    host, device = mean(host_us), mean(device_us)
    over = sum((x - host) * (y - device) for x, y in zip(host_us, device_us))
    under = sum((x - host) ** 2 for x in host_us)
    return (over / under - 1) * 1e6


def lateness_us(
    host_us: Sequence[float], device_us: Sequence[float], *, drift: float
) -> list[float]:
    """Return the lateness of each mark, compared with the quickest recent one."""
    late, found = 0.0, []
    for host, device in zip(host_us, device_us):
        late = max(0.0, late + device - host * (1 + drift))
        found.append(late)
    return found


def turns_us(between_us: Sequence[float], kernel_us: float) -> dict[str, list[float]]:
    """Return others' timeslices, and our own between them, from the times between kernels' ends.

    A kernel that was interrupted takes longer by the turn of the others.
    """
    foreign: list[float] = []
    own: list[float] = []
    since = 0.0
    for between in between_us:
        gap = between - kernel_us
        if gap < max(100.0, kernel_us / 10):
            since += between
            continue
        if foreign:  # the first turn had begun before the series
            own.append(since + kernel_us)
        foreign.append(gap)
        since = 0.0
    return {"others": foreign, "own": own}


def samples(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return period, delay and clock of NVML's samples.

    Args:
        rows: [host's monotonic clock, host's wall clock, stamp, PID, percent] of each, in µs.
    """
    clocks = Counter(_clock(row) for row in rows)
    clock = clocks.most_common(1)[0][0] if clocks else "none"
    stamps = sorted({row[2] for row in rows})
    gaps = [after - before for before, after in zip(stamps, stamps[1:]) if after - before > 1e4]
    seen: dict[float, float] = {}
    for at, wall, stamp, _, _ in rows:
        seen.setdefault(stamp, (wall if clock == "wall" else at) - stamp)
    # The first sample that is shown may have been there for long.
    lags = [lag for stamp, lag in seen.items() if stamp != stamps[0]]
    return {
        "count": len(rows),
        "clock": clock,
        "period_ms": round(median(gaps) / 1e3, 3),
        "lag_ms": {name: value / 1e3 for name, value in spread(lags).items()},
        "shows_idle": any(row[4] == 0 for row in rows),
        "pids": sorted({int(row[3]) for row in rows}),
    }


def living(rows: Sequence[Sequence[float]], *, began_us: float, ended_us: float) -> list[int]:
    """Return the PIDs with a sample of the second half of a time of the host's monotonic clock.

    NVML keeps showing processes that have ended for a while.
    """
    middle = (began_us + ended_us) / 2
    return sorted({int(row[3]) for row in rows if middle < _taken_at(row) <= ended_us})


def shown_percent(
    rows: Sequence[Sequence[float]],
    pid: int,
    *,
    period_us: float,
    began_us: float,
    ended_us: float,
) -> float:
    """Return the mean percent of a process over a time of the host's monotonic clock.

    Each sample counts for the period before it; a time without a sample counts as idle.
    """
    last = ended_us + period_us
    mine = [row for row in rows if row[3] == pid and began_us < _taken_at(row) <= last]
    by_stamp = {row[2]: row[4] for row in mine}
    span = ended_us - began_us
    return sum(by_stamp.values()) * period_us / span if span > 0 else 0.0


def sums_by_stamp(rows: Sequence[Sequence[float]], window_us: float) -> list[float]:
    """Return the sum over all processes of the samples that lie within a window of each other."""
    found: list[float] = []
    start = None
    for _, _, stamp, _, percent in sorted(rows, key=lambda row: row[2]):
        if start is None or stamp - start > window_us:
            found.append(0.0)
            start = stamp
        found[-1] += percent
    return found


def _taken_at(row: Sequence[float]) -> float:
    """Return when a sample was taken, by the host's monotonic clock."""
    at, wall, stamp = row[:3]
    return at - (wall - stamp) if _clock(row) == "wall" else stamp


def _clock(row: Sequence[float]) -> str:
    at, wall, stamp = row[:3]
    if -1e6 < wall - stamp < RECENT_US:
        return "wall"
    return "monotonic" if -1e6 < at - stamp < RECENT_US else "other"
