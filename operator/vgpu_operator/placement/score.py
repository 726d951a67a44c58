"""How full a node is, and how full a card would be: numbers between 0 and about 30.

Formulas of HAMi v2.10: a node by what its cards carry before the request, a card by what it would
carry with it. A total of 0 contributes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.columns import Columns


def node_score(columns: Columns, node: int) -> float:
    """10·(slots used/slots + cores used/cores + memory used/memory) over the node's cards."""
    slots, cores = columns.node_slots[node], columns.node_cores[node]
    memory = columns.node_memory[node]
    return 10.0 * (
        (columns.node_slots_used[node] / slots if slots else 0.0)
        + (columns.node_cores_used[node] / cores if cores else 0.0)
        + (columns.node_memory_used[node] / memory if memory else 0.0)
    )


def card_score(
    columns: Columns, card: int, request: RequestAsk, weights: tuple[int, int, int]
) -> float:
    """The weighted sum of the same three shares of a card, with the request counted in each."""
    return card_scores(columns, (card,), request, weights)[0]


def card_scores(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: tuple[int, int, int]
) -> list[float]:
    """The `card_score` of each card."""
    known, condition = columns.conditions.scores.of((request, weights)), columns.condition
    try:
        return [known[condition[card]] for card in cards]
    except KeyError:
        for card in cards:
            known[condition[card]] = _score(columns, card, request, weights)
        return [known[condition[card]] for card in cards]


def _score(
    columns: Columns, card: int, request: RequestAsk, weights: tuple[int, int, int]
) -> float:
    slots, cores, memory = columns.slots[card], columns.cores[card], columns.memory[card]
    slots_used, cores_used, memory_used = columns.used(card)
    of_slots, of_cores, of_memory = weights
    cores_used += request.cores
    memory_used += request.memory_on(memory)
    return 10.0 * (
        (of_slots * ((1 + slots_used) / slots) if slots else 0.0)
        + (of_cores * (cores_used / cores) if cores else 0.0)
        + (of_memory * (memory_used / memory) if memory else 0.0)
    )
