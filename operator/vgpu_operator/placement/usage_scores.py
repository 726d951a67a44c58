"""Scores nodes and devices by usage, between 0 and about 30; fuller ones score higher.

The formulas are those of HAMi v2.10: a node is scored by its usage before the request, a device by
its usage including the request. A total of 0 contributes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.columns import Columns


def node_score(columns: Columns, node: int) -> float:
    """Return 10·(slots used/slots + cores used/cores + memory used/memory) of all devices."""
    slots, cores = columns.node_slots[node], columns.node_cores[node]
    memory = columns.node_memory[node]
    return 10.0 * (
        (columns.node_slots_used[node] / slots if slots else 0.0)
        + (columns.node_cores_used[node] / cores if cores else 0.0)
        + (columns.node_memory_used[node] / memory if memory else 0.0)
    )


def device_score(
    columns: Columns, device: int, request: RequestDemand, weights: tuple[int, int, int]
) -> float:
    """Return the weighted sum of the same three shares for a device, including the request."""
    return device_scores(columns, (device,), request, weights)[0]


def device_scores(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: tuple[int, int, int]
) -> list[float]:
    """Return the `device_score` of each device."""
    known, condition = columns.conditions.scores.of((request, weights)), columns.condition
    try:
        return [known[condition[device]] for device in devices]
    except KeyError:
        scores = _summed(columns, devices, request, weights)
        known.update(zip([condition[device] for device in devices], scores, strict=True))
        return scores


def _summed(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: tuple[int, int, int]
) -> list[float]:
    of_slots, of_cores, of_memory = weights
    slots, slots_used = columns.slots, columns.slots_used
    cores, cores_used = columns.cores, columns.cores_used
    memory, memory_used = columns.memory, columns.memory_used
    requested, memory_on = request.cores, request.memory_on
    # Inlined: a function call for each share of each device would cost more than the arithmetic.
    return [
        10.0
        * (
            (of_slots * ((1 + slots_used[c]) / slots[c]) if slots[c] else 0.0)
            + (of_cores * ((requested + cores_used[c]) / cores[c]) if cores[c] else 0.0)
            + (of_memory * ((memory_on(mib) + memory_used[c]) / mib) if (mib := memory[c]) else 0.0)
        )
        for c in devices
    ]
