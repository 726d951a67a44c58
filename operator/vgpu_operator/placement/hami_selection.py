"""Takes and refuses a node's devices like HAMi v2.10, walking the ordered list from its end.

Reasons and their counts come from this walk. On a node with devices in MIG mode it also makes the
choice: a device that was taken is tried again, because several instances of it may serve one
request.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import Charge
from vgpu_operator.placement.fit_device import (
    Taken,
    give_back,
    refusal_among,
    refusal_of_kind,
    refusal_of_room,
    take,
)


def walk(
    columns: Columns,
    ordered: Sequence[int],
    request: RequestDemand,
    policies: Sequence[DevicePolicy],
    charge: Charge | None,
    *,
    one_numa_node: bool,
    count: int | None,
) -> tuple[list[int], dict[Reason, int]]:
    """Return the devices that serve, most preferred first, and the count of each refusal.

    Args:
        columns: The state of all devices; it is not modified.
        ordered: The devices of one node, least preferred first.
        request: The request.
        policies: The policies for the node's devices.
        charge: The namespace's quota, if it has one.
        one_numa_node: Start over when the walk reaches another NUMA node.
        count: Stop at this number of devices; None for all that serve.
    """
    reasons: dict[Reason, int] = {}
    gathered: list[int] = []
    taken: list[Taken] = []
    refusal_here = refusal_among if request.neighbours else refusal_of_room
    for device in reversed(ordered):
        reason = refusal_of_kind(columns, device, request)
        if reason is None:
            # Check 4: start over on the NUMA node of this device.
            if one_numa_node and gathered and columns.numa[gathered[-1]] != columns.numa[device]:
                if count is None and len(gathered) >= request.count:
                    break
                reasons[Reason.NUMA_NOT_FIT] = reasons.get(Reason.NUMA_NOT_FIT, 0) + len(gathered)
                gathered.clear()
            reason = refusal_here(columns, device, request, policies, charge)
            while reason is None and len(gathered) != count:
                gathered.append(device)
                if not serves_again(columns, device, request):
                    break
                taken.append(take(columns, device, request))
                reason = refusal_here(columns, device, request, policies, charge)
        if len(gathered) == count:
            break
        if reason is not None:
            reasons[reason] = reasons.get(reason, 0) + 1
    give_back(columns, taken)
    return gathered, reasons


def serves_again(columns: Columns, device: int, request: RequestDemand) -> bool:
    """Return True if several instances of the device may serve one request.

    Init containers cannot have several: the peak of their usage counts one instance per device and
    request.
    """
    return columns.mode[device] == "MIG" and request.phase == "App"


def too_few(columns: Columns, node: int, request: RequestDemand) -> bool:
    """Return True if the node has too few devices of the vendor, and none in MIG mode to divide."""
    devices = columns.node_devices[node]
    if [columns.vendor[device] for device in devices].count(request.vendor) >= request.count:
        return False
    return not columns.node_in_mig_mode[node] or not any(
        columns.vendor[device] == request.vendor
        and request.mode in ("Any", "MIG")
        and serves_again(columns, device, request)
        for device in devices
    )
