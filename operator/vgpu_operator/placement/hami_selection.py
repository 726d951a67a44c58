"""The walk along a node's ordered devices, from the end, as HAMi v2.10 takes and refuses them.

Reasons and their counts come from here. On a node with devices in MIG mode it decides too: there a
device that was taken is tried again, since several instances of it may serve one request.
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
    """The devices that serve, the most wanted first, and how often each reason was met on the way.

    Args:
        columns: The state of all devices; left as it was.
        ordered: Devices of one node, from the least wanted to the most wanted.
        request: What is asked of each device.
        policies: Of the devices.
        charge: The namespace's quota, if it has one.
        one_numa_node: What was gathered on another NUMA node is dropped.
        count: So many are enough; None for all that there are.
    """
    reasons: dict[Reason, int] = {}
    gathered: list[int] = []
    taken: list[Taken] = []
    refusal_here = refusal_among if request.neighbours else refusal_of_room
    for device in reversed(ordered):
        reason = refusal_of_kind(columns, device, request)
        if reason is None:
            # Check 4: start again on the NUMA node of this device.
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
    """Whether several parts of the device may serve one request.

    Init containers count by their peak, which knows of one part of a device per request.
    """
    return columns.mode[device] == "MIG" and request.phase == "App"


def too_few(columns: Columns, node: int, request: RequestDemand) -> bool:
    """Whether the node has fewer devices of the vendor than are asked for, and none to be cut."""
    devices = columns.node_devices[node]
    if [columns.vendor[device] for device in devices].count(request.vendor) >= request.count:
        return False
    return not columns.node_in_mig_mode[node] or not any(
        columns.vendor[device] == request.vendor
        and request.mode in ("Any", "MIG")
        and serves_again(columns, device, request)
        for device in devices
    )
