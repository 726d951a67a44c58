"""Judges the health of devices by the driver's events and the repairs that it reports.

A fatal event makes a device unhealthy at once. It recovers after a quiet period if the driver
reports that it needs no repair: waiting neither resets nor reboots anything. Pure: the driver's
events, its devices and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, PhysicalDevice, Repair, Severity

PROBATION_S = 300.0
"""Trust a device again after this many seconds without a fatal event."""


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """The reason why a device is unhealthy, and when that was last seen (seconds, monotonic)."""

    reason: str
    message: str
    last_seen: float


class Health:
    """The devices that are unhealthy.

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
        """Take an event into account; return True if the health of a device changed.

        Args:
            event: The driver's event. Without a device it applies to all of them.
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
        """Take the driver's devices into account; return True if the health of one changed.

        Args:
            devices: The devices that the driver shows now, by UUID. The health of others is
                unknown and stays.
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
        """Return why a device is unhealthy; None if it is healthy."""
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
