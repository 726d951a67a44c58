"""The figures of a run: rates, times, requests for each pod, and the usage of each process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

REQUESTS = "apiserver_request_total"
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MIDDLE = 0.8
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)
"""Return idle and iowait from the line `cpu` of /proc/stat."""
_BUSY_FIELDS = 8
"""Those after the eighth, guests' time, are counted in others already."""


# Times and rates.


def summarized(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max of times in whole milliseconds; empty if there are none."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[round(share * last)], 3) for name, share in shares.items()}


def rates(bound_at: Sequence[float]) -> dict[str, float]:
    """Return pods per second: of all, and of the middle without the first and the last tenth.

    Args:
        bound_at: For each pod, the seconds from the first create to its node; at least three.

    Raises:
        ValueError: fewer than three pods.
    """
    if len(bound_at) < 3:
        raise ValueError(f"bound_at: Invalid value: {len(bound_at)} pods: at least 3 make a rate")
    ordered = sorted(bound_at)
    tail = int(len(ordered) * (1 - _MIDDLE) / 2)
    middle = ordered[tail : len(ordered) - tail]
    return {
        "pods_per_s": _per_second(len(ordered), ordered[-1]),
        "pods_per_s_middle_80": _per_second(len(middle) - 1, middle[-1] - middle[0]),
    }


def longest_gap(bound_at: Sequence[float]) -> tuple[float, float]:
    """Return the longest time in which no pod got a node: its length and its start, in seconds."""
    pairs = pairwise(sorted(bound_at))
    gap, since = max(((after - before, before) for before, after in pairs), default=(0.0, 0.0))
    return round(gap, 2), round(since, 2)


def _per_second(count: int, seconds: float) -> float:
    return round(count / max(seconds, 1e-3), 1)


# Requests.


Requests = Mapping[tuple[str, str], float]
"""The number of requests by verb and `resource/subresource`."""


def requests(metrics: str) -> Requests:
    """Return the API server's requests so far, watches left out.

    Args:
        metrics: The text of the API server's /metrics.
    """
    found: dict[tuple[str, str], float] = {}
    for line in metrics.splitlines():
        if not line.startswith(REQUESTS + "{"):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise ValueError(f"/metrics: Invalid value: {line!r}: not a sample")
        labels = dict(_LABEL.findall(sample["labels"]))
        verb, resource = labels["verb"], labels["resource"]
        if verb == "WATCH" or not resource:
            continue
        if labels["subresource"]:
            resource += f"/{labels['subresource']}"
        key = verb, resource
        found[key] = found.get(key, 0.0) + float(sample["value"])
    return found


def per_pod(before: Requests, after: Requests, pods: int) -> dict[str, float]:
    """Return the requests for each pod between two readings, by frequency, with their `total`.

    Leases are left out, because they are written by the clock and not for a pod.
    """
    made = {
        " ".join(key): (count - before.get(key, 0.0)) / pods
        for key, count in after.items()
        if key[1] != "leases" and count > before.get(key, 0.0)
    }
    ordered = sorted(made.items(), key=lambda item: -item[1])
    return {"total": round(sum(made.values()), 2), **{name: round(n, 3) for name, n in ordered}}


# Processes.


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds so far: of each process by name, and of the whole machine."""

    processes: Mapping[str, float]
    machine: float


def used(pids: Mapping[str, int]) -> Used:
    """Read the CPU seconds that processes have used so far.

    Raises:
        OSError: one of them has ended.
    """
    return Used({name: _cpu_s(pid) for name, pid in pids.items()}, _machine_s())


def reset_peaks(pids: Mapping[str, int]) -> None:
    """Restart the measurement of each process's peak memory."""
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peaks_mib(pids: Mapping[str, int]) -> dict[str, int]:
    """Return the largest resident memory of each process since `reset_peaks`, MiB."""
    return {name: _peak_mib(pid) for name, pid in pids.items()}


def ended(pids: Mapping[str, int]) -> list[str]:
    """Return the names of processes that have ended, reaped by their parent or not."""
    return [name for name, pid in pids.items() if _state(pid) in ("", "Z", "X")]


def cpu_per_pod(before: Used, after: Used, pods: int) -> dict[str, float]:
    """Return CPU milliseconds per pod of each process; `others` is the rest of the machine."""
    spent = {name: after.processes[name] - before.processes[name] for name in before.processes}
    spent["others"] = max(0.0, after.machine - before.machine - sum(spent.values()))
    return {name: round(1000 * seconds / pods, 2) for name, seconds in spent.items()}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _cpu_s(pid: int) -> float:
    """Return user and system time; the command before them may contain spaces and parentheses."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024)
    raise ProcessLookupError(f"process {pid} has ended")


def _machine_s() -> float:
    first = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    busy = [int(x) for at, x in enumerate(first[:_BUSY_FIELDS]) if at not in _IDLE_FIELDS]
    return sum(busy) / _TICKS
