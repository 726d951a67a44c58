"""Which slots the kubelet is shown, and which of them it may hand out.

Apart from the slot allocations on them (`state/`): what is offered follows from the devices, and a
slot allocation never depends on what is offered after it was made.
"""

from __future__ import annotations

from collections.abc import Collection

from vgpu_nodeagent.state.slots import slot_order


def offer(*, total: int, usable: int, in_use: Collection[str]) -> list[tuple[str, bool]]:
    """The slots to show the kubelet, each with its health.

    Ids stand for no device, so a device that is not usable shrinks the free ones, from the top.
    One in use never turns unhealthy and never vanishes: the kubelet would fail its pod at a
    restart.

    Args:
        total: Slots of all devices known.
        usable: Slots of the devices that can take something new.
        in_use: Slots with a slot allocation.
    """
    every = {f"slot-{number}" for number in range(total)} | set(in_use)
    ordered = sorted(every, key=slot_order)
    spare = max(0, usable - len(in_use))
    shown = []
    for slot in ordered:
        free = slot not in in_use
        shown.append((slot, not free or spare > 0))
        spare -= free
    return shown
