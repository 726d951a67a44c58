"""How much idle compute of a node is of no use to the requests that usually come.

Fragmentation gradient descent (Weng et al., USENIX ATC '23): F(node) is the idle share that a
typical request cannot use, weighted by how frequent the request is: all that is idle if the node
cannot run it, else what is idle on cards with less left than it needs. A claim goes where F rises
least. A card's idle share is what is left of the scarcer of memory and compute.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.checks import refusal_of_kind, refusal_of_room
from vgpu_operator.placement.columns import Columns

FULL_SCORE = 100
_UNIT = 1000.0
"""The share of a whole card."""

_VIEWS_KEPT = 65_536

View: TypeAlias = tuple[float, float, tuple[int, ...]]
"""Of a card: its idle share, the frequency of the single-card types that fit, and which of the
types for several cards fit."""


def score_of_rise(before: float, after: float) -> int:
    """A rise of F as a score, 0 to 100, more is better: as published, in whole steps."""
    rise = round(after - before, 6)  # sums of floats must not tell equal nodes apart
    return int(FULL_SCORE / (1.0 + math.exp(rise / _UNIT)))


def fragmentation(columns: Columns, node: int) -> float:
    """F of a node as its cards are now, in thousandths of a card."""
    types = columns.mix.types
    idle_sum = 0.0
    usable = 0.0
    several: dict[int, list[tuple[int, float]]] = {}
    for card in columns.node_cards[node]:
        idle, weight, multiple = _view(columns, card)
        idle_sum += idle
        usable += idle * weight
        for number in multiple:
            several.setdefault(number, []).append((card, idle))
    for number, found in several.items():
        frequency, request = types[number]
        if len(found) >= request.count:
            usable += frequency * sum(idle for _, idle in found)
    return idle_sum * columns.mix.total - usable


def score_with(columns: Columns, card: int, request: RequestAsk) -> int:
    """The score of putting one more request on a card; the card is left as it was."""
    node = columns.node_of[card]
    before = fragmentation(columns, node)
    used = columns.used(card)
    take(columns, card, request)
    try:
        return score_of_rise(before, fragmentation(columns, node))
    finally:
        columns.lend(card, *used)


def take(columns: Columns, card: int, request: RequestAsk) -> None:
    """Use a card for the length of a plan; whoever does, sets it back."""
    slots, cores, memory = columns.used(card)
    cores += request.cores
    if request.cores >= ALL_CORES:  # alone, whatever the card's cores are scaled to
        cores = max(cores, columns.cores[card])
    columns.lend(card, slots + 1, cores, memory + request.memory_on(columns.memory[card]))


def _view(columns: Columns, card: int) -> View:
    """What F needs to know of a card: remembered by its state, since cards are much alike."""
    state = (
        columns.slots_used[card],
        columns.cores_used[card],
        columns.memory_used[card],
        columns.slots[card],
        columns.cores[card],
        columns.memory[card],
        columns.healthy[card] and not columns.cordoned[card],
        columns.vendor[card],
        columns.mode[card],
        columns.model[card],
    )
    views = columns.mix.views
    view = views.get(state)
    if view is None:
        if len(views) >= _VIEWS_KEPT:
            views.clear()
        view = views[state] = _look_at(columns, card)
    return view


def _look_at(columns: Columns, card: int) -> View:
    if not columns.healthy[card] or columns.cordoned[card]:
        return 0.0, 0.0, ()
    shares = [
        used / total
        for used, total in (
            (columns.cores_used[card], columns.cores[card]),
            (columns.memory_used[card], columns.memory[card]),
        )
        if total
    ]
    has_slots = columns.slots_used[card] < columns.slots[card]
    idle = max(0.0, _UNIT * (1.0 - max(shares, default=1.0))) if has_slots else 0.0
    weight = 0.0
    several: list[int] = []
    for number, (frequency, request) in enumerate(columns.mix.types):
        if refusal_of_kind(columns, card, request) or refusal_of_room(columns, card, request, ()):
            continue
        if request.count == 1:
            weight += frequency
        else:
            several.append(number)
    return idle, weight, tuple(several)
