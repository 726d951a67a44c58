"""Which devices can be relied on, by the driver's events and the actions that it reports.

A fatal event takes a device out at once. It is back when it was quiet for a while and the driver
reports that it needs nothing: neither a reset nor a reboot happens by waiting. Pure bookkeeping;
the driver's events, its devices and the clock are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, PhysicalDevice, Repair, Severity

PROBATION_S = 300.0
"""How long a device must be quiet after a fatal event before it is trusted again."""


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """Why a device is not healthy, and since when (seconds, monotonic)."""

    reason: str
    message: str
    last_seen: float


class Health:
    """The devices that are not healthy.

    A device is `healthy`, `out` after a fatal event, or `in need` of a repair:

        healthy ──fatal event──► out ──quiet for the probation, needs nothing──► healthy
           │                      │ needs a repair
           └──needs a repair──► in need ──needs nothing any more──► out, or healthy without an event
    """

    def __init__(self, *, probation_s: float = PROBATION_S) -> None:
        self._probation_s = probation_s
        self._events: dict[str, HealthProblem] = {}
        self._repairs: dict[str, Repair] = {}

    def note(self, event: DeviceEvent, *, devices: Iterable[str], now: float) -> bool:
        """Take an event in; whether any device's health changed.

        Args:
            event: What the driver reported. Without a device it is taken to mean all of them.
            devices: The UUIDs of all devices.
            now: Seconds, monotonic.
        """
        if event.severity is not Severity.FATAL:
            return False
        changed = False
        for uuid in (event.uuid,) if event.uuid else devices:
            changed |= uuid not in self._events
            self._events[uuid] = HealthProblem(event.reason, event.message, now)
        return changed

    def review(self, devices: Mapping[str, PhysicalDevice], *, now: float) -> bool:
        """Take in the driver's report of its devices; whether any device's health changed.

        Args:
            devices: Those that it shows now, by UUID. Of others nothing is known, so they stay as
                they are.
            now: Seconds, monotonic.
        """
        before = {uuid: self._reason(uuid) for uuid in devices}
        for uuid, device in devices.items():
            if device.repair is not None:
                self._repairs[uuid] = device.repair
                continue
            self._repairs.pop(uuid, None)
            event = self._events.get(uuid)
            if event is not None and now - event.last_seen >= self._probation_s:
                del self._events[uuid]
        return before != {uuid: self._reason(uuid) for uuid in devices}

    def problem(self, uuid: str) -> HealthProblem | None:
        """Why a device is not healthy; None for one that is."""
        event = self._events.get(uuid)
        repair = self._repairs.get(uuid)
        if repair is None:
            return event
        after = f", after {event.message}" if event is not None else ""
        seen = event.last_seen if event is not None else 0.0
        return HealthProblem(repair.reason, f"{repair.message}{after}", seen)

    def _reason(self, uuid: str) -> tuple[str, str] | None:
        found = self.problem(uuid)
        return None if found is None else (found.reason, found.message)
