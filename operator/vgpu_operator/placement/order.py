"""In which order a node's cards are tried: a table from policy to sort key.

Lists run from first to last and cards are taken **from the end**, as in HAMi v2.10, so the best
card has the greatest key. Sorting is stable on the node's own order (index, then UUID), so every
tie is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.columns import Columns
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


_KEYS: Mapping[DevicePolicy, KeyOf] = MappingProxyType(
    {
        "Binpack": _fuller,
        "Spread": _emptier,
        "NUMA": _higher_numa,
        "BestFit": _tighter,
        "IdleFirst": _idle,
    }
)
"""Policies that order cards. The others filter (Mutex), choose among sets (NUMAFirst), or are not
served yet (Topology, Fragmentation): a chain of such alone orders like Spread."""

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
    keys = _keys(policies, one_numa_node)
    return sorted(
        cards,
        key=lambda card: tuple(
            part for key in keys for part in key(columns, card, request, weights)
        ),
    )


def _keys(policies: Sequence[DevicePolicy], one_numa_node: bool) -> tuple[KeyOf, ...]:
    tokens: Sequence[DevicePolicy] = [token for token in policies if token in _KEYS]
    if not tokens:
        tokens = ["Mutex"] if tuple(policies) == ("Mutex",) else ["Spread"]
    sole = _SOLE_ON_ONE_NUMA_NODE if one_numa_node else _SOLE
    if len(tokens) == 1 and tokens[0] in sole:
        return sole[tokens[0]]
    chain = tuple(_KEYS[token] for token in tokens)
    return (_higher_numa, *chain) if one_numa_node else chain
