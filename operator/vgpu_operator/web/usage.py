"""The memory and compute in use, as the page shows it beside what is allocated. No I/O.

A value that nobody reported is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vgpu_api.errors import VgpuError
from vgpu_api.quantity import MIB
from vgpu_operator.ledger import ClaimKey

DEVICE_MEMORY = "vgpu_device_memory_used_bytes"
DEVICE_CORES = "vgpu_device_utilization_ratio"
CLAIM_MEMORY = "vgpu_claim_memory_used_bytes"
CLAIM_CORES = "vgpu_claim_cores_used_ratio"
METRICS = (DEVICE_MEMORY, DEVICE_CORES, CLAIM_MEMORY, CLAIM_CORES)
"""The agents' metrics from which usage is computed."""

_PART = ("namespace", "claim", "pod", "container", "device_uuid")


class UsageUnread(VgpuError):
    """The usage cannot be read now; the text is one line for visitors."""


@dataclass(frozen=True, slots=True)
class Used:
    """The use of a device or a claim.

    Attributes:
        memory_mib: The memory in use in MiB.
        cores: The compute in use in percent of one device; None: unknown.
    """

    memory_mib: int
    cores: float | None


@dataclass(frozen=True, slots=True)
class UsedSum:
    """The use of several devices or claims.

    Attributes:
        memory_mib: The memory in use in MiB of those whose use is known.
        cores: Their compute in percent of one device; None: unknown for at least one of them.
        known: The number of those whose use is known.
        of: The number of all.
    """

    memory_mib: int = 0
    cores: float | None = 0.0
    known: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class FleetUsage:
    """The current usage.

    Attributes:
        devices: By UUID; a device that is missing is unknown.
        claims: By key; a claim that is missing is unknown.
        problem: Why some or all is unknown, in one line; empty: nothing is wrong.
        peaks: The most compute that a claim used at any time of the last hour, in percent of one
            device, for claims that have run for an hour; None: unknown.
    """

    devices: Mapping[str, Used] = field(default_factory=dict)
    claims: Mapping[ClaimKey, Used] = field(default_factory=dict)
    problem: str = ""
    peaks: Mapping[ClaimKey, float] | None = None


UNREAD = FleetUsage(problem="the use of memory and compute is being read")


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class WantedSeries:
    """The series whose history is wanted.

    Attributes:
        of_claims: True for the use of claims, False for that of devices.
        labels: The labels of the series, sorted by name; none: the whole fleet.
    """

    of_claims: bool
    labels: tuple[tuple[str, str], ...] = ()


class UsageSource(Protocol):
    """Reads the usage from somewhere."""

    async def usage(self) -> FleetUsage:
        """Return the current usage.

        Raises:
            UsageUnread: It cannot be read.
        """


def usage_of(samples: Mapping[str, Iterable[Sample]], *, problem: str = "") -> FleetUsage:
    """Return the usage that samples tell, by the name of their metric.

    Samples of a claim, one for each container and device, are added up. Of a device that two agents
    report, as during an update, the larger value counts.
    """
    device_memory = _largest(samples[DEVICE_MEMORY], ("device_uuid",))
    device_cores = _largest(samples[DEVICE_CORES], ("device_uuid",))
    return FleetUsage(
        devices={
            uuid: Used(_mib(used), _percent(device_cores.get((uuid,))))
            for (uuid,), used in device_memory.items()
        },
        claims=_of_claims(samples[CLAIM_MEMORY], samples[CLAIM_CORES]),
        problem=problem,
    )


def sum_of(parts: Iterable[Used | None]) -> UsedSum:
    """Return the sum; unknown parts are counted and not added."""
    memory, known, of = 0, 0, 0
    cores: float | None = 0.0
    for part in parts:
        of += 1
        if part is None:
            continue
        known += 1
        memory += part.memory_mib
        cores = None if cores is None or part.cores is None else cores + part.cores
    return UsedSum(memory, cores, known, of)


def _of_claims(memory: Iterable[Sample], cores: Iterable[Sample]) -> Mapping[ClaimKey, Used]:
    of_parts, cores_of = _largest(memory, _PART), _largest(cores, _PART)
    found: dict[ClaimKey, list[Used]] = {}
    for part, used in of_parts.items():
        namespace, claim, *_ = part
        parts = found.setdefault(ClaimKey(namespace, claim), [])
        parts.append(Used(_mib(used), _percent(cores_of.get(part))))
    sums = {key: sum_of(parts) for key, parts in found.items()}
    return {key: Used(total.memory_mib, total.cores) for key, total in sums.items()}


def _largest(samples: Iterable[Sample], names: tuple[str, ...]) -> Mapping[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for sample in samples:
        if sample.value >= 0:  # false for NaN, with which a series says that it knows nothing
            key = tuple(sample.labels.get(name, "") for name in names)
            found[key] = max(found.get(key, 0.0), sample.value)
    return found


def _mib(used: float) -> int:
    return -int(-used // MIB)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 1)
