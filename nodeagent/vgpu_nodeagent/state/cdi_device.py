"""The CDI device name of a slot allocation.

The kubelet keeps it in its checkpoint, and the container runtime looks up its spec file.
"""

from __future__ import annotations

KIND = "vgpu.dev/slot"


def device_name(slot_allocation: str) -> str:
    """Return the fully qualified CDI device name of a slot allocation."""
    return f"{KIND}={slot_allocation}"


def allocation_of(device: str) -> str | None:
    """Return the slot allocation of a fully qualified CDI device name; None if it is not ours."""
    kind, _, name = device.partition("=")
    return name if kind == KIND and name else None
