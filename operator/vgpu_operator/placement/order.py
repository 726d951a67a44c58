"""In which order a node's cards are tried: a table from policy to sort key.

Lists run from first to last and cards are taken **from the end**, as in HAMi v2.10, so the best
card has the greatest key. Sorting is stable on the node's own order (index, then UUID), so every
tie is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fragmentation import rise_on, score_of_rise
from vgpu_operator.placement.score import card_score

Weights: TypeAlias = tuple[int, int, int]
Key: TypeAlias = tuple[float, ...]
KeyOf: TypeAlias = Callable[[Columns, int, RequestAsk, Weights], Key]


def _fuller(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    return (card_score(columns, card, request, weights),)


def _emptier(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    return (-card_score(columns, card, request, weights),)


def _less_shared(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    return (-columns.slots_used[card],)


def _higher_numa(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    return (columns.numa[card],)


def _lower_numa(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    return (-columns.numa[card],)


def _tighter(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    """Least memory left after placing, then fewest cores left, then the lowest index."""
    total = columns.memory[card]
    memory_left = total - columns.memory_used[card] - request.memory_on(total)
    cores_left = columns.cores[card] - columns.cores_used[card] - request.cores
    return -memory_left, -cores_left, -columns.index[card]


def _idle(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    """Unused cards first, then as Spread."""
    unused = 0 if columns.slots_used[card] else 1
    return unused, *_emptier(columns, card, request, weights)


def _less_fragmenting(columns: Columns, card: int, request: RequestAsk, weights: Weights) -> Key:
    """Where fragmentation rises least, then the lowest index. Where it does not fit is last."""
    return score_of_rise(rise_on(columns, card, request)), -columns.index[card]


_KEYS: Mapping[DevicePolicy, KeyOf] = MappingProxyType(
    {
        "Binpack": _fuller,
        "Spread": _emptier,
        "NUMA": _higher_numa,
        "BestFit": _tighter,
        "IdleFirst": _idle,
        "Fragmentation": _less_fragmenting,
    }
)
"""Policies that order cards. The others filter (Mutex) or choose among sets (NUMAFirst, Topology):
a chain of such alone orders like Spread."""

_SOLE: Mapping[DevicePolicy, tuple[KeyOf, ...]] = MappingProxyType(
    {
        "Binpack": (_fuller, _higher_numa),
        "Spread": (_emptier, _higher_numa),
        "Mutex": (_less_shared, _higher_numa),
        "IdleFirst": (_idle, _higher_numa),
    }
)
_SOLE_ON_ONE_NUMA_NODE: Mapping[DevicePolicy, tuple[KeyOf, ...]] = MappingProxyType(
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
    keys = keys_of(tuple(policies), one_numa_node=one_numa_node)
    return sorted(cards, key=_together(keys, columns, request, weights))


def preferred(
    columns: Columns,
    cards: Sequence[int],
    count: int,
    *,
    request: RequestAsk,
    keys: tuple[KeyOf, ...],
    weights: Weights,
) -> tuple[int, ...]:
    """The `count` most wanted of `cards` (in their node's order), the most wanted first."""
    key = _together(keys, columns, request, weights)
    if count == 1:
        return (max(reversed(cards), key=key),)  # the last of equals, as from the end of a list
    return tuple(reversed(sorted(cards, key=key)[-count:]))


def _together(
    keys: tuple[KeyOf, ...], columns: Columns, request: RequestAsk, weights: Weights
) -> Callable[[int], Key]:
    """One sort key of several."""
    if len(keys) == 1:
        only = keys[0]
        return lambda card: only(columns, card, request, weights)
    if len(keys) == 2:
        first, second = keys
        return lambda card: (
            *first(columns, card, request, weights),
            *second(columns, card, request, weights),
        )
    return lambda card: tuple(part for key in keys for part in key(columns, card, request, weights))


@lru_cache(maxsize=1024)
def keys_of(policies: tuple[DevicePolicy, ...], *, one_numa_node: bool) -> tuple[KeyOf, ...]:
    """The sort keys that policies mean, the weightiest first; the best card has the greatest."""
    tokens: Sequence[DevicePolicy] = [token for token in policies if token in _KEYS]
    if not tokens:
        tokens = ["Mutex"] if policies == ("Mutex",) else ["Spread"]
    sole = _SOLE_ON_ONE_NUMA_NODE if one_numa_node else _SOLE
    if len(tokens) == 1 and tokens[0] in sole:
        return sole[tokens[0]]
    chain = tuple(_KEYS[token] for token in tokens)
    return (_higher_numa, *chain) if one_numa_node else chain
