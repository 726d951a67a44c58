"""Summarises the state of a device or node in one word, for tables and the web page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.v1alpha1 import GPUDevice


def state_of(device: GPUDevice) -> str:
    """Return the state of a device. Of several problems, the worst is shown."""
    ready = find(device.status.conditions, conditions.READY)
    healthy = find(device.status.conditions, conditions.HEALTHY)
    if ready is None or ready.status == "Unknown":
        return "Unknown"
    if ready.status == "False":
        return "NotReady"
    if healthy is not None and healthy.status != "True":
        return "Unhealthy"
    return "Cordoned" if device.spec.cordoned else "Ready"


def node_state(node: Mapping[str, Any], devices: Sequence[GPUDevice]) -> str:
    """Return the state of a node and its devices. Of several problems, the worst is shown."""
    status, spec = node.get("status") or {}, node.get("spec") or {}
    ready = any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in status.get("conditions") or ()
    )
    cordoned = bool(spec.get("unschedulable"))
    return worst_state(map(state_of, devices), ready=ready, cordoned=cordoned)


def worst_state(devices: Iterable[str], *, ready: bool, cordoned: bool) -> str:
    """Return the state of a node, given the states of its devices."""
    if not ready:
        return "NotReady"
    if cordoned:
        return "Cordoned"
    states = set(devices)
    return next((word for word in ("Unknown", "NotReady", "Unhealthy") if word in states), "Ready")
