"""In which order a node's cards are tried: a table from policy to sort key.

Lists run from first to last and cards are taken **from the end**, as in HAMi v2.10, so the best
card has the greatest key. Sorting is stable on the node's own order (index, then UUID), so every
tie is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fragmentation import rises_on, score_of_rise
from vgpu_operator.placement.score import card_scores

Weights: TypeAlias = tuple[int, int, int]
Keys: TypeAlias = Sequence[Any]
"""A key for each of some cards: numbers, or tuples of keys."""
Token: TypeAlias = Callable[[Columns, Sequence[int], RequestAsk, Weights], Keys]


def _fuller(columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights) -> Keys:
    return card_scores(columns, cards, request, weights)


def _emptier(columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights) -> Keys:
    return [-score for score in card_scores(columns, cards, request, weights)]


def _less_shared(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    used = columns.slots_used
    return [-used[card] for card in cards]


def _higher_numa(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    numa = columns.numa
    return [numa[card] for card in cards]


def _lower_numa(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    numa = columns.numa
    return [-numa[card] for card in cards]


def _less_memory_left(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    memory, used, memory_on = columns.memory, columns.memory_used, request.memory_on
    return [used[card] + memory_on(memory[card]) - memory[card] for card in cards]


def _fewer_cores_left(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    cores, used = columns.cores, columns.cores_used
    return [used[card] - cores[card] for card in cards]


def _lower_index(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    index = columns.index
    return [-index[card] for card in cards]


def _idle(columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights) -> Keys:
    """Unused cards first, then as Spread."""
    used, emptier = columns.slots_used, _emptier(columns, cards, request, weights)
    return [(not used[card], key) for card, key in zip(cards, emptier, strict=True)]


def _less_fragmenting(
    columns: Columns, cards: Sequence[int], request: RequestAsk, weights: Weights
) -> Keys:
    """Where fragmentation rises least. Where it does not fit is last."""
    return [score_of_rise(rise) for rise in rises_on(columns, cards, request)]


_KEYS: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_fuller,),
        "Spread": (_emptier,),
        "NUMA": (_higher_numa,),
        "BestFit": (_less_memory_left, _fewer_cores_left, _lower_index),
        "IdleFirst": (_idle,),
        "Fragmentation": (_less_fragmenting, _lower_index),
    }
)
"""Policies that order cards. The others filter (Mutex) or choose among sets (NUMAFirst, Topology):
a chain of such alone orders like Spread."""

_SOLE: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_fuller, _higher_numa),
        "Spread": (_emptier, _higher_numa),
        "Mutex": (_less_shared, _higher_numa),
        "IdleFirst": (_idle, _higher_numa),
    }
)
_SOLE_ON_ONE_NUMA_NODE: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_lower_numa, _fuller),
        "Spread": (_higher_numa, _emptier),
        "Mutex": (_higher_numa, _less_shared),
    }
)


def in_order(
    columns: Columns,
    cards: Sequence[int],
    *,
    request: RequestAsk,
    policies: Sequence[DevicePolicy],
    one_numa_node: bool,
    weights: Weights,
) -> list[int]:
    """`cards` (in their node's order) from the least wanted to the most wanted."""
    tokens = keys_of(tuple(policies), one_numa_node=one_numa_node)
    return _sorted(columns, cards, request=request, keys=tokens, weights=weights)


def preferred(
    columns: Columns,
    cards: Sequence[int],
    count: int,
    *,
    request: RequestAsk,
    keys: tuple[Token, ...],
    weights: Weights,
) -> tuple[int, ...]:
    """The `count` most wanted of `cards` (in their node's order), the most wanted first."""
    if count > 1:
        ordered = _sorted(columns, cards, request=request, keys=keys, weights=weights)
        return tuple(reversed(ordered[-count:]))
    for key in keys:
        if len(cards) == 1:
            break
        values = key(columns, cards, request, weights)
        best = max(values)
        cards = [card for card, value in zip(cards, values, strict=True) if value == best]
    return (cards[-1],)  # the last of equals, as from the end of a list


def _sorted(
    columns: Columns,
    cards: Sequence[int],
    *,
    request: RequestAsk,
    keys: tuple[Token, ...],
    weights: Weights,
) -> list[int]:
    parts = zip(*(key(columns, cards, request, weights) for key in keys), strict=True)
    key_of = dict(zip(cards, parts, strict=True))
    return sorted(cards, key=key_of.__getitem__)


@lru_cache(maxsize=1024)
def keys_of(policies: tuple[DevicePolicy, ...], *, one_numa_node: bool) -> tuple[Token, ...]:
    """The sort keys that policies mean, the weightiest first; the best card has the greatest.

    A chain is one also where only one of its policies orders cards: then nothing but the index
    decides ties.
    """
    chain = tuple(key for token in policies for key in _KEYS.get(token, ()))
    if not chain and policies != ("Mutex",):
        policies = ("Spread",)
    sole = _SOLE_ON_ONE_NUMA_NODE if one_numa_node else _SOLE
    if len(policies) == 1 and policies[0] in sole:
        return sole[policies[0]]
    return (_higher_numa, *chain) if one_numa_node else chain
