"""How full a node is, and how full a card would be: numbers between 0 and about 30.

Formulas of HAMi v2.10: a node by what its cards carry before the request, a card by what it would
carry with it. A total of 0 contributes nothing.
"""

from __future__ import annotations

from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.columns import Columns


def node_score(columns: Columns, node: int) -> float:
    """10·(slots used/slots + cores used/cores + memory used/memory) over the node's cards."""
    return 10.0 * (
        _share(columns.node_slots_used[node], columns.node_slots[node])
        + _share(columns.node_cores_used[node], columns.node_cores[node])
        + _share(columns.node_memory_used[node], columns.node_memory[node])
    )


def card_score(
    columns: Columns, card: int, request: RequestAsk, weights: tuple[int, int, int]
) -> float:
    """The weighted sum of the same three shares of a card, with the request counted in each."""
    of_slots, of_cores, of_memory = weights
    slots, cores, memory = columns.slots[card], columns.cores[card], columns.memory[card]
    memory_then = request.memory_on(memory) + columns.memory_used[card]
    return 10.0 * (
        (of_slots * ((1 + columns.slots_used[card]) / slots) if slots else 0.0)
        + (of_cores * ((request.cores + columns.cores_used[card]) / cores) if cores else 0.0)
        + (of_memory * (memory_then / memory) if memory else 0.0)
    )


def _share(part: int, total: int) -> float:
    return part / total if total else 0.0
